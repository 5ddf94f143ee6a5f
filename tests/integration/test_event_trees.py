"""A client that follows a run sees what its subagents do: in one order, with the way down to each."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from perdure import Agent, Run, tool
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.testing import ScriptedProvider, call, scripted
from perdure.types.events import Event, ModelCompleted, ModelDelta, RunEvent, ToolStarted, TurnEvent
from perdure.types.messages import TextPart
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.following import all_of, assert_whole, run_end, shown
from tests.support.wait import eventually
from tests.workers.following import written


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


def told(request: ModelRequest) -> str:
    """What the calls came to."""
    return " | ".join(part.content for part in request.messages[-1].tool_results)


def answering(name: str, *calls: Any) -> ScriptedProvider:
    """Makes ``calls``, and says what they came to, in every conversation anew."""
    return ScriptedProvider(lambda r: told(r) if r.messages[-1].role == "tool" else list(calls) or f"{name} says so")


def desk() -> Agent:
    """A coordinator with two researchers at once, of whom each looks something up and asks a critic."""
    critic = Agent("critic", answering("critic"))
    asks = call("look", what="x"), call("call_critic", task="Is it so?")
    researcher = Agent("researcher", answering("researcher", *asks), tools=[look], subagents=[critic])
    both = call("call_researcher", task="a"), call("call_researcher", task="b")
    return Agent("desk", answering("desk", *both), subagents=[researcher])


def seen_from(events: list[Event], steps: int, id: str) -> list[Event]:
    """What a follower sees of run ``id``, which is so many steps below the one of ``events``."""
    below = [one for one in events if one.context_id == id or one.context_id.startswith(f"{id}/")]
    return [one.model_copy(update={"path": one.path[steps:]}) for one in below]


async def one_by_one(run: Run, **how: Any) -> list[Event]:
    """Goes away after every event, and comes back behind it."""
    seen: list[Event] = []
    while not (seen and isinstance(seen[-1], RunEvent) and not seen[-1].path and seen[-1].state == "completed"):
        async with aclosing(run.events(after=seen[-1].seq if seen else 0, **how)) as events:
            async for event in events:
                seen.append(event)
                break
    return seen


def whole_replies(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, ModelDelta)]


@pytest.mark.server  # reads the whole history
async def test_a_parents_stream_has_what_its_subagents_do(engine: Engine) -> None:
    agent = desk()
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        live, reconnecting, own = await asyncio.gather(
            all_of(run.events()), one_by_one(run), all_of(run.events(children=False))
        )
        late = await all_of(run.events(wait=False))
        ops = [(1,), (2,), (1, 2), (2, 2)]
        ids = {way: await find_child_id(client, run.id, *way) for way in ops}
        of = {ids[way]: await all_of(client.run(ids[way]).events()) for way in ops[:3]}
        turn = await all_of(run.turn().events())
        status = await run.status()
        child = (await client.run(await find_child_id(client, run.id, 1)).handle.fetch_history()).events
    assert any(b"lineage" in event.SerializeToString() for event in child)
    for events in (live, reconnecting, late):
        assert_whole(events)
    assert whole_replies(live) == whole_replies(reconnecting) == late
    assert own == [event for event in late if not event.path]
    assert own[-1] == late[-1] == live[-1]
    assert shown(own)[-1] == "run completed"
    of_turn = [event for event in late if event.path or event.task_id == status.task_id]
    assert [event for event in turn if event.seq <= late[-1].seq] == of_turn  # ends of children are told later

    def paths(context_id: str) -> set[tuple[tuple[str, str, str | None], ...]]:
        mine = [event.path for event in late if event.context_id == context_id]
        return {tuple((step.agent, step.call_id, step.task_id) for step in path) for path in mine}

    started = {event.child_context_id: event for event in late if isinstance(event, ToolStarted)}
    for name in ids.values():
        [path] = paths(name)
        called = started[name]
        assert path[-1][1:] == (called.call_id, called.task_id)
        assert [step[0] for step in path] == ["researcher", "critic"][: len(path)]
        its_turns = {event.task_id for event in late if event.context_id == name}
        assert status.task_id not in its_turns
        mine = [event for event in late if event.context_id == name]
        assert shown(mine)[:3] == ["run started", "turn started", "message.injected"]
        assert shown(mine)[-1] == "turn completed"
    for way, name in list(ids.items())[:3]:
        *there, end = of[name]  # which is recorded as that run itself is followed
        assert there == seen_from(late, len(way), name)
        assert (end.type, end.path) == ("run", ())
    assert paths(run.id) == {()}


async def test_a_turn_has_its_own_subagents(engine: Engine) -> None:
    agent = Agent("desk", answering("desk", call("call_critic", task="x")), subagents=[Agent("critic", answering("c"))])
    async with engine.served(agent) as client:
        first = await client.send("desk", "One.", id="talk")
        said = [await all_of(first.events())]
        second = await first.run.send("Two.")
        said.append(await all_of(second.events()))
        everything = await all_of(first.run.events(wait=False))
        again = [await all_of(turn.events(wait=False)) for turn in (first, second)]
        alone = await all_of(second.events(wait=False, children=False))
        await first.run.close()
        await first.run.result()
    assert_whole(everything)
    for turn, events in zip((first, second), again, strict=True):
        own = [event for event in events if not event.path]
        below = [event for event in events if event.path]
        assert {event.task_id for event in own} == {turn.task_id}
        assert {event.path[0].task_id for event in below} == {turn.task_id}
        assert shown(below)[-1] == "turn completed"
    assert [whole_replies(events) for events in said] == again
    assert alone == [event for event in again[1] if not event.path]
    assert sorted(event.seq for events in again for event in events) == [event.seq for event in everything]


class Words:
    """Streams words for as long as it is let."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enough = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        text = ""
        while not self.enough.is_set():
            text += f"{self.name} "
            yield TextDelta(f"{self.name} ")
            await asyncio.sleep(0.002)  # a pace, as a provider has one: nothing waits for it
        yield Completed((TextPart(text=text),), model=request.model)


