"""Heartbeats are rare, and a call still ends soon after its run is stopped: by a nudge, or the next heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure import Agent, Client, Run, Worker, tool
from perdure.errors import DefinitionError, RunCancelledError, RuntimeSetupError
from perdure.testing import ScriptedProvider, call
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

RARE = 60.0
"""Seconds between heartbeats which no test waits for."""
STOPS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    "interrupt": lambda run: run.interrupt(),
    "interrupt with a message": lambda run: run.interrupt("No, this."),
    "cancel": lambda run: run.cancel(),
    "terminate": lambda run: run.terminate(),
}


class Calls:
    """A model whose first call, and a tool whose every call, wait until they are cancelled."""

    def __init__(self) -> None:
        self.gate = Gate()

        @tool
        async def hang() -> str:
            """Wait until cancelled."""
            await self.gate()
            return "hung"

        self.hang = hang

    def build_agent(self, name: str = "desk") -> Agent:
        """Its first reply calls the tool."""
        return Agent(name, ScriptedProvider([call("hang"), "Done."]), tools=[self.hang])


@pytest.mark.server
@ON_BOTH_STORES
@pytest.mark.parametrize("how", STOPS)
async def test_a_nudge_ends_a_call_long_before_its_next_heartbeat(engine: Engine, how: str) -> None:
    calls = Calls()
    async with engine.served(calls.build_agent(), heartbeat=RARE, drain=0.0) as client:
        run = await client.start("desk", "Go.")
        await eventually(lambda: calls.gate.entered == 1)
        await STOPS[how](run)
        await eventually(lambda: calls.gate.left == 1, what="the end of the call", deadline=RARE / 2)


@pytest.mark.server
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_a_nudge_reaches_the_calls_of_subagents(engine: Engine, how: str) -> None:
    calls = Calls()
    below = calls.build_agent("below")
    above = Agent("above", ScriptedProvider([call("call_below", task="Go."), "Done."]), subagents=[below])
    async with engine.served(above, heartbeat=RARE, drain=0.0) as client:
        run = await client.start("above", "Go.")
        await eventually(lambda: calls.gate.entered == 1)
        await STOPS[how](run)
        await eventually(lambda: calls.gate.left == 1, what="the end of the call", deadline=RARE / 2)


@pytest.mark.server
async def test_nudges_of_other_runs_and_of_unknown_ones_change_nothing(engine: Engine) -> None:
    calls = Calls()
    async with engine.served(calls.build_agent(), heartbeat=RARE, drain=0.0) as client:
        run = await client.start("desk", "Go.", id="run-1")
        await eventually(lambda: calls.gate.entered == 1)
        store = await client.store()
        for run_id in ("run-1", "run-1", "run", "run-1/x", "", "'; DROP TABLE nudges; --", "ü\u2028" * 300):
            await store.nudge(run_id)
        calls.gate.open()
        assert (await run.result()).content == "Done."


@pytest.mark.server
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_without_a_store_a_call_ends_with_its_next_heartbeat(engine: Engine, how: str) -> None:
    calls = Calls()
    async with engine.served(calls.build_agent(), heartbeat=0.3):
        run = await (await engine.client(store=False)).start("desk", "Go.")
        await eventually(lambda: calls.gate.entered == 1)
        await STOPS[how](run)
        await eventually(lambda: calls.gate.left == 1, what="the end of the call")


@pytest.mark.server
async def test_a_store_that_takes_no_nudge_delays_nothing_else(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    async with engine.served(calls.build_agent(), heartbeat=0.3) as client:
        run = await client.start("desk", "Go.")
        await eventually(lambda: calls.gate.entered == 1)
        store = await client.store()
        monkeypatch.setattr(store, "nudge", lambda _: asyncio.Event().wait())
        await run.cancel()
        await eventually(lambda: calls.gate.left == 1, what="the end of the call")
        with pytest.raises(RunCancelledError):
            await run.result()


@pytest.mark.server
async def test_the_timeout_is_three_intervals_of_the_worker(engine: Engine) -> None:
    calls = Calls()
    calls.gate.open()
    async with engine.served(calls.build_agent(), heartbeat=1.25) as client:
        run = await client.start("desk", "Go.")
        await run.result()
    assert await read_heartbeat_timeouts(run) == {timedelta(seconds=3.75)}


@pytest.mark.server
async def test_the_default_is_two_seconds(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_HEARTBEAT", raising=False)
    calls = Calls()
    calls.gate.open()
    async with engine.served(calls.build_agent()) as client:
        run = await client.start("desk", "Go.")
        await run.result()
    assert await read_heartbeat_timeouts(run) == {timedelta(seconds=6)}


async def read_heartbeat_timeouts(run: Run) -> set[timedelta]:
    history = await run.handle.fetch_history()
    return {
        event.activity_task_scheduled_event_attributes.heartbeat_timeout.ToTimedelta()
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }


@pytest.mark.parametrize("value", [0, -1, 0.01, 61, float("nan"), float("inf"), True, "2", [2], 10**400])
async def test_a_setting_that_is_no_interval_is_refused(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"heartbeat must be a number of seconds from 0\.1 to 60, not"):
        Worker(Client(None, task_queue="q"), [Agent("a", ScriptedProvider(["b"]))], heartbeat=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["0", "two", "-2", "nan", "1e9", "2s"])
async def test_a_variable_that_is_no_interval_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_HEARTBEAT", value)
    with pytest.raises(RuntimeSetupError, match="PERDURE_HEARTBEAT is '"):
        Worker(Client(None, task_queue="q"), [Agent("a", ScriptedProvider(["b"]))])  # type: ignore[arg-type]
