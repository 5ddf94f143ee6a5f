"""Worker and server are killed while a call waits for a person."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from perdure import Agent, tool
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def agent() -> Agent:
    asked = [call("refund", order=order) for order in ("a", "b")]
    return Agent("support", ScriptedProvider([asked, "Done."]), tools=[refund])


async def test_what_waits_survives_the_worker_and_the_server(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    before = await ensure_server(home)
    first, second = Engine(before.address, tmp_path), Engine(before.address, tmp_path)
    second.task_queue = first.task_queue
    try:
        async with first.served(agent()) as client:
            run = await client.start("support", "Go.", id="order-7")

            async def waits() -> bool:
                return (await run.status()).doing == "approval"

            await eventually(waits)
            asked = [one.call_id for one in (await run.status()).approvals]
            await run.approve(asked[0], by="ana")
        await first.close()
        os.kill(before.pid, signal.SIGKILL)

        second.address = (await ensure_server(home)).address
        done = Agent("support", ScriptedProvider(["Done."]), tools=[refund])
        async with second.served(done) as client:
            run = client.run("order-7")
            status = await run.status()
            assert [one.call_id for one in status.approvals] == asked[1:]
            assert [(one.call_id, one.by) for one in status.decided] == [(asked[0], "ana")]
            await run.approve(by="bea")
            assert (await run.result()).content == "Done."
            assert results(await run.transcript()) == ["refunded a", "refunded b"]
    finally:
        await first.close()
        await second.close()
        await stop_server(home)