async def collect(events: AsyncIterator[Event], seen: list[Event]) -> None:
    """Follow to the end; what there was so far is in ``seen``."""
    async for event in events:
        seen.append(event)  # noqa: PERF401  # at once, for who looks meanwhile


def heard(events: list[Event]) -> Counter[str]:
    """How many deltas of each subagent are among ``events``."""
    return Counter(event.context_id for event in events if isinstance(event, ModelDelta) and event.path)


async def test_deltas_of_subagents_that_stream_at_once(engine: Engine) -> None:
    """Each reply's deltas join to its text, in the middle of the others', also for who comes back at every event."""
    words = [Words(f"w{n}") for n in range(5)]
    agents = [Agent(one.name, one) for one in words]
    agent = Agent("desk", answering("desk", *[call(f"call_{one.name}", task="x") for one in words]), subagents=agents)
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        again = asyncio.ensure_future(one_by_one(run))
        seen: list[Event] = []
        following = asyncio.ensure_future(collect(run.events(), seen))
        await eventually(lambda: len(few := heard(seen)) == 5 and min(few.values()) >= 5, what="deltas of each")
        ids = [await find_child_id(client, run.id, op) for op in range(1, 6)]
        of_child = asyncio.ensure_future(all_of(client.run(ids[2]).events()))
        for one in words:
            one.enough.set()
        response = await run.result()
        await following
        reconnecting, child = await again, await of_child
        late = await all_of(run.events(wait=False))
    for events in (seen, reconnecting, late):
        assert_whole(events)
    whole = {event.context_id: event for event in late if isinstance(event, ModelCompleted) and event.path}
    assert response.content == " | ".join(whole[name].text for name in ids)
    for context_id, reply in whole.items():
        deltas = [event for event in seen if isinstance(event, ModelDelta) and event.context_id == context_id]
        assert len(deltas) >= 5
        assert reply.text.startswith("".join(event.text for event in deltas))
        numbers = {number for first, last in reply.replaces for number in range(first, last + 1)}
        assert numbers >= {event.seq for event in deltas}
    assert [event for event in whole_replies(child) if event.seq <= run_end(late).seq] == [
        event for event in seen_from(late, 1, await find_child_id(client, run.id, 3)) if event.seq <= run_end(late).seq
    ]


