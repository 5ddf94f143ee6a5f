"""``kill -9``: workers that are killed, stopped or taken for lost, and every effect once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from perdure import Run
from perdure.errors import RunCancelledError
from perdure.ports.test_seams import POINTS
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support import faults
from tests.support.checks import assert_closed, results
from tests.support.engine import ON_BOTH_STORES, Engine, side_by_side
from tests.support.following import next_of
from tests.support.wait import eventually

pytestmark = pytest.mark.server

ITERATIONS = 40
KILLS = 3
RECOVERY = 9.0
"""Seconds from SIGKILL to the next model call, at the defaults."""
GIVEN = 2.0
"""Seconds from a worker that serves to its first call, where the loss was noticed while it started."""
TOOL_SECONDS = 0.3


# --- a kill at each point of a call


KILLED_AT = [
    *(("work", point) for point in POINTS if not point.startswith(("webhook.", "decision.", "bulk."))),
    *(("look", point) for point in ("tool.claimed", "tool.acted")),  # a recorded outcome is returned of any tool
]


@pytest.mark.fault("Workers", "A worker is killed in a model call.")
@pytest.mark.fault(
    "Workers",
    "A worker is killed in a tool.",
    "The tool runs again if it is `idempotent=True`. Of any other tool the model is told that the outcome is unknown.",
)
@ON_BOTH_STORES
async def test_a_kill_at_each_point(engine: Engine) -> None:
    """``work`` must not run twice, ``look`` may. Whatever was recorded is neither paid nor done again."""
    scenarios = {f"{tool} {point}": partial(_killed_at, tool=tool, point=point) for tool, point in KILLED_AT}
    await side_by_side(engine, scenarios)


async def _killed_at(engine: Engine, *, tool: str, point: str) -> None:
    def rule(request: dict[str, Any]) -> Reply:
        n = _iteration(request)
        asked.append(n)
        return Reply(text="Done.") if n else Reply(calls=[Call(tool, {"n": "0"}, id="call_0")])

    asked: list[int] = []
    async with OpenAIServer(rule) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_KILL_AT": point}
        doomed = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        assert await doomed.gone() == -signal.SIGKILL
        await engine.process("counting", **settings)  # it reaches the same point, and lives
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."
    assert_closed(response.messages)
    assert asked == ([0, 0, 1] if point == "model.answered" else [0, 1])
    unknown = tool == "work" and point in ("tool.claimed", "tool.acted")
    assert results(response.messages)[0].startswith("OutcomeUnknown: work" if unknown else f"{tool}ed 0")
    acted = {("work", "tool.claimed"): {}, ("look", "tool.acted"): {"0": 2}}.get((tool, point), {"0": 1})
    assert engine.ledger.counts(tool) == acted


# --- workers that are lost at no such point


@pytest.mark.fault(
    "Workers",
    "A worker is killed in a model call.",
    "Another worker makes the call again within seconds, unless its reply had been recorded.",
)
@pytest.mark.fault("Workers", "A worker is taken for lost, but was only slow.", "What it reports late changes nothing.")
@pytest.mark.fault("Workers", "A worker is told to stop.", "It finishes its tools first, then ends.")
async def test_workers_that_are_killed_stopped_or_taken_for_lost(engine: Engine) -> None:
    scenarios = {
        "killed in the middle of a reply": _killed_in_a_reply,
        "killed in the middle of a workflow task": _killed_in_a_workflow_task,
        "told to stop: finishes its tool": _told_to_stop,
        "taken for lost: does not overwrite how the run ended": _taken_for_lost,
    }
    await side_by_side(engine, scenarios)


@dataclass(frozen=True)
class Recovery:
    """When a worker was killed, when the next one served, and when that one asked the model."""

    killed: float
    served: float
    asked: float

    def assert_in_time(self) -> None:
        """A machine on which processes start slowly, or that has other jobs, has its time for that."""
        slack = max(0.0, os.getloadavg()[0] - (os.cpu_count() or 1)) * 2
        print(f"SIGKILL to next model call: {self.asked - self.killed:.1f} s; load {os.getloadavg()[0]:.1f}")
        assert self.asked <= max(self.killed + RECOVERY, self.served + GIVEN) + slack, self


async def _killed_in_a_reply(engine: Engine) -> Recovery:
    def rule(request: dict[str, Any]) -> Reply:
        asked.append(time.monotonic())
        return Reply(text="Done.", delay=0.5 if len(asked) == 1 else 0.0)

    asked: list[float] = []
    async with OpenAIServer(rule) as server:
        worker = await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting", "Go on, then, one word at a time.")
        await eventually(lambda: asked)
        await worker.kill()
        killed = time.monotonic()
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        served = time.monotonic()
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."
    assert len(asked) == 2
    return Recovery(killed, served, asked[1])


async def _killed_in_a_workflow_task(engine: Engine) -> Recovery:
    asked: list[float] = []

    def rule(request: dict[str, Any]) -> Reply:
        asked.append(time.monotonic())
        return Reply(text="Done.")

    async with OpenAIServer(rule) as server:
        worker = await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting")
        await eventually(lambda: _waiting(run))
        worker.process.send_signal(signal.SIGSTOP)  # its polls stay open, so it is given the task, and never ends it
        await run.inject("Go.")
        await eventually(lambda: _task_started(run))
        await worker.kill()
        killed = time.monotonic()
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        served = time.monotonic()
        response = await asyncio.wait_for(run.result(), 60)
        history = await run.handle.fetch_history()
    assert response.content == "Done."
    assert len(asked) == 1
    # How soon a run goes on hangs on two timeouts: test_a_run_goes_on_in_time measures it.
    begun = history.events[0].workflow_execution_started_event_attributes
    called = [event.activity_task_scheduled_event_attributes for event in history.events]
    beats = {one.heartbeat_timeout.ToMilliseconds() for one in called if one.activity_id}
    assert (begun.workflow_task_timeout.ToSeconds(), beats) == (5, {4800}), "three heartbeats of tests/conftest.py"
    return Recovery(killed, served, asked[0])


async def _told_to_stop(engine: Engine) -> None:
    def rule(request: dict[str, Any]) -> Reply:
        return Reply(text="Done.") if _iteration(request) else Reply(calls=[Call("work", {"n": "0"}, id="call_0")])

    async with OpenAIServer(rule) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_TOOL_SECONDS": "2"}
        worker = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        await eventually(lambda: engine.ledger.entries("work"))
        assert await worker.stop() == 0
        assert engine.ledger.counts("worked") == {"0": 1}
        await engine.process("counting", **settings)
        response = await asyncio.wait_for(run.result(), 60)
    assert results(response.messages) == ["worked 0"]
    assert engine.ledger.counts("work") == {"0": 1}


async def _taken_for_lost(engine: Engine) -> None:
    """It hangs in a model call, the run is cancelled elsewhere, and then it goes on: its reply is not recorded."""
    gate = asyncio.Event()

    async def rule(request: dict[str, Any]) -> Reply:
        await gate.wait()
        return Reply(text="Too late.")

    async with OpenAIServer(rule) as server:
        lost = await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        await eventually(lambda: server.stats.requests)
        await next_of(run.events(), "model.started")  # it is not stopped while it holds the lock of the store's file
        lost.process.send_signal(signal.SIGSTOP)
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await asyncio.wait_for(run.result(), 60)
        (closed,) = faults.sql(engine.store_path, RUN_ROW)
        assert closed[0] == "cancelled"
        recorded = faults.sql(engine.store_path, OUTCOMES)
        gate.set()
        # Into the connection of the worker that stands still: when it continues, it may be cancelled at once.
        await eventually(lambda: server.stats.completed, what="the late reply is sent")
        lost.process.send_signal(signal.SIGCONT)
        assert await lost.stop() == 0
        assert faults.sql(engine.store_path, OUTCOMES) == recorded
        assert faults.sql(engine.store_path, RUN_ROW) == [closed]


# --- how soon a run goes on, and kills at random moments


@pytest.mark.fault("Workers", "A worker is killed in a model call.")
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("killed", [_killed_in_a_reply, _killed_in_a_workflow_task])
async def test_a_run_goes_on_in_time(engine: Engine, killed: Any) -> None:
    recovery: Recovery = await killed(engine)
    recovery.assert_in_time()


class Model:
    """Alternates ``work`` (at most once) and ``look`` (idempotent); remembers when it was asked and answered what."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def __call__(self, request: dict[str, Any]) -> Reply:
        n = _iteration(request)
        self.asked.append((time.monotonic(), n))
        if n >= ITERATIONS:
            return Reply(text="All done.", delay=0.01)
        return Reply(calls=[Call("look" if n % 4 == 3 else "work", {"n": str(n)}, id=f"call_{n}")], delay=0.02)

    def after(self, moment: float) -> float | None:
        """When it was asked next."""
        return next((at for at, _ in self.asked if at > moment), None)


