"""An ``async def`` tool that blocks its event loop: no run is lost, no heartbeat is late, and a warning names it."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from perdure import Agent, Run, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import calls_then
from tests.support.wait import eventually

pytestmark = pytest.mark.server


HEARTBEAT = 1.0
LONG = timedelta(seconds=3 * HEARTBEAT + 1)
"""Longer than the heartbeat timeout."""


class Tools:
    """What happened, in this process; the tools run in other threads."""

    def __init__(self) -> None:
        self.began, self.release = threading.Event(), threading.Event()
        self.attempts: list[tuple[str, int]] = []

    def agent(self, name: str, iterations: int) -> Agent:
        @tool
        async def block(ctx: ToolContext) -> str:
            """Blocks its event loop until it is released."""
            self.attempts.append(("block", ctx.attempt))
            self.began.set()
            assert self.release.wait(60)
            return "blocked"

        @tool
        async def politely(ctx: ToolContext) -> str:
            """Waits as it should."""
            self.attempts.append(("politely", ctx.attempt))
            await asyncio.sleep(0.01)
            return "waited"

        @tool
        def quickly(ctx: ToolContext) -> str:
            """Runs in a thread."""
            self.attempts.append(("quickly", ctx.attempt))
            return "ran"

        model = ScriptedProvider(calls_then(iterations, name))
        return Agent(name, model, tools=[block, politely, quickly])


async def outlived_its_timeout(run: Run) -> bool:
    """Whether the first attempt of its one open activity has sent a heartbeat later than it had to send the first."""
    described = await run.handle.describe()
    for activity in described.raw_description.pending_activities:
        assert activity.attempt == 1
        return activity.last_heartbeat_time.ToDatetime() > activity.last_started_time.ToDatetime() + LONG
    return False


@pytest.mark.fault(
    "Workers", "An `async` tool blocks its event loop.", "Other runs continue, and the worker is not taken for lost."
)
async def test_a_tool_that_blocks_stalls_neither_its_run_nor_others(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.worker")
    tools = Tools()
    agents = [tools.agent("block", 1), tools.agent("politely", 1), tools.agent("quickly", 3)]
    async with engine.served(*agents, heartbeat=HEARTBEAT) as client:
        blocking = await client.start("block", "go")
        await asyncio.to_thread(tools.began.wait, 30)

        # Another run's sync tools and model calls go on while the loop of the async tools is blocked ...
        assert results((await (await client.start("quickly", "go")).result()).messages) == ["ran"] * 3

        # ... and one that needs that loop waits, heartbeating: its worker is not taken for lost.
        waiting = await client.start("politely", "go")
        for run in (blocking, waiting):
            await eventually(lambda run=run: outlived_its_timeout(run), deadline=60, every=0.5, what="late heartbeats")
        assert tools.attempts[-1] != ("politely", 1), "it needs the loop that is blocked"
        tools.release.set()

        assert results((await blocking.result()).messages) == ["blocked"]
        assert results((await waiting.result()).messages) == ["waited"]
    assert sorted(tools.attempts) == [("block", 1), ("politely", 1), *[("quickly", 1)] * 3]
    warnings = [record.getMessage() for record in caplog.records if "blocks its event loop" in record.getMessage()]
    assert len(warnings) == 1
    assert "tool block of agent block" in warnings[0]
    assert "plain def" in warnings[0]


async def test_sync_tools_run_64_at_once(engine: Engine) -> None:
    together = threading.Barrier(64)

    @tool
    def meet() -> str:
        """Meets the others."""
        together.wait(timeout=60)
        return "met"

    agent = Agent("party", ScriptedProvider([[call("meet") for _ in range(64)], "Done."]), tools=[meet])
    async with engine.served(agent) as client:
        response = await (await client.start("party", "go")).result()
    assert results(response.messages) == ["met"] * 64
