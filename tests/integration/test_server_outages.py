"""A Temporal server that goes away: who follows a run, and who serves it, say so once and wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from perdure import Agent
from perdure.errors import ServerUnreachableError
from perdure.temporal import outages
from perdure.testing import ScriptedProvider, call
from tests.support.commands import Commands
from tests.support.cut_proxy import CutProxy, run_cut_proxy
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server

AWAY = "the Temporal server at 127.0.0.1:{} does not answer; waiting for it"
BACK = "the Temporal server at 127.0.0.1:{} answers again, after"


@pytest.fixture
async def proxy(engine: Engine) -> AsyncIterator[CutProxy]:
    async with run_cut_proxy(int(engine.address.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (("wait", "RUN"), 12.0),  # longer than the SDK repeats a request by itself
        (("run", "desk", "Go."), 0.0),
        (("run", "desk", "Go.", "--follow"), 0.0),
        (("events", "RUN", "-f"), 0.0),
    ],
)
async def test_what_follows_a_run_waits_for_the_server(
    engine: Engine, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], seconds: float
) -> None:
    opened, entered = asyncio.Event(), asyncio.Event()
    desk = Agent("desk", ScriptedProvider([call("gate"), "Done."]))

    @desk.tool(idempotent=True)
    async def gate() -> str:
        entered.set()
        await opened.wait()
        return "open"

    cli = Commands(engine, monkeypatch, {"TEMPORAL_ADDRESS": f"127.0.0.1:{proxy.port}"})
    async with engine.served(desk) as client:
        run_id = f"outage-{engine.task_queue}"
        if command[0] != "run":
            await client.start("desk", "Go.", id=run_id)
        following = await cli.spawn(*(part.replace("RUN", run_id) for part in command))
        await entered.wait()
        await following.until("gate")
        await proxy.down()
        await following.until(AWAY.format(proxy.port))
        await asyncio.sleep(seconds)
        await proxy.up()
        await following.until(BACK.format(proxy.port))
        opened.set()
        assert await asyncio.wait_for(following.ended(), 60) == 0, following.output
        assert "Done." in following.output
        assert following.output.count("does not answer") == 1, following.output
        assert "error:" not in following.output


async def test_a_worker_says_that_the_server_is_away(
    engine: Engine, proxy: CutProxy, caplog: pytest.LogCaptureFixture
) -> None:
    direct = engine.address
    engine.address = f"127.0.0.1:{proxy.port}"
    desk = Agent("desk", ScriptedProvider(lambda _: "Done."))
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        async with engine.served(desk) as client:
            await proxy.down()
            await eventually(lambda: AWAY.format(proxy.port) in caplog.messages, deadline=30)
            await proxy.up()
            await eventually(lambda: any(BACK.format(proxy.port) in said for said in caplog.messages), deadline=30)
            assert (await (await client.start("desk", "Go.")).result()).content == "Done."
    engine.address = direct
    assert [said for said in caplog.messages if "does not answer" in said] == [AWAY.format(proxy.port)]


async def test_a_request_that_alone_is_not_answered_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_RETRY_SECONDS", 0.0)
    reports: list[str] = []
    attempts = 0

    async def read() -> None:
        nonlocal attempts
        attempts += 1
        raise ServerUnreachableError("the Temporal server does not answer: internal error")

    async with outages.watch_server(await engine.temporal(), reports.append) as server:
        with pytest.raises(ServerUnreachableError, match="internal error"):
            await server.retry(read)
    assert (attempts, reports) == (5, [])
