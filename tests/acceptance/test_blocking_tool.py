"""An ``async def`` tool that blocks its event loop: no run is lost, no heartbeat is late, and a warning names it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent, Run, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from perdure.workflows.options import HEARTBEAT
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import calls_then
from tests.support.wait import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.alone]

BLOCK = 12.0
"""Seconds; well past the heartbeat timeout."""


class Tools:
    """What happened, in this process; the tools run in other threads."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.attempts: list[tuple[str, int]] = []

    def agent(self, name: str, iterations: int) -> Agent:
        @tool
        async def block(ctx: ToolContext) -> str:
            """Blocks its event loop."""
            self.attempts.append(("block", ctx.attempt))
            self.began.set()
            time.sleep(BLOCK)  # noqa: ASYNC251  # that it blocks is what is tested
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


async def pending(run: Run) -> list[Any]:
    described = await run.handle.describe()
    return list(described.raw_description.pending_activities)


async def test_a_tool_that_blocks_stalls_neither_its_run_nor_others(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.worker")
    tools = Tools()
    agents = [tools.agent("block", 1), tools.agent("politely", 1), tools.agent("quickly", 3)]
    async with engine.served(*agents) as client:
        blocking = await client.start("block", "go")
        await asyncio.to_thread(tools.began.wait, 30)
        ends = time.monotonic() + BLOCK

        # Another run's sync tools and model calls go on while the loop of the async tools is blocked ...
        assert results((await (await client.start("quickly", "go")).result()).messages) == ["ran"] * 3
        assert time.monotonic() < ends, "it waited for the tool that blocks"

        # ... and one that needs that loop waits, heartbeating: its worker is not taken for lost.
        waiting = await client.start("politely", "go")
        await eventually(lambda: pending(waiting), what="a tool that waits")
        oldest = timedelta()
        while time.monotonic() < ends - 1:
            for run in (blocking, waiting):
                for activity in await pending(run):
                    assert activity.attempt == 1
                    if activity.HasField("last_heartbeat_time"):
                        beat = activity.last_heartbeat_time.ToDatetime(UTC)
                        oldest = max(oldest, datetime.now(UTC) - beat)
            await asyncio.sleep(0.2)
        assert timedelta() < oldest < HEARTBEAT, f"a heartbeat was {oldest} old"

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