@pytest.mark.slow
@pytest.mark.server
async def test_a_child_killed_with_its_worker_while_followers_come_and_go(engine: Engine) -> None:
    lost = await engine.process("judging")
    client = await engine.client()
    run = await client.start("boss", "Go.")
    file = engine.folder / "seen.jsonl"
    follower = {"TEST_RUNS": json.dumps([run.id, await find_child_id(client, run.id, 1)]), "TEST_SEEN": str(file)}
    live = [asyncio.ensure_future(all_of(run.events())), asyncio.ensure_future(one_by_one(run))]
    await eventually(lambda: engine.ledger.entries("weigh") != [], what="the tool of the child runs")
    first = await engine.process("following", **follower)  # a run that is not there yet cannot be followed
    await eventually(lambda: len(written(file).get(0, [])) > 5, what="it is followed")
    await asyncio.gather(first.kill(), lost.kill())
    second = engine.spawn("following", **follower)
    await engine.process("judging")
    await run.result()
    await second.gone()
    seen, again = await asyncio.gather(*live)
    late = await all_of(run.events(wait=False))
    for events in (seen, again, written(file)[0], late):
        assert_whole(events)
    assert whole_replies(seen) == whole_replies(again) == whole_replies(written(file)[0]) == late
    assert whole_replies(written(file)[1]) == seen_from(late, 1, await find_child_id(client, run.id, 1))
    weighed = [event for event in late if isinstance(event, ToolStarted) and event.name == "weigh"]
    first_attempt, second_attempt = (event.attempt for event in weighed)
    assert first_attempt == 1 < second_attempt, "the killed worker may have been given the one between"
    assert {event.path[0].agent for event in weighed} == {"judge"}


async def test_only_its_own_text_is_a_runs_text(engine: Engine) -> None:
    agent = desk()
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        answer = (await run.result()).content
        turns = [event for event in await all_of(run.events(wait=False)) if isinstance(event, TurnEvent)]
    assert [event.content for event in turns if event.state == "completed" and not event.path] == [answer]
    assert len([event for event in turns if event.state == "completed"]) == 5


@pytest.mark.server  # reads the whole history
async def test_a_run_without_subagents_tells_what_it_told(engine: Engine) -> None:
    agent = Agent("alone", answering("alone", call("look", what="x")), tools=[look])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        await run.result()
        events = await all_of(run.events(wait=False))
        assert events == await all_of(run.events(wait=False, children=False))
        history = (await run.handle.fetch_history()).events
    assert all(b"lineage" not in event.SerializeToString() for event in history)
    assert all("path" not in event.model_dump_json() for event in events)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_the_testing_kit_tells_the_same() -> None:
    critic = Agent("critic", "openai:gpt-5-mini")
    agent = Agent("desk", "openai:gpt-5-mini", subagents=[critic])
    with scripted(agent, [call("call_critic", task="x"), "Done."], others={critic: ["Fine."]}) as script:
        run = await script.client.start("desk", "Go.")
        events = await all_of(run.events())
        own = await all_of(run.events(children=False))
        (below_it,) = await run.children()
        child = await all_of(below_it.events())
    assert_whole(events)
    below = [event for event in events if event.path]
    assert shown(below) == [
        *("run started", "turn started", "message.injected"),
        *("model.started", "model.completed", "turn completed"),
    ]
    assert {event.path[0].agent for event in below} == {"critic"}
    assert own == [event for event in events if not event.path]
    assert child[:-1] == seen_from(events, 1, below_it.id)


async def test_a_conversation_that_is_opened_again_calls_under_other_ids(engine: Engine) -> None:
    """What its subagents do belongs to the turn that called them, in whichever execution that was."""
    agent = Agent("desk", answering("desk", call("call_critic", task="x")), subagents=[Agent("critic", answering("c"))])
    async with engine.served(agent) as client:
        first = await client.send("desk", "One.", id=f"again-{engine.task_queue}")
        await first.result()
        await first.run.close()
        await first.run.result()
        second = await client.run(first.run.id).send("Two.")
        await second.result()
        whole = await all_of(second.run.events(wait=False))
        of = [await all_of(turn.events(wait=False)) for turn in (first, second)]
        await second.run.close()
        await second.run.result()
    assert_whole(whole)
    called = [event for event in whole if isinstance(event, ToolStarted)]
    ids = [str(event.child_context_id) for event in called]
    assert all(re.fullmatch(rf"{first.run.id}/[0-9a-f]{{12}}-1", name) for name in ids)
    assert len(set(ids)) == 2
    for turn, events, tool_started in zip((first, second), of, called, strict=True):
        below = [event for event in events if event.path]
        assert shown(below)[-1] == "turn completed"
        assert {(event.path[0].task_id, event.path[0].call_id) for event in below} == {
            (turn.task_id, tool_started.call_id)
        }
    assert [event for events in of for event in events if event.path] == [event for event in whole if event.path]
