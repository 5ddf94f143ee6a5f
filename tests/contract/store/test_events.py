"""What every store promises about events: numbers, fencing, retraction, pruning, keys."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import StoreError
from perdure.ports.store import Commit, EventBatch, EventRow, NewEvent, Outcome, Store, build_batch_token
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from perdure.testing.store import MemoryStore
from perdure.types.events import (
    Event,
    LimitReached,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
    decode_event,
)
from tests.contract.store.conftest import Database
from tests.contract.store.reference import ReferenceStore

T1, T2, T3 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2, 3))
STARTED = ModelStarted(task_id="t", iteration=2, model="m")
RETRACTED = ModelRetracted(task_id="t", iteration=2, reason="RateLimitError")
COMPLETED = ModelCompleted(task_id="t", iteration=2, text="whole")
ENDED = RunEvent(state="terminated")


def delta(text: str = "x", attempt: int = 1) -> ModelDelta:
    return ModelDelta(task_id="t", iteration=2, text=text, attempt=attempt)


def batch(*events: Event | NewEvent, at: str = "", advances: bool = True, of: str = "c") -> EventBatch:
    new = [event if isinstance(event, NewEvent) else NewEvent(event) for event in events]
    return EventBatch(of, new, at, advances)


async def told(store: Store, of: str = "c") -> list[tuple[int, str]]:
    return [(row.seq, row.type) for row in await store.read_events(of)]


def read(row: EventRow, of: str = "c") -> Event:
    event = decode_event(of, row.seq, row.task_id, row.type, row.body, row.spans)
    assert event is not None
    return event


async def test_events_come_back_whole_and_in_order(store: Store):
    turn = TurnEvent(task_id="t", state="completed", content="zwölf 🙂", at=T1, iterations=3)
    assert await store.append(batch(RunEvent(state="started", agent="a"), turn))
    assert await store.append(batch(delta(), of="other"))
    assert await store.append(batch(LimitReached(limit=7)))
    first, second, third = await store.read_events("c")
    assert read(first) == RunEvent(context_id="c", seq=1, state="started", agent="a")
    assert read(second) == turn.model_copy(update={"context_id": "c", "seq": 2})
    assert read(third) == LimitReached(context_id="c", seq=3, limit=7)
    assert (first.task_id, second.task_id) == (None, "t")
    assert await told(store, "other") == [(1, "model.delta")]
    assert await store.read_events("nobody") == []


async def test_pages(store: Store):
    for n in range(30):
        await store.append(batch(*[delta(f"{n}-{i}") for i in range(10)]))
    rows: list[EventRow] = []
    while page := await store.read_events("c", after=rows[-1].seq if rows else 0, limit=70):
        assert len(page) <= 70
        rows += page
    assert [row.seq for row in rows] == list(range(1, 301))
    assert rows == await store.read_events("c")
    assert [row.seq for row in await store.read_events("c", limit=5)] == [1, 2, 3, 4, 5]
    assert [row.seq for row in await store.read_events("c", after=64, limit=64)] == list(range(65, 129))
    assert await store.read_events("c", after=300) == []


async def test_large_batches(store: Store):
    """20 MB of text in one, read in more than one page where that is too much at once."""
    texts = [chr(97 + n) * 2_000_000 for n in range(10)]
    assert await store.append(batch(*[delta(text) for text in texts]))
    rows: list[EventRow] = []
    while page := await store.read_events("c", after=len(rows)):
        rows += page
    assert [read(row).model_dump()["text"] for row in rows] == texts
    await store.append(batch(COMPLETED))
    assert [row.spans for row in await store.read_events("c")] == [((1, 10),)]


# --- fencing -----------------------------------------------------------------------------------------------------


def test_tokens_sort_as_the_times_do():
    in_order = [
        build_batch_token(T1, 1),
        build_batch_token(T1, 2),
        build_batch_token(T1, 10),
        build_batch_token(T1),
        build_batch_token(T2, 1),
    ]
    assert in_order == sorted(in_order)


async def test_a_batch_of_an_earlier_attempt_comes_too_late(store: Store):
    assert await store.append(batch(STARTED, at=build_batch_token(T1, 2)))
    for late in (build_batch_token(T1, 1), build_batch_token("2025", 9)):
        for advances in (True, False):
            assert not await store.append(batch(delta(), NewEvent(STARTED, "k"), at=late, advances=advances))
    assert await store.append(batch(NewEvent(STARTED, "k"), at=build_batch_token(T1, 2)))  # the key was not taken
    assert await told(store) == [(1, "model.started"), (2, "model.started")]


async def test_what_does_not_advance_holds_nobody_up(store: Store):
    for attempt in (3, 1, 2):
        assert await store.append(batch(LimitReached(), at=build_batch_token(T1, attempt), advances=False))
    assert await store.append(batch(delta(), at=build_batch_token(T1, 1)))
    assert len(await told(store)) == 4


async def test_what_has_no_token_is_never_too_late_and_retracts_nothing(store: Store):
    await store.append(batch(delta(), at=build_batch_token(T1, 1)))
    assert await store.append(batch(LimitReached()))
    assert await store.append(batch(delta(), at=build_batch_token(T1, 1)))
    assert await told(store) == [(1, "model.delta"), (2, "limit"), (3, "model.delta")]


# --- retraction --------------------------------------------------------------------------------------------------


async def test_a_later_token_retracts_what_a_lost_worker_left(store: Store):
    await store.append(batch(STARTED, delta("a"), delta("b", 4), at=build_batch_token(T1, 1)))
    await store.append(batch(delta("c"), at=build_batch_token(T1, 1)))
    assert await store.append(batch(STARTED, delta("d"), at=build_batch_token(T1, 2)))
    rows = await store.read_events("c")
    assert [row.type for row in rows[3:]] == ["model.delta", "model.retracted", "model.started", "model.delta"]
    lost = read(rows[4])
    assert isinstance(lost, ModelRetracted)
    assert (lost.retracts, lost.reason, lost.task_id, lost.iteration, lost.attempt) == (
        ((2, 4),),
        "WorkerLost",
        "t",
        2,
        1,
    )
    assert lost.at
    assert [row.seq for row in rows] == list(range(1, 8))


async def test_a_tool_of_later_retracts_without_advancing(store: Store):
    await store.append(batch(delta(), at=build_batch_token(T1, 1)))
    await store.append(batch(ToolStarted(call_id="1", name="f"), at=build_batch_token(T2, 1), advances=False))
    assert [kind for _, kind in await told(store)] == ["model.delta", "model.retracted", "tool.started"]
    assert await store.append(batch(delta(), at=build_batch_token(T1, 1)))


async def test_retracted_are_the_deltas_that_count_and_no_others(store: Store):
    at = build_batch_token(T1, 1)
    await store.append(batch(RETRACTED, at=at))
    assert await store.read_events("c") == []
    await store.append(batch(delta(), LimitReached(), delta(), delta(), RETRACTED, RETRACTED, at=at))
    await store.append(batch(delta(), at=at))
    await store.append(batch(NewEvent(RETRACTED, "k"), at=at))
    await store.append(batch(RETRACTED, at=at))
    rows = [row for row in await store.read_events("c") if row.type == "model.retracted"]
    assert [(row.seq, row.spans) for row in rows] == [(5, ((1, 1), (3, 4))), (7, ((6, 6),))]
    event = read(rows[0])
    assert isinstance(event, ModelRetracted)
    assert event.retracts == ((1, 1), (3, 4))


# --- pruning -----------------------------------------------------------------------------------------------------


async def test_a_reply_that_is_whole_replaces_every_delta(store: Store):
    at = build_batch_token(T1, 1)
    await store.append(batch(STARTED, delta(), delta(), at=at))
    await store.append(batch(RETRACTED, STARTED, delta(), LimitReached(), delta(), at=at))
    await store.append(batch(delta(), COMPLETED, delta(), at=at))
    rows = await store.read_events("c")
    seqs = [row.seq for row in rows]
    assert seqs == [1, 4, 5, 7, 10, 11]
    completed = read(rows[4])
    assert isinstance(completed, ModelCompleted)
    assert completed.replaces == ((2, 3), (6, 6), (8, 9))
    gone = {seq for first, last in completed.replaces for seq in range(first, last + 1)}
    assert sorted(gone | set(seqs)) == list(range(1, 12))
    await store.append(batch(COMPLETED, at=at))
    assert (await store.read_events("c"))[-1].spans == ((11, 11),)
    await store.append(batch(COMPLETED, RETRACTED, at=at))
    assert (await store.read_events("c"))[-1] == EventRow(13, "t", "model.completed", rows[4].body)


# --- keys --------------------------------------------------------------------------------------------------------


async def test_an_event_of_a_key_that_is_there_is_dropped(store: Store):
    one, two = NewEvent(ENDED, "ended"), NewEvent(ENDED, "other")
    assert await store.append(batch(one, delta(), one))
    assert await store.append(batch(one, at=build_batch_token(T3)))  # retracts and advances all the same
    assert await store.append(batch(one, two, LimitReached(), two, at=build_batch_token(T3)))
    assert await store.append(batch(one, of="elsewhere"))
    assert [kind for _, kind in await told(store)] == ["run", "model.delta", "model.retracted", "run", "limit"]
    assert [seq for seq, _ in await told(store)] == [1, 2, 3, 4, 5]
    assert not await store.append(batch(delta(), at=build_batch_token(T2)))


async def test_a_reply_that_was_told_already_deletes_nothing(store: Store):
    await store.append(batch(NewEvent(COMPLETED, "k")))
    await store.append(batch(delta(), NewEvent(COMPLETED, "k")))
    assert await told(store) == [(1, "model.completed"), (2, "model.delta")]


async def test_of_many_who_say_the_same_at_once_one_is_heard(database: Database):
    stores = [await database.open() for _ in range(3)]
    said = [batch(NewEvent(ENDED, "ended"), LimitReached(limit=n)) for n in range(20)]
    await asyncio.gather(*[store.append(one) for store in stores for one in said])
    rows = await stores[0].read_events("c")
    assert [row.seq for row in rows] == list(range(1, 62))
    assert [row.type for row in rows].count("run") == 1


# --- with an outcome, with an intent -----------------------------------------------------------------------------


def outcome(events: EventBatch, key: str = "k", body: bytes = b"1") -> Commit:
    return Commit(outcome=Outcome(key, "model", body), events=events)


async def test_only_the_first_outcome_is_told(store: Store):
    await store.append(batch(STARTED, delta(), at=build_batch_token(T1, 1)))
    assert await store.commit(outcome(batch(COMPLETED, at=build_batch_token(T1)))) == b"1"
    assert await store.commit(outcome(batch(COMPLETED, LimitReached(), at=build_batch_token(T1)), body=b"2")) == b"1"
    assert await told(store) == [(1, "model.started"), (3, "model.completed")]
    assert not await store.append(batch(delta(), at=build_batch_token(T1, 2)))  # of a worker that is lost
    await store.commit(Commit(events=batch(LimitReached(), at=build_batch_token(T2, 1))))
    assert (await told(store))[-1] == (4, "limit")


async def test_an_outcome_is_told_whatever_came_since(store: Store):
    """Attempt 2 streams, and the first, which was taken for lost, records its reply before it."""
    await store.append(batch(STARTED, delta(), at=build_batch_token(T1, 1)))
    await store.append(batch(STARTED, delta(), at=build_batch_token(T1, 2)))
    await store.commit(outcome(batch(COMPLETED, at=build_batch_token(T1, 1))))
    assert await told(store) == [
        (1, "model.started"),
        (3, "model.retracted"),
        (4, "model.started"),
        (6, COMPLETED.type),
    ]
    assert await store.append(batch(delta(), at=build_batch_token(T1, 2)))  # it did not take the feed back


async def test_an_outcome_that_retracts_itself_is_not_taken_for_lost(store: Store):
    await store.append(batch(delta(), at=build_batch_token(T1, 1)))
    await store.commit(outcome(batch(RETRACTED, at=build_batch_token(T1))))
    rows = await store.read_events("c")
    assert [row.type for row in rows] == ["model.delta", "model.retracted"]
    assert b"RateLimitError" in rows[1].body


async def test_an_outcome_that_says_nothing_of_open_deltas_retracts_them(store: Store):
    await store.append(batch(delta(), at=build_batch_token(T1, 1)))
    await store.commit(outcome(batch(LimitReached(), at=build_batch_token(T2), advances=False)))
    assert [kind for _, kind in await told(store)] == ["model.delta", "model.retracted", "limit"]
    assert await store.append(batch(delta(), at=build_batch_token(T1, 1)))


async def test_what_a_tool_did_while_its_run_was_terminated(store: Store):
    """It has happened: it is told behind the end. What is only begun, or said meanwhile, is not."""
    done = ToolCompleted(call_id="1", name="f", content="sent")
    await store.append(batch(NewEvent(ENDED, "ended"), at=build_batch_token(T3)))
    late = batch(ToolStarted(call_id="2", name="f"), at=build_batch_token(T2, 1), advances=False)
    assert not await store.append(late)
    assert (await store.claim("2", "me", events=late)).state == "new"
    await store.commit(outcome(batch(done, at=build_batch_token(T2), advances=False)))
    assert await told(store) == [(1, "run"), (2, "tool.completed")]
    assert not await store.append(late)


async def test_an_intent_is_told_by_whom_may_act(store: Store):
    def begun(owner: str) -> EventBatch:
        started = NewEvent(ToolStarted(call_id="1", name="f", task_id=owner), f"begun/{owner}")
        return batch(started, at=build_batch_token(T1), advances=False)

    async def claim(owner: str, again: bool = False) -> str:
        return (await store.claim("k", owner, again=again, events=begun(owner))).state

    assert [await claim("one"), await claim("one"), await claim("two")] == ["new", "new", "begun"]
    assert [await claim("two", again=True), await claim("one")] == ["new", "begun"]
    await store.commit(Commit(outcome=Outcome("k", "tool", b"1")))
    assert await claim("three", again=True) == "done"
    assert [(row.seq, row.task_id) for row in await store.read_events("c")] == [(1, "one"), (2, "two")]


# --- waiting -----------------------------------------------------------------------------------------------------


async def test_changed_knows_what_is_there(store: Store):
    assert not await store.wait_for_event("c", 0, 0)
    await store.append(batch(LimitReached(), LimitReached()))
    assert [await store.wait_for_event("c", after, 0) for after in (0, 1, 2, 3)] == [2, 2, 0, 0]


async def test_whoever_waits_is_woken(database: Database):
    stores = [await database.open() for _ in range(2)]
    await stores[0].append(batch(LimitReached()))
    waiting = [asyncio.ensure_future(stores[n % 2].wait_for_event("c", 1, 60)) for n in range(50)]
    elsewhere = asyncio.ensure_future(stores[0].wait_for_event("other", 0, 60))
    too_far = asyncio.ensure_future(stores[0].wait_for_event("c", 3, 60))
    await asyncio.sleep(0)  # each asks
    for how in (
        stores[0].append(batch(LimitReached())),
        stores[0].claim("k", "me", events=batch(LimitReached())),
        stores[1].commit(outcome(batch(LimitReached()))),
    ):
        await how
        assert all(await asyncio.gather(*waiting))
        after = len(await told(stores[0]))
        waiting = [asyncio.ensure_future(store.wait_for_event("c", after, 60)) for store in stores]
    assert await too_far
    assert not elsewhere.done()
    for task in (*waiting, elsewhere):
        task.cancel()
    await asyncio.gather(*waiting, elsewhere, return_exceptions=True)


async def test_a_nudge_reaches_every_watcher(database: Database):
    if database.is_proxied:
        pytest.skip(
            "PgBouncer that pools by transaction passes on no notification: workers heartbeat at their interval"
        )
    stores = [await database.open() for _ in range(2)]
    nudged: list[list[str]] = [[], [], []]
    for heard, store in zip(nudged, [stores[0], stores[1], stores[1]], strict=True):
        store.watch_nudges(heard.append)
    await eventually_nudged(stores[0], "run-1", nudged)
    await eventually_nudged(stores[1], "@acme/ü-\u2028 '; --", nudged)


async def test_who_watches_nudges_no_longer_hears_none(database: Database):
    if database.is_proxied:
        pytest.skip("no notification comes through")
    stores = [await database.open() for _ in range(2)]
    before: list[str] = []
    after: list[str] = []
    stop = stores[0].watch_nudges(before.append)
    await eventually_nudged(stores[1], "run-1", [before])
    stop()
    stop()
    before.clear()
    stores[0].watch_nudges(after.append)
    await eventually_nudged(stores[1], "run-2", [after])
    assert before == []


async def test_a_nudge_reaches_the_event_loop_that_watches(database: Database):
    """A client may be on another one, in another thread, than the worker."""
    if database.is_proxied:
        pytest.skip("no notification comes through")
    store = await database.open()
    nudged: list[list[str]] = [[]]
    loops: set[asyncio.AbstractEventLoop] = set()

    def hear(run_id: str) -> None:
        loops.add(asyncio.get_running_loop())
        nudged[0].append(run_id)

    store.watch_nudges(hear)
    async with asyncio.timeout(20):
        while not nudged[0]:
            await asyncio.to_thread(asyncio.run, store.nudge("run-1"))
            await asyncio.sleep(0.05)
    assert loops == {asyncio.get_running_loop()}


async def eventually_nudged(store: Store, run_id: str, nudged: list[list[str]]) -> None:
    """Nudge until all have heard it: a nudge may be lost, as the first ones are before a watcher listens."""
    async with asyncio.timeout(60):
        while not all(run_id in heard for heard in nudged):
            await store.nudge(run_id)
            await asyncio.sleep(0.05)
    assert {name for heard in nudged for name in heard} <= {"run-1", run_id}


async def test_followers_see_every_number_while_many_write(database: Database):
    """On objects of their own, as in processes of their own."""
    stores = [await database.open() for _ in range(3)]

    async def follow(store: Store) -> list[int]:
        seen: list[int] = []
        while len(seen) < 180:
            if await store.wait_for_event("c", len(seen), 60):
                seen += [row.seq for row in await store.read_events("c", after=len(seen), limit=7)]
        return seen

    async def write(store: Store) -> None:
        for n in range(20):
            await store.append(batch(*[LimitReached(limit=n)] * 3))

    followers = [asyncio.ensure_future(follow(store)) for store in stores]
    await asyncio.gather(*[write(store) for store in stores])
    assert await asyncio.gather(*followers) == [list(range(1, 181))] * 3


# --- whatever comes, all stores say the same ---------------------------------------------------------------------

EVENTS = st.sampled_from([STARTED, delta(), delta(), delta(), RETRACTED, COMPLETED, LimitReached(), ENDED])
NEW = st.builds(NewEvent, EVENTS, st.sampled_from([None, None, None, "k1", "k2", "k3"]))
TOKENS = st.sampled_from(["", *[build_batch_token(at, attempt) for at in (T1, T2) for attempt in (1, 2, None)]])
BATCHES = st.builds(EventBatch, st.sampled_from(["c", "d"]), st.lists(NEW, max_size=5), TOKENS, st.booleans())
WRITES = st.tuples(st.sampled_from(["append", "append", "commit", "again", "claim"]), BATCHES)


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return (f"example-{n}-" for n in itertools.count())


async def play(store: Store | ReferenceStore, name: str, writes: list[tuple[str, EventBatch]]) -> list[object]:
    """What ``store`` answers to ``writes``, and what is in it then."""
    answers: list[object] = []
    gone: dict[str, set[int]] = {f"{name}{of}": set() for of in ("c", "d")}
    await store.open()
    try:
        for n, (how, given_batch) in enumerate(writes):
            one = replace(given_batch, context_id=f"{name}{given_batch.context_id}")
            if how == "append":
                answers.append(await store.append(one))
            elif how == "claim":
                answers.append(await store.claim(f"{name}claim-{n % 3}", f"{n}", again=True, events=one))
            else:
                answers.append(await store.commit(outcome(one, f"{name}{how if how == 'again' else n}")))
            for of, missing in gone.items():
                numbered(await store.read_events(of), missing)
        return [*answers, *[await store.read_events(of) for of in gone]]
    finally:
        await store.close()


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(WRITES, max_size=25))
def test_sqlite_and_reference_agree(
    tmp_path_factory: pytest.TempPathFactory, names: Iterator[str], writes: list[tuple[str, EventBatch]]
):
    name, url = next(names), f"sqlite:///{tmp_path_factory.getbasetemp()}/events.db"
    stores = ReferenceStore(now=lambda: T3), SqliteStore(url, now=lambda: T3)
    reference, sqlite = (asyncio.run(play(store, name, writes)) for store in stores)
    assert sqlite == reference


@pytest.mark.postgres
@settings(max_examples=100, deadline=None)
@given(st.lists(WRITES, max_size=25))
def test_postgres_and_reference_agree(postgres_url: str, names: Iterator[str], writes: list[tuple[str, EventBatch]]):
    name = next(names)
    stores = ReferenceStore(now=lambda: T3), PostgresStore(postgres_url, now=lambda: T3)
    reference, postgres = (asyncio.run(play(store, name, writes)) for store in stores)
    assert postgres == reference


def numbered(rows: list[EventRow], gone: set[int]) -> None:
    """No number is missing but those that a ``model.completed`` names; only deltas are named by spans."""
    seqs = [row.seq for row in rows]
    spans = [(row.type, seq) for row in rows for first, last in row.spans for seq in range(first, last + 1)]
    replaced = [seq for kind, seq in spans if kind == "model.completed"]
    retracted = [seq for kind, seq in spans if kind == "model.retracted"]
    assert len(set(replaced)) == len(replaced)
    assert len(set(retracted)) == len(retracted)
    assert sorted(seqs + replaced) == list(range(1, max(seqs, default=0) + 1))
    assert gone <= set(replaced)
    gone |= set(replaced)


async def test_a_store_that_fails_says_so():
    store = MemoryStore()
    store.failure = StoreError("gone")
    for call in (store.append(batch()), store.read_events("c"), store.wait_for_event("c", 0, 0)):
        with pytest.raises(StoreError, match="gone"):
            await call
