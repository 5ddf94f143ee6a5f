"""Every end of a run, and of its turn, as its followers read it: live, afterwards, and when no worker serves it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Client, Run
from perdure.errors import AuthenticationError, PerdureError, RunCancelledError, TranscriptCorruptedError
from perdure.testing import ScriptedProvider, fail
from perdure.types.events import ErrorEvent, Event, RunEvent, TurnEvent
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.engine import Engine
from tests.support.faults import sql
from tests.support.following import ANSWER, BEGIN, DEADLINE, Slow, all_of, assert_whole, next_of, run_end, shown
from tests.support.wait import eventually

End = Callable[[Run, Slow], Awaitable[None]]


async def finish(run: Run, model: Slow) -> None:
    model.gate.open()


async def fall(run: Run, model: Slow) -> None:
    model.error = AuthenticationError("no key")
    model.gate.open()


async def cancel(run: Run, model: Slow) -> None:
    await run.cancel()


async def terminate(run: Run, model: Slow) -> None:
    await run.handle.terminate(reason="enough")


ENDS: list[tuple[End, str, str, type[PerdureError] | None]] = [
    (finish, "completed", "completed", None),
    (fall, "failed", "failed", AuthenticationError),
    (cancel, "cancelled", "cancelled", RunCancelledError),
    (terminate, "terminated", "started", RunCancelledError),
]
"""What is done to a run, how it ends, the last event of its turn, and the error of a client that waits for it."""


def turn_state(events: list[Event]) -> str:
    return [event.state for event in events if isinstance(event, TurnEvent)][-1]


async def outcome(waiting: Awaitable[Any]) -> type[BaseException] | None:
    try:
        await waiting
    except PerdureError as error:
        return type(error)
    return None


async def timed(client: Client, agent: str, id: str, seconds: float = 2) -> Run:
    """A run that its server ends after so many seconds."""
    where: dict[str, Any] = {"id": id, "task_queue": client.task_queue}
    limit = timedelta(seconds=seconds)
    await client.temporal.start_workflow(
        WORKFLOW_TYPE, {"agent": agent, "message": "Go."}, execution_timeout=limit, **where
    )
    return client.run(id)


async def timed_and_begun(client: Client, agent: str, id: str) -> tuple[Run, str | None]:
    """One whose model is asked before that, and the turn. How long that takes says the machine."""
    for seconds in (2, 8, 32):
        run = await timed(client, agent, f"{id}-{seconds}", seconds)
        for event in await up_to(run.events(), "model.started"):
            return run, event.task_id
    raise AssertionError("no model was asked within 32 s")


async def up_to(events: AsyncIterator[Event], type: str) -> list[Event]:
    """The first of that type; none where there is none."""
    async with asyncio.timeout(DEADLINE):
        async for event in events:
            if event.type == type:
                return [event]
    return []


@pytest.mark.parametrize(
    ("end", "state", "of_turn", "error"), [*ENDS[:-1], pytest.param(*ENDS[-1], marks=pytest.mark.server)]
)
async def test_live_and_afterwards(
    engine: Engine, end: End, state: str, of_turn: str, error: type[PerdureError] | None
) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        run = await client.start("slow", "Go.")
        turn = run.turn()
        live, live_turn = run.events(), turn.events()
        for events in (live, live_turn):
            await next_of(events, "model.delta")
        await end(run, model)
        assert await outcome(run.result()) is error
        assert await outcome(turn.result()) is error
        said, said_of_turn = await all_of(live), await all_of(live_turn)
        late, late_of_turn = await all_of(client.run(run.id).events()), await all_of(client.run(run.id).turn().events())
        assert_whole(await all_of(run.events(wait=False)))
        again = await all_of(run.events(after=said[-1].seq))
    assert run_end(said) == run_end(late)
    assert run_end(said).state == state
    assert end is not terminate or "enough" in (run_end(said).error or "")
    assert turn_state(late_of_turn) == of_turn
    assert of_turn == "started" or turn_state(said_of_turn) == of_turn
    assert {event.task_id for event in [*said_of_turn, *late_of_turn]} == {turn.task_id}
    # What the worker of a terminated run says when it hears of it comes behind.
    assert {event.type for event in again} <= ({"model.retracted"} if end is terminate else set())


def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on: no worker is there to answer, and no call need wait five seconds for it."""
    monkeypatch.setattr("perdure.client.run.ANSWER_TIMEOUT", timedelta(seconds=1))


