"""Following one turn of a conversation, and arguments of calls while they are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import AuthenticationError, PerdureError, RunNotFoundError, TranscriptUnavailableError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, ToolCallDelta
from perdure.testing import ScriptedProvider, fail, scripted
from perdure.testing import hang as hang_reply
from perdure.types.events import MessageInjected, ModelDelta, TurnEvent
from perdure.types.interface import WORKFLOW_TYPE
from perdure.types.messages import ToolCallPart
from tests.support.engine import Engine
from tests.support.following import ANSWER, BEGIN, STEP, Slow, all_of, assert_whole, left_tasks, next_of, run_end, shown
from tests.support.scripts import Gate, calls_then, replied
from tests.support.wait import eventually

TURN = BEGIN[1:]
WAITING = [*ANSWER, "run idle"]


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_each_turn_of_a_session_has_its_own_events(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        turns = [run.turn()]
        said = [await all_of(turns[0].events())]
        for text in ("Two?", "Three?"):
            turns.append(await run.send(text))
            said.append(await all_of(turns[-1].events()))
        everything = await all_of(run.events(wait=False))
        late = [await all_of(run.turn(turn.task_id).events(wait=wait)) for turn in turns for wait in (True, False)]
    assert [shown(one) for one in said] == [[*BEGIN, *WAITING], [*TURN, *WAITING], [*TURN, *WAITING]]
    assert [{event.task_id for event in one} for one in said] == [{turn.task_id} for turn in turns]
    assert late == [said[0], said[0], said[1], said[1], said[2], said[2]]
    assert [event for one in said for event in one] == [event for event in everything if event.type != "model.delta"]


async def test_turns_that_are_asked_for_at_once(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        turns = await asyncio.gather(*(run.send(f"Number {n}?") for n in range(3)))
        said = await asyncio.gather(*(all_of(turn.events()) for turn in turns))
    for turn, one in zip(turns, said, strict=True):  # some may have joined a turn
        assert {event.task_id for event in one} == {turn.task_id}
        assert shown(one)[-1] == "run idle"
    heard = {event.content for one in said for event in one if isinstance(event, MessageInjected)}
    assert heard >= {"Number 0?", "Number 1?", "Number 2?"}


async def test_a_turn_so_far_and_from_a_number_on(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        run = await client.start("slow", "Go.", mode="session")
        turn = run.turn()
        events = turn.events()
        delta = await next_of(events, "model.delta")
        there = await all_of(turn.events(wait=False))
        assert shown(there, deltas=True) == [*BEGIN, "model.started", "model.delta"]
        behind = turn.events(after=delta.seq)
        model.gate.open()
        assert await all_of(behind) == await all_of(events)
        assert shown(await all_of(turn.events(after=there[-2].seq))) == [
            "model.completed",
            "turn completed",
            "run idle",
        ]


async def test_a_turn_of_a_plain_temporal_clients_run(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(["Yes."]))) as client:
        start = {"agent": "talker", "message": "One?", "mode": "session"}
        where: dict[str, Any] = {"id": f"plain-{engine.task_queue}", "task_queue": engine.task_queue}
        await client.temporal.start_workflow(WORKFLOW_TYPE, start, **where)
        assert shown(await all_of(client.run(where["id"]).turn().events())) == [*BEGIN, *WAITING]


@pytest.mark.server
async def test_a_turn_that_continues_as_new(engine: Engine) -> None:
    model = ScriptedProvider(calls_then(9, "look"))
    async with engine.served(Agent("long", model, tools=[look])) as client:
        run = await client.start("long", "Go.", mode="session", max_history_events=20)
        events = await all_of(run.turn().events())
        assert (await client.run(run.id).handle.describe()).run_id != run.handle.result_run_id
    assert shown(events) == [*BEGIN, *(STEP * 9), *WAITING]
    assert_whole(events)


async def test_a_client_without_a_store_follows_no_turn(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(["Yes."]))) as client:
        run = await client.start("talker", "One?", mode="session")
        bare = await engine.client(store=False)
        with pytest.raises(TranscriptUnavailableError):
            await all_of(bare.run(run.id).turn().events())


async def test_a_turn_that_was_cut_off_by_the_end_of_its_execution(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        run = await client.start("slow", "Go.", mode="session")
        turn = run.turn()
        events = turn.events()
        await next_of(events, "model.delta")
        await run.handle.terminate()
        with pytest.raises(PerdureError):
            await turn.result()
        await eventually(lambda: model.gate.left, what="a worker that has heard of it")  # else it may give its answer
        model.gate.open()
        await run.resume()
        again = await run.send("Again.")
        assert shown(await all_of(again.events()))[-3:] == WAITING[-3:]
        cut = await all_of(events)
        assert {event.task_id for event in await all_of(turn.events())} == {turn.task_id}
    assert not [event for event in cut if isinstance(event, TurnEvent)]


async def test_behind_its_end_a_turn_has_nothing_more(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        turn = run.turn()
        events = await all_of(turn.events())
        await (await run.send("Two?")).result()
        assert await all_of(turn.events(after=events[-1].seq)) == []
        assert await all_of(turn.events(after=events[-1].seq + 1000)) == []
        assert await all_of(turn.events(after=events[-3].seq)) == events[-2:]


async def test_a_turn_that_nobody_knows(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        await run.turn().result()
        for wait in (True, False):
            with pytest.raises(RunNotFoundError, match="no turn 'other'"):
                await all_of(run.turn("other").events(wait=wait))


async def test_a_message_that_joins_while_the_turn_ends_is_in_it(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        if replied(request) == 0:
            await gate()
        return f"Answer {replied(request) + 1}."

    async with engine.served(Agent("talker", ScriptedProvider(reply))) as client:
        run = await client.start("talker", "One?", mode="session")
        turn = run.turn()
        events = turn.events()
        await next_of(events, "model.started")
        await run.inject("And two?")  # the model is giving its answer: that is none any more
        gate.open()
        rest = await all_of(events)
        response = await turn.result()
    assert response.content == "Answer 2."
    assert [event.content for event in rest if isinstance(event, MessageInjected)] == ["And two?"]
    assert shown(rest)[-3:] == ["model.completed", "turn completed", "run idle"]
    ends = [event.content for event in rest if isinstance(event, TurnEvent) and event.state == "completed"]
    assert ends == ["Answer 1.", "Answer 2."]


async def test_a_turn_that_is_interrupted(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider([hang_reply("Half of it", after=4), "Yes."]))) as client:
        run = await client.start("talker", "One?", mode="session")
        events = run.turn().events()
        await next_of(events, "model.delta")
        await run.interrupt()
        rest = await all_of(events)
        assert shown(rest) == ["model.retracted", "turn completed", "run idle"]
        turn = await run.send("Two?")
        assert shown(await all_of(turn.events())) == [*TURN, *WAITING]


@pytest.mark.server
async def test_who_follows_a_turn_hears_of_its_end_when_its_workers_are_gone(engine: Engine) -> None:
    async with engine.served(Agent("slow", Slow("One ", "two."))) as client:
        run = await client.start("slow", "Go.", mode="session")
        events = run.turn().events()
        await next_of(events, "model.delta")
    await run.handle.terminate()
    assert {event.type for event in await all_of(events)} <= {
        "model.retracted",
        "model.started",
        "model.delta",
        "error",
    }


class Writes:
    """Calls ``keep`` with arguments that come piece by piece."""

    def __init__(self, *pieces: str) -> None:
        self.gates = [Gate() for _ in pieces]
        self._pieces = pieces

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if replied(request):
            yield Completed((), model=request.model)
            return
        for n, (piece, gate) in enumerate(zip(self._pieces, self.gates, strict=True)):
            yield ToolCallDelta(0, id="c" if n == 0 else "", name="keep" if n == 0 else "", arguments=piece)
            await gate()
        arguments = {"name": "Ana", "tags": ["a", "b"]}
        yield Completed((ToolCallPart(id="c", name="keep", arguments=arguments),), model=request.model)


@tool
async def keep(name: str, tags: list[str]) -> str:
    """Keep it."""
    return f"{name}: {', '.join(tags)}"


async def test_arguments_as_far_as_they_are_written_also_from_the_middle(engine: Engine) -> None:
    model = Writes('{"name": "A', 'na", "ta', 'gs": ["a", ', '"b"]}')
    async with engine.served(Agent("keeper", model, tools=[keep])) as client:
        run = await client.start("keeper", "Go.")
        events = run.events()
        seen: list[Any] = []
        for number, gate in enumerate(model.gates):
            delta = await next_of(events, "model.delta")
            assert isinstance(delta, ModelDelta)
            seen.append(delta.partial)
            if number == 1:  # a follower comes when two pieces are gone
                late = run.events(after=delta.seq)
                coming = asyncio.ensure_future(anext(late))
            if number == 2:  # and has the third before there is the whole reply in its place
                came = await coming
            gate.open()
        rest = [came, *(await all_of(late))]
        everything = await all_of(run.events())
    assert seen == [{"name": "A"}, {"name": "Ana"}, {"name": "Ana", "tags": ["a"]}, {"name": "Ana", "tags": ["a", "b"]}]
    assert isinstance(came, ModelDelta)
    assert came.partial == {"name": "Ana", "tags": ["a"]}
    assert shown(rest)[-1] == "run completed"
    assert_whole(everything)


@pytest.mark.server
async def test_who_follows_is_not_kept_waiting_for_a_turn_to_begin(engine: Engine) -> None:
    client = await engine.client()
    run = await client.start("talker", "One?")
    following = asyncio.ensure_future(all_of(run.turn().events()))
    async with engine.served(Agent("talker", ScriptedProvider(["Yes."]))):
        assert shown(await following)[-2:] == ["model.completed", "turn completed"]


async def test_a_follower_that_leaves_takes_its_work_with_it(engine: Engine) -> None:
    async with engine.served(Agent("slow", Slow("One ", "two."))) as client:
        run = await client.start("slow", "Go.")
        turn = run.turn()
        for events in (run.events(), turn.events()):
            await next_of(events, "model.delta")
            await events.aclose()
        following = asyncio.ensure_future(all_of(run.events(after=10_000)))
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await eventually(lambda: not left_tasks(), what="no task that is left")
        await run.cancel()
        with pytest.raises(PerdureError):
            await run.result()


async def test_scripted_sessions_ends_and_text() -> None:
    agent = Agent("talker", "openai:any")
    replies: list[Any] = ["One.", "Two.", fail(AuthenticationError("no key"))]
    async with scripted(agent, replies) as script:
        first = await script.send("One?", id="s")
        events = first.run.events()
        assert shown(await all_of(first.events())) == [*BEGIN, *ANSWER, "run idle"]
        second = await script.send("Two?", id="s")
        assert shown(await all_of(second.events())) == [*BEGIN[1:], *ANSWER, "run idle"]
        await first.run.handle.terminate()
        assert run_end(await all_of(events)).state == "terminated"
        with pytest.raises(AuthenticationError):
            async for _ in agent.stream("Three?"):
                pass
