"""The worker, and the Temporal server, are killed while subagents work in background: nothing is doubled, or lost."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from perdure import Agent, Run, background
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine, side_by_side
from tests.support.wait import eventually

pytestmark = pytest.mark.server


async def collecting(run: Run) -> bool:
    return [one.tool for one in (await run.status()).calls] == ["collect_agent"] * 2


@pytest.mark.slow
async def test_the_worker_is_killed(engine: Engine) -> None:
    scenarios = {"one execution": partial(_killed, cans=False), "continued as new": partial(_killed, cans=True)}
    await side_by_side(engine, scenarios)


async def _killed(engine: Engine, *, cans: bool) -> None:
    lost = await engine.process("backgrounding")
    client = await engine.client()
    run = await client.start("boss", "Go.", **({"max_history_events": 15} if cans else {}))
    await eventually(lambda: len(engine.ledger.entries("weigh")) == 2, what="the tools of both run")
    await eventually(lambda: collecting(run))
    await lost.kill()
    await engine.process("backgrounding")
    response = await run.result()
    assert response.content == "a stone weighs 3 and a feather weighs 3"
    assert len(engine.ledger.entries("weigh")) == 4
    assert len(engine.ledger.entries("judge")) == 4, "no model call is paid twice"
    assert len(engine.ledger.entries("boss")) == 3


async def test_the_server_is_killed(tmp_path: Path) -> None:
    """And the worker: what the child says reaches a parent that no worker holds in memory."""
    home = Home(tmp_path / "home")
    before = await ensure_server(home)
    first, second = Engine(before.address, tmp_path), Engine(before.address, tmp_path)
    second.task_queue = first.task_queue
    hung = Agent("other", ScriptedProvider(lambda _: call("nobody")), max_iterations=100_000)
    replies = [
        [call("start_agent", agent_name="other", message=n) for n in ("a", "b")],
        [call("collect_agent", handle=handle) for handle in ("b1", "b2")],
        "Done.",
    ]
    try:
        parent = Agent("boss", ScriptedProvider(replies), tools=background([hung]))
        async with first.served(parent) as client:
            run = await client.start("boss", "Go.", id="order-7")
            await eventually(lambda: collecting(run))
        await first.close()
        os.kill(before.pid, signal.SIGKILL)

        second.address = (await ensure_server(home)).address
        ending = Agent("other", ScriptedProvider(lambda r: f"answered {r.messages[0].text}"))
        parent = Agent("boss", ScriptedProvider(["Done."]), tools=background([ending]))
        async with second.served(parent) as client:
            run = client.run("order-7")
            assert (await run.result()).content == "Done."
            assert results(await run.transcript())[2:] == ["answered a", "answered b"]
    finally:
        await first.close()
        await second.close()
        await stop_server(home)