@pytest.mark.server
async def test_when_nobody_serves_it_any_more(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {state: Slow("One ", "two.") for _, state, _, _ in ENDS} | {"timed_out": Slow("One ", "two.")}
    agents = [Agent(state, model) for state, model in models.items()]
    async with engine.served(*agents) as client:
        runs = {state: await client.start(state, "Go.") for _, state, _, _ in ENDS}
        runs["timed_out"], turn = await timed_and_begun(client, "timed_out", f"late-{engine.task_queue}")
        named = {"timed_out": turn}
        for _, state, _, _ in ENDS:
            named[state] = (await next_of(runs[state].events(), "model.started")).task_id
        for end, state, _, _ in ENDS:
            await end(runs[state], models[state])
        errors = {state: await outcome(run.result()) for state, run in runs.items()}
    soon_given_up(monkeypatch)
    late = {state: client.run(run.id) for state, run in runs.items()}
    asked = [
        [
            all_of(run.events()),
            all_of(run.turn().events()),
            all_of(run.turn(named[state]).events()),
            outcome(run.turn().result()),
            outcome(run.turn(named[state]).result()),
        ]
        for state, run in late.items()
    ]
    answers = await asyncio.gather(*(asyncio.gather(*one) for one in asked))
    for state, (said, present, of_turn, *results) in zip(late, answers, strict=True):
        assert run_end(said).state == state
        assert present == of_turn
        assert {event.task_id for event in of_turn} == {named[state]}
        expected = {s: ended for _, s, ended, _ in ENDS} | {"timed_out": "started"}
        assert turn_state(of_turn) == expected[state]
        assert results == [errors[state]] * 2


@pytest.mark.server
async def test_a_finished_turn_of_a_terminated_session_when_nobody_serves_it_any_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        first = run.turn()
        await first.result()
        second = await run.send("Two?")
        await second.result()
        await run.handle.terminate()
    soon_given_up(monkeypatch)
    late = client.run(run.id)
    turns = [late.turn(), late.turn(first.task_id), late.turn(second.task_id)]
    responses = await asyncio.gather(*(turn.result() for turn in turns))
    assert [one.task_id for one in responses] == [second.task_id, first.task_id, second.task_id]
    for said in await asyncio.gather(*(all_of(turn.events()) for turn in turns)):
        assert shown(said)[-2:] == ["turn completed", "run idle"]


@pytest.mark.server
async def test_opened_again_and_ended_before_anybody_took_it_up(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider(lambda _: "Yes."))) as client:
        run = await client.start("talker", "One?", mode="session")
        first = run.turn()
        await first.result()
    await run.handle.terminate()
    await run.resume()
    await run.handle.terminate()
    late = client.run(run.id)
    said, present, past = await asyncio.gather(
        all_of(late.events()), all_of(late.turn().events()), all_of(late.turn(first.task_id).events())
    )
    assert shown(said)[-2:] == ["run idle", "run terminated"]
    assert present == []
    assert shown(past)[-2:] == ["turn completed", "run idle"]


@pytest.mark.server
async def test_nobody_ever_served_it(engine: Engine) -> None:
    client = await engine.client()
    run = await client.start("nobody", "Go.")
    following = asyncio.ensure_future(all_of(run.events()))
    turn = asyncio.ensure_future(all_of(run.turn().events()))
    await run.handle.terminate()
    assert shown(await following) == ["run terminated"]
    assert await turn == []


@pytest.mark.server
async def test_it_takes_too_long(engine: Engine) -> None:
    async with engine.served(Agent("slow", Slow("One ", "two."))) as client:
        run = await timed(client, "slow", f"late-{engine.task_queue}")
        said, of_turn = await asyncio.gather(all_of(run.events()), all_of(run.turn().events()))
    assert (run_end(said).state, run_end(said).error_type) == ("timed_out", "RunError")
    assert not [event for event in of_turn if isinstance(event, TurnEvent) and event.state != "started"]


