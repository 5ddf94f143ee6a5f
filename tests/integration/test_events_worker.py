"""What workers tell the store while runs go on: read from the store, as anybody else would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Client, ToolContext, tool
from perdure.errors import AuthenticationError, MaxIterationsError, PerdureError, RunCancelledError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.testing import ScriptedProvider, call, cut, fail, hang, scripted
from perdure.types.events import (
    ErrorEvent,
    Event,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    RunEvent,
    ToolProgress,
    TurnEvent,
    decode_event,
)
from perdure.types.messages import TextPart
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then
from tests.support.wait import eventually


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def told(client: Client, id: str) -> list[Event]:
    """All events of a run that are there."""
    rows = await (await client.store()).read_events(id)
    read = [decode_event(id, row.seq, row.task_id, row.type, row.body, row.spans) for row in rows]
    return [event for event in read if event is not None]


def shown(events: list[Event]) -> list[str]:
    return [f"{event.type} {state}" if (state := getattr(event, "state", "")) else event.type for event in events]


async def until(client: Client, id: str, type: str, count: int = 1) -> Event:
    """The event number ``count`` of ``type``, when it is there."""

    found: list[Event] = []

    async def there() -> bool:
        found[:] = [event for event in await told(client, id) if event.type == type]
        return len(found) >= count

    await eventually(there, what=f"{type} number {count}")
    return found[count - 1]


class Slow:
    """Streams ``pieces`` of a reply; the gate holds it after each."""

    def __init__(self, *pieces: str) -> None:
        self.gate = Gate()
        self._pieces = pieces

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        for piece in self._pieces:
            yield TextDelta(piece)
            await self.gate()
        yield Completed((TextPart(text="".join(self._pieces)),), model=request.model)


BEGIN = ["run started", "turn started", "message.injected"]
STEP = ["model.started", "model.completed", "tool.started", "tool.completed"]
ANSWER = ["model.started", "model.completed", "turn completed"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_of_three_iterations(engine: Engine, stream: bool) -> None:
    agent = Agent("busy", ScriptedProvider(calls_then(2, "look")), tools=[look])
    async with engine.served(agent, stream=stream) as client:
        run = await client.start("busy", "Go.")
        response = await run.result()
        events = await told(client, run.id)
    assert shown(events) == [*BEGIN, *STEP, *STEP, *ANSWER]
    completed = [event for event in events if isinstance(event, ModelCompleted)]
    replaced = {n for event in completed for first, last in event.replaces for n in range(first, last + 1)}
    assert {event.seq for event in events} | replaced == set(range(1, events[-1].seq + 1)), "other gaps"
    assert [event.iteration for event in completed] == [1, 2, 3]
    assert completed[-1].head == response.head
    last = events[-1]
    assert isinstance(last, TurnEvent)
    assert (last.content, last.iterations, last.usage) == (response.content, 3, response.usage)
    assert {event.task_id for event in events} == {response.task_id}
    if not stream:
        assert [event.seq for event in events] == list(range(1, 15))


async def test_a_slow_reply_is_there_as_it_comes(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        run = await client.start("slow", "Go.")
        delta = await until(client, run.id, "model.delta")
        assert isinstance(delta, ModelDelta)
        assert (delta.text, delta.offset, delta.iteration) == ("One ", 0, 1)
        model.gate.open()
        await run.result()
        events = await told(client, run.id)
    assert shown(events) == [*BEGIN, *ANSWER]
    completed = events[4]
    assert isinstance(completed, ModelCompleted)
    assert completed.text == "One two."
    assert any(first <= delta.seq <= last for first, last in completed.replaces)


@pytest.mark.server
async def test_a_run_adds_no_event_to_its_history_for_those_who_follow(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        run = await client.start("slow", "Go.")
        await until(client, run.id, "model.delta")
        model.gate.open()
        await run.result()
        history = await run.handle.fetch_history()
    assert len([event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]) == 1
    assert len(history.events) == 11


async def test_a_stream_that_is_cut_is_taken_back(engine: Engine) -> None:
    gate = Gate()

    class Cut:
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            self.asked += 1
            if self.asked == 1:
                yield TextDelta("Half")
                await gate()
                return
            yield Completed((TextPart(text="Whole."),), model=request.model)

    async with engine.served(Agent("cut", Cut())) as client:
        run = await client.start("cut", "Go.")
        delta = await until(client, run.id, "model.delta")
        gate.open()
        await run.result()
        events = await told(client, run.id)
    assert shown(events) == [*BEGIN, "model.started", "error", "model.retracted", *ANSWER]
    _, error, retracted, again = events[3:7]
    assert isinstance(error, ErrorEvent)
    assert (error.error_type, error.final, error.attempt) == ("TruncatedStreamError", False, 1)
    assert isinstance(retracted, ModelRetracted)
    assert (retracted.reason, retracted.retracts) == ("TruncatedStreamError", ((delta.seq, delta.seq),))
    assert again.attempt == 2


@pytest.mark.server
async def test_what_a_killed_worker_streamed_is_taken_back_by_the_next(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    worker = await engine.process("streaming", TEST_GO=str(go))
    client = await engine.client()
    run = await client.start("slow", "Go.")
    delta = await until(client, run.id, "model.delta")
    await worker.kill()
    await engine.process("streaming", TEST_GO=str(go))
    await until(client, run.id, "model.started", 2)
    go.touch()
    await run.result()
    events = await told(client, run.id)
    assert shown(events) == [*BEGIN, "model.started", "model.retracted", *ANSWER]
    retracted, again, completed = events[4:7]
    assert isinstance(retracted, ModelRetracted)
    assert (retracted.reason, retracted.retracts) == ("WorkerLost", ((delta.seq, delta.seq),))
    assert again.attempt == 2
    assert isinstance(completed, ModelCompleted)
    assert completed.replaces[0][0] == delta.seq


async def test_an_interrupt_takes_back_what_was_streamed(engine: Engine) -> None:
    model = ScriptedProvider([hang("Half of it", after=4), "Done."])
    async with engine.served(Agent("talker", model)) as client:
        run = await client.start("talker", "Go.", mode="session")
        await until(client, run.id, "model.delta")
        turn = run.turn()
        await run.interrupt("Stop that.", by="ana")
        await turn.result()
        events = await told(client, run.id)
    after = ["model.retracted", "message.injected", *ANSWER, "run idle"]
    assert [name for name in shown(events) if name != "model.delta"] == [*BEGIN, "model.started", *after]
    retracted = next(event for event in events if isinstance(event, ModelRetracted))
    assert retracted.reason == "Interrupted"


async def test_a_turn_that_is_stopped_ends(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider([hang()]))) as client:
        run = await client.start("talker", "Go.", mode="session")
        await until(client, run.id, "model.started")
        await run.interrupt()
        await until(client, run.id, "run", 2)
        events = await told(client, run.id)
    assert shown(events) == [*BEGIN, "model.started", "turn completed", "run idle"]
    turn = events[-2]
    assert isinstance(turn, TurnEvent)
    assert turn.finish_reason == "interrupted"


async def test_a_tool_that_fails_and_one_that_is_not_there(engine: Engine) -> None:
    @tool
    async def broken() -> str:
        """Fail."""
        raise ValueError("it is broken")

    replies: list[Any] = [[call("broken"), call("nowhere")], "Done."]
    async with engine.served(Agent("clumsy", ScriptedProvider(replies), tools=[broken])) as client:
        run = await client.start("clumsy", "Go.")
        await run.result()
        events = await told(client, run.id)
    said = [event for event in events if event.type == "tool.completed"]
    assert [event.name for event in said] == ["broken", "nowhere"]
    assert said[0].content == "ValueError: it is broken"
    assert said[1].content.startswith("tool not found: nowhere")
    assert all(event.is_error for event in said)


@pytest.mark.parametrize("inline", [True, False])
async def test_progress(engine: Engine, inline: bool) -> None:
    gate = Gate()

    @tool(inline=inline)
    async def work(ctx: ToolContext) -> str:
        """Work."""
        ctx.progress("half", {"done": 1})
        await gate()
        ctx.progress("all")
        return "worked"

    async with engine.served(Agent("busy", ScriptedProvider(calls_then(1, "work")), tools=[work])) as client:
        run = await client.start("busy", "Go.")
        progress = await until(client, run.id, "tool.progress")
        assert isinstance(progress, ToolProgress)
        assert (progress.message, progress.data, progress.name) == ("half", {"done": 1}, "work")
        gate.open()
        await run.result()
        events = await told(client, run.id)
    assert [event.message for event in events if isinstance(event, ToolProgress)] == ["half", "all"]


async def test_a_session_waits_and_is_closed(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        await run.turn().result()
        await (await run.send("Two?")).result()
        await run.close()
        await run.result()
        events = await told(client, run.id)
    turn = ["turn started", "message.injected", *ANSWER, "run idle"]
    assert shown(events) == ["run started", *turn, *turn, "run completed"]
    assert len({event.task_id for event in events}) == 2


async def test_a_run_that_is_cancelled(engine: Engine) -> None:
    model = ScriptedProvider([hang("Half of it", after=4)])
    async with engine.served(Agent("talker", model)) as client:
        run = await client.start("talker", "Go.")
        await until(client, run.id, "model.delta")
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        events = await told(client, run.id)
    assert shown(events)[-3:] == ["model.retracted", "turn cancelled", "run cancelled"]


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        (Agent("stopped", ScriptedProvider([fail(AuthenticationError("no key"))])), AuthenticationError),
        (
            Agent("stopped", ScriptedProvider(calls_then(9, "look")), tools=[look], max_iterations=1, on_limit="error"),
            MaxIterationsError,
        ),
    ],
)
async def test_a_run_that_fails(engine: Engine, agent: Agent, error: type[PerdureError]) -> None:
    async with engine.served(agent) as client:
        run = await client.start("stopped", "Go.")
        with pytest.raises(error):
            await run.result()
        events = await told(client, run.id)
    if error is AuthenticationError:
        assert shown(events) == [*BEGIN, "model.started", "error", "turn failed", "run failed"]
    else:
        assert shown(events) == [*BEGIN, *STEP, "limit", "turn failed", "run failed"]
    last = events[-1]
    assert isinstance(last, RunEvent)
    assert last.error_type == error.__name__


async def test_the_testing_kit_tells_the_same() -> None:
    agent = Agent("busy", "openai:any", tools=[look])
    replies: list[Any] = [cut("Half of it", after=4), call("look"), "Done."]
    async with scripted(agent, replies) as script:
        run = await script.client.start("busy", "Go.")
        await run.result()
        events = await told(script.client, run.id)
    assert shown(events) == [*BEGIN, "model.started", "error", *STEP, *ANSWER]