@pytest.mark.fault(
    "Workers",
    "A worker is killed three times at random moments of a long run.",
    "The run answers. Every tool has its result once, and each kill costs at most one model call.",
)
@pytest.mark.slow
@pytest.mark.alone
async def test_a_run_survives_three_kills_at_random_moments(engine: Engine) -> None:
    seed = int(os.environ.get("TEST_SEED", random.randrange(10**6)))
    dice = random.Random(seed)
    print(f"seed {seed}")
    model = Model()
    async with OpenAIServer(model) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_TOOL_SECONDS": str(TOOL_SECONDS)}
        worker = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", "Work.")
        # Kills somewhere in the first, second and third quarter, at no particular point of an iteration.
        for kill in range(KILLS):
            progress = kill * ITERATIONS // 4 + dice.randrange(1, ITERATIONS // 4)
            await eventually(
                lambda reached=progress: max((n for _, n in model.asked), default=0) >= reached, deadline=60
            )
            await asyncio.sleep(dice.uniform(0, 0.6))
            await worker.kill()
            killed = time.monotonic()
            worker = await engine.process("counting", **settings)
            served = time.monotonic()
            asked = await eventually(lambda since=killed: model.after(since), deadline=60, what="a model call")
            Recovery(killed, served, asked - TOOL_SECONDS).assert_in_time()
        response = await asyncio.wait_for(run.result(), 120)
        stats = server.stats
    print(f"model calls {stats.requests}, answered whole {stats.completed}")

    assert response.content == "All done."
    assert response.iterations == ITERATIONS + 1
    assert_closed(response.messages)
    said = results(response.messages)
    assert len(said) == ITERATIONS
    for n, text in enumerate(said):
        whole = f"looked {n}" if n % 4 == 3 else f"worked {n}"
        assert text == whole or (n % 4 != 3 and text.startswith("OutcomeUnknown: work")), (n, text)

    # Nothing that is not idempotent ran twice, and what the transcript calls unknown had really begun.
    begun = engine.ledger.counts("work")
    assert set(begun) == {str(n) for n in range(ITERATIONS) if n % 4 != 3}
    assert set(begun.values()) == {1}
    looked = engine.ledger.counts("look")
    assert sum(looked.values()) - len(looked) <= KILLS
    assert sum(text.startswith("OutcomeUnknown") for text in said) <= KILLS

    # A call is repeated only if the kill came before its reply had been received and recorded.
    asked_at = Counter(n for _, n in model.asked)
    assert set(asked_at) == set(range(ITERATIONS + 1))
    assert sum(asked_at.values()) - len(asked_at) <= KILLS
    assert max(asked_at.values()) <= 2


def _iteration(request: dict[str, Any]) -> int:
    """How often the model has answered in this conversation."""
    return sum(message["role"] == "assistant" for message in request["messages"])


RUN_ROW = "SELECT status, head, result, updated_at FROM runs"
OUTCOMES = "SELECT count(*) FROM journal WHERE outcome IS NOT NULL"


async def _waiting(run: Run) -> bool:
    return (await run.status()).state == "idle"


async def _task_started(run: Run) -> bool:
    raw = (await run.handle.describe()).raw_description
    return raw.HasField("pending_workflow_task") and raw.pending_workflow_task.HasField("started_time")