async def test_a_failure_says_why_before_its_end(engine: Engine) -> None:
    async with engine.served(Agent("failing", ScriptedProvider([fail(AuthenticationError("no key"))]))) as client:
        run = await client.start("failing", "Go.")
        said = await all_of(run.events())
        of_turn = await all_of(run.turn().events())
    assert shown(said) == [*BEGIN, "model.started", "error", "turn failed", "run failed"]
    assert shown(of_turn) == shown(said)
    error, turn, end = said[-3:]
    assert isinstance(error, ErrorEvent)
    assert error.final
    assert isinstance(turn, TurnEvent)
    assert isinstance(end, RunEvent)
    assert {(one.error_type, one.error) for one in (error, turn, end)} == {("AuthenticationError", "no key")}


async def test_a_pause_is_no_end(engine: Engine) -> None:
    model = ScriptedProvider([fail(TranscriptCorruptedError("a node is missing")), "Done."])
    async with engine.served(Agent("pausing", model)) as client:
        run = await client.start("pausing", "Go.")
        events, of_turn = run.events(), run.turn().events()
        said, said_of_turn = [await next_of(events, "error")], [await next_of(of_turn, "error")]
        said.append(await next_of(events, "run"))
        assert run_end(said).state == "paused"
        assert "a node is missing" in (run_end(said).reason or "")
        so_far = await all_of(run.events(wait=False))
        assert shown(so_far)[-1] == "run paused"

        async def paused() -> bool:
            return (await run.status()).state == "paused"

        await eventually(paused, what="a paused run")
        await run.resume()
        said += await all_of(events)
        said_of_turn += await all_of(of_turn)
    assert shown(said) == ["error", "run paused", *ANSWER, "run completed"]
    assert shown(said_of_turn)[-4:] == [*ANSWER, "run completed"] or shown(said_of_turn)[-3:] == ANSWER
    assert_whole(await all_of(run.events()))


@pytest.mark.parametrize("wait", [True, False])
async def test_an_end_that_nobody_recorded(engine: Engine, wait: bool) -> None:
    async with engine.served(Agent("quick", ScriptedProvider(["Done."]))) as client:
        run = await client.start("quick", "Go.")
        await run.result()
    events = await all_of(run.events(wait=wait))
    assert shown(events) == [*BEGIN, *ANSWER, "run completed"]
    assert_whole(events)
    closed = (await run.handle.describe()).close_time
    assert closed is not None
    assert run_end(events).at[:19] == closed.isoformat()[:19]


@pytest.mark.slow
@pytest.mark.parametrize("wait", [True, False])
async def test_an_end_that_cannot_be_recorded_is_read_all_the_same(engine: Engine, wait: bool) -> None:
    async with engine.served(Agent("quick", ScriptedProvider(["Done."]))) as client:
        run = await client.start("quick", "Go.")
        await run.result()
    with contextlib.closing(sqlite3.connect(engine.store_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        events = await all_of(run.events(wait=wait))
        assert await all_of(run.events(events[-1].seq, wait=wait)) == []
    assert shown(events) == [*BEGIN, *ANSWER, "run completed"]
    assert_whole(events)


async def test_who_reads_what_there_is_writes_nothing(engine: Engine) -> None:
    async with engine.served(Agent("quick", ScriptedProvider(["Done."]))) as client:
        run = await client.start("quick", "Go.")
        await run.result()
    count = "SELECT count(*) FROM events"
    before = sql(engine.store_path, count)
    looked = await all_of(run.events(wait=False))
    assert (await run.status()).state == "completed"
    assert sql(engine.store_path, count) == before
    assert looked == await all_of(run.events())
    assert sql(engine.store_path, count) != before


async def test_everybody_reads_the_same_end(engine: Engine) -> None:
    async with engine.served(Agent("quick", ScriptedProvider(["Done."]))) as client:
        run = await client.start("quick", "Go.")
        live = asyncio.ensure_future(all_of(run.events()))
        others = [await engine.client() for _ in range(3)]
        late = [asyncio.ensure_future(all_of(other.run(run.id).events())) for other in others]
        lists = [await live, *(await asyncio.gather(*late)), await all_of(run.events(wait=False))]
    ends = [[event.model_dump() for event in one if event.type == "run"] for one in lists]
    assert all(one == ends[0] for one in ends)
    assert [event["state"] for event in ends[0]] == ["started", "completed"]
