"""Following runs: everything that happens, in order, to an end that comes however the run ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Agent, Client, ToolContext, tool
from perdure.errors import PerdureError, RunNotFoundError, StoreMismatchError, TranscriptUnavailableError
from perdure.ports.store import EventBatch, NewEvent
from perdure.testing import ScriptedProvider
from perdure.types.events import MessageInjected, ModelCompleted, ModelDelta, RunEvent, TurnEvent
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.engine import Engine
from tests.support.following import ANSWER, BEGIN, STEP, Slow, all_of, assert_whole, next_of, run_end, shown
from tests.support.scripts import Gate, calls_then


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_run_as_it_happens(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        run = await client.start("slow", "Go.")
        events = run.events()
        delta = await next_of(events, "model.delta")
        assert isinstance(delta, ModelDelta)
        assert delta.text == "One "
        there = await all_of(run.events(wait=False))
        assert shown(there, deltas=True) == [*BEGIN, "model.started", "model.delta"]
        model.gate.open()
        rest = await all_of(events)
    assert shown(rest) == ["model.completed", "turn completed", "run completed"]
    assert_whole(rest, after=delta.seq)


@pytest.mark.server
async def test_a_run_that_continues_as_new(engine: Engine) -> None:
    model = ScriptedProvider(calls_then(9, "look"))
    async with engine.served(Agent("long", model, tools=[look])) as client:
        run = await client.start("long", "Go.", max_history_events=20)
        events = await all_of(run.events())
        assert (await client.run(run.id).handle.describe()).run_id != run.handle.result_run_id
    assert shown(events) == [*BEGIN, *(STEP * 9), *ANSWER, "run completed"]
    assert_whole(events)


async def test_a_conversation_that_is_opened_again(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?")
        first = await all_of(run.events())
        assert run_end(first).state == "completed"
        turn = await run.send("Two?")
        await turn.result()
        second = await all_of(run.events(after=first[-1].seq))
        again = await all_of(client.run(run.id).events())
    assert shown(second) == [*BEGIN, *ANSWER, "run completed"]
    assert [event.seq for event in again] == [event.seq for event in [*first, *second]]
    assert_whole(again)


async def test_who_follows_a_session_meanwhile_follows_on_when_it_is_opened_again(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        events = run.events()
        await next_of(events, "turn")
        await next_of(events, "turn")
        await run.handle.terminate()
        with pytest.raises(PerdureError):
            await run.result()
        await run.resume()
        await (await run.send("Two?")).result()
        await run.close()
        await run.result()
        rest = await all_of(events)
    said = shown(rest)
    # The end of an execution may be read by a follower while the next is there already: then it is no end.
    assert [name for name in said if name != "run terminated"][-5:] == [*ANSWER, "run idle", "run completed"]
    assert said.count("run completed") == 1


# --- who cannot follow


async def test_a_run_that_nobody_knows(engine: Engine) -> None:
    async with engine.served(Agent("quick", ScriptedProvider([]))) as client:
        for wait in (True, False):
            with pytest.raises(RunNotFoundError):
                await all_of(client.run("nobody-knows").events(wait=wait))
        with pytest.raises(RunNotFoundError):
            await all_of(client.run("nobody-knows").turn().events())


async def test_a_run_of_long_ago_that_only_the_store_knows(engine: Engine) -> None:
    async with engine.served(Agent("quick", ScriptedProvider([]))) as client:
        store, events = await client.store(), [RunEvent(state="started"), RunEvent(state="completed")]
        await store.append(EventBatch("long-ago", [NewEvent(event) for event in events]))
        assert shown(await all_of(client.run("long-ago").events())) == ["run started", "run completed"]


async def test_a_client_without_a_store_or_with_another_one(engine: Engine, tmp_path: Path) -> None:
    async with engine.served(Agent("quick", ScriptedProvider(["Done."]))) as client:
        run = await client.start("quick", "Go.")
        bare = await engine.client(store=False)
        with pytest.raises(TranscriptUnavailableError):
            await all_of(bare.run(run.id).events())
        await run.result()
        other = Client(client.temporal, store_url=f"sqlite:///{tmp_path}/other.db")
        try:
            with pytest.raises(StoreMismatchError):
                await all_of(other.run(run.id).events())
        finally:
            await other.close()


# --- what comes in between


async def test_a_plain_temporal_clients_run(engine: Engine) -> None:
    async with engine.served(Agent("quick", ScriptedProvider(["Done."]))) as client:
        handle = await client.temporal.start_workflow(
            WORKFLOW_TYPE,
            {"agent": "quick", "message": "Go."},
            id=f"plain-{engine.task_queue}",
            task_queue=engine.task_queue,
        )
        assert shown(await all_of(client.run(handle.id).events())) == [*BEGIN, *ANSWER, "run completed"]


async def test_two_runs_at_once_do_not_mix(engine: Engine) -> None:
    async with engine.served(Agent("busy", ScriptedProvider(calls_then(3, "look")), tools=[look])) as client:
        runs = [await client.start("busy", f"Go {n}.") for n in range(2)]
        both = await asyncio.gather(*(all_of(run.events()) for run in runs))
    for run, events in zip(runs, both, strict=True):
        assert {event.context_id for event in events} == {run.id}
        assert shown(events) == [*BEGIN, *(STEP * 3), *ANSWER, "run completed"]
        assert_whole(events)


async def test_a_message_that_joins_is_told_before_the_reply_to_it(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        await gate()
        return "waited"

    async with engine.served(Agent("busy", ScriptedProvider(calls_then(1, "wait")), tools=[wait])) as client:
        run = await client.start("busy", "Go.")
        events = run.events()
        await next_of(events, "tool.started")
        await run.inject("And quickly.", id="m-1", by="ana")
        gate.open()
        rest = await all_of(events)
    assert shown(rest) == ["tool.completed", "message.injected", *ANSWER, "run completed"]
    joined = rest[1]
    assert isinstance(joined, MessageInjected)
    assert (joined.content, joined.id, joined.by) == ("And quickly.", "m-1", "ana")


async def test_long_replies_are_filled_in(engine: Engine) -> None:
    text = "long " * 20_000
    async with engine.served(Agent("long", ScriptedProvider(lambda _: text))) as client:
        run = await client.start("long", "One?", mode="session")
        await (await run.send("More?")).result()
        await run.close()
        await run.result()
        events = await all_of(run.events(wait=False))
        stored = await (await client.store()).read_events(run.id)
    replies = [event for event in events if isinstance(event, ModelCompleted)]
    turns = [event for event in events if isinstance(event, TurnEvent) and event.state == "completed"]
    assert {event.text for event in replies} == {text} == {event.content for event in turns}
    assert all(len(row.body) < len(text) for row in stored)
    assert_whole(events)


async def test_pages_are_read_to_their_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.event_reader.EVENTS_PER_PAGE", 3)
    async with engine.served(Agent("busy", ScriptedProvider(calls_then(5, "look")), tools=[look])) as client:
        run = await client.start("busy", "Go.")
        live = await all_of(run.events())
        late, so_far = await all_of(run.events()), await all_of(run.events(wait=False))
        turn = await all_of(run.turn().events())
    assert shown(live) == [*BEGIN, *(STEP * 5), *ANSWER, "run completed"]
    assert shown(late) == shown(so_far) == shown(live)
    assert shown(turn) == shown(live)[:-1]
    for events in (live, late, so_far):
        assert_whole(events)
