"""The last turn of a long session costs what its first cost, in history and in what each activity is sent."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent

from perdure import Agent, Client, tool
from perdure.loop.payload_limits import PAST_TURNS
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import ToolCallPart
from perdure.types.wire import CLOSE_ACTIVITY, MODEL_ACTIVITY
from tests.support.engine import Engine
from tests.support.histories import histories, idle_tasks
from tests.support.scripts import replied
from tests.support.wait import eventually

pytestmark = pytest.mark.server

COMPARED = 10
"""Turns at the beginning, without the first one, which opens the conversation; and at the end."""
ID = 100
"""Bytes that an id of a message, and of the turn that took it, may take in what is carried over."""
WORDS = "lorem ipsum " * 40


@tool
async def look(n: int) -> str:
    """Look something up."""
    return f"{n:03}: {WORDS}"


def reply(request: ModelRequest) -> Any:
    n = replied(request)
    if request.messages[-1].role == "user":
        return ToolCallPart(id=f"call_{n:03}", name="look", arguments={"n": n})
    return f"{n:03} {WORDS}"


@dataclass
class Turn:
    """What one turn added to history."""

    events: int = 0
    size: int = 0
    asked: int = 0
    """Bytes that its model activities were sent."""


async def talk(client: Client, id: str, turns: int) -> list[float]:
    """So many turns; the seconds of each. The next message is sent when the run waits for it."""
    seconds: list[float] = []

    async def waits() -> bool:
        return (await client.run(id).status()).state == "idle"

    for n in range(turns):
        begun = time.monotonic()
        turn = await client.send("talker", f"message {n:03}: {WORDS}", id=id, message_id=f"m{n:03}")
        assert (await turn.result()).iterations == 2
        seconds.append(time.monotonic() - begun)
        await eventually(waits)
    return seconds


def split(events: list[HistoryEvent]) -> list[Turn]:
    """The events by turns: each begins where its message was taken.

    Workflow tasks that only refused a read of the status are left out: their number depends on when clients ask.
    """
    turns: list[Turn] = []
    idle = {event_id for task in idle_tasks(events) for event_id in task.events}
    for event in events:
        if event.event_id in idle:
            continue
        if event.HasField("workflow_execution_update_accepted_event_attributes"):
            turns.append(Turn())
        if not turns:
            continue
        turns[-1].events += 1
        turns[-1].size += event.ByteSize()
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name in (MODEL_ACTIVITY, CLOSE_ACTIVITY):
            turns[-1].asked += scheduled.input.ByteSize()
    return turns


def talker() -> Agent:
    return Agent("talker", ScriptedProvider(reply), tools=[look])


@pytest.mark.slow
@pytest.mark.parametrize("count", [22, 100])
async def test_the_last_turn_costs_what_the_first_cost(engine: Engine, count: int) -> None:
    async with engine.served(talker()) as client:
        run = client.run(f"long-{engine.task_queue}")
        seconds = await talk(client, run.id, count)
        (history,) = await histories(run)
        messages = await run.transcript()
    assert len(messages) == 4 * count
    turns = split(list(history.events))
    assert len(turns) == count
    early, late = turns[1 : COMPARED + 1], turns[-COMPARED:]
    for name, tolerance in (("events", 0), ("asked", 32), ("size", 64)):
        # A turn in which the worker was slow has a task that timed out, and is not what the median says.
        first, last = (median(getattr(turn, name) for turn in some) for some in (early, late))
        print(f"{name} of a turn: {first:g} at the beginning, {last:g} at the end")
        assert abs(last - first) <= tolerance, name  # what grows are event ids: "9", "99", "999"
    print(f"wall per turn: {_wall(seconds[:10])} at the beginning, {_wall(seconds[-10:])} at the end")


@pytest.mark.slow
async def test_executions_of_a_long_session_do_not_grow(engine: Engine) -> None:
    """Continue-as-new carries references, ids and the last turns' answers, not the conversation."""
    async with engine.served(talker()) as client:
        run = await client.start("talker", id=f"short-{engine.task_queue}", mode="session", max_history_events=100)
        await talk(client, run.id, turns=60)
        carried = [_carried(history.events[0]) for history in (await histories(run))[1:]]
    print(f"carried over, in bytes: {carried}")
    assert len(carried) > 10
    full = next(index for index in range(len(carried)) if 5 * index > PAST_TURNS)  # five turns are 100 events
    for before, after in pairwise(carried[full:]):
        assert after - before <= 10 * ID, "more than the ids of the messages since"


def _carried(event: HistoryEvent) -> int:
    return event.workflow_execution_started_event_attributes.input.ByteSize()


def _wall(seconds: list[float]) -> str:
    return f"{1000 * median(seconds):.0f} ms"
