"""What every store promises about the events of runs that calls of other agents begin: one order for all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import RunIdError
from perdure.ports.store import Commit, EventBatch, EventRow, NewEvent, Outcome, Store, build_batch_token
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from perdure.types.events import (
    Event,
    LimitReached,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    decode_event,
)
from perdure.types.subagents import Lineage, PathStep
from tests.contract.store.conftest import Database
from tests.contract.store.reference import ReferenceStore
from tests.contract.store.test_events import numbered

T1, T2 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2))
FIRST = PathStep(agent="researcher", call_id="call-1", task_id="t")
SECOND = PathStep(agent="critic", call_id="call-2", task_id="t1")
AGAIN = PathStep(agent="researcher", call_id="call-1", task_id="later")
OTHER = PathStep(agent="researcher", call_id="call-3", task_id="t")
ON_THE_WAY = {
    "c": None,
    "c/1": Lineage(root="c", agent="a", path=(FIRST,)),
    "c/1/2": Lineage(root="c", agent="a", path=(FIRST, SECOND)),
    "c/10": Lineage(root="c", agent="a", path=(OTHER,)),
}


def delta(text: str = "x") -> ModelDelta:
    return ModelDelta(text=text)


def batch(of: str, *events: Event | NewEvent, at: str = "", advances: bool = True) -> EventBatch:
    new = [event if isinstance(event, NewEvent) else NewEvent(event) for event in events]
    return EventBatch(of, new, at, advances, ON_THE_WAY[of])


async def told(store: Store, of: str = "c", *, children: bool = True) -> list[tuple[int, str]]:
    return [(row.seq, row.child or of) for row in await store.read_events(of, children=children)]


async def test_one_order_for_a_tree_seen_from_each_of_its_runs(store: Store):
    for of in ("c", "c/1", "c/10", "c/1/2", "c/1", "c", "c/10"):
        assert await store.append(batch(of, LimitReached()))
    everything = [(1, "c"), (2, "c/1"), (3, "c/10"), (4, "c/1/2"), (5, "c/1"), (6, "c"), (7, "c/10")]
    assert await told(store) == everything
    assert await told(store, children=False) == [(1, "c"), (6, "c")]
    assert await told(store, "c/1") == [(2, "c/1"), (4, "c/1/2"), (5, "c/1")]  # c/10 is not below it
    assert await told(store, "c/1", children=False) == [(2, "c/1"), (5, "c/1")]
    assert await told(store, "c/1/2") == [(4, "c/1/2")]
    assert await told(store, "c/10") == [(3, "c/10"), (7, "c/10")]
    assert await told(store, "c/2") == []


async def test_paths_lead_down_from_whom_is_asked(store: Store):
    for of in ON_THE_WAY:
        await store.append(batch(of, LimitReached()))
    assert [row.path for row in await store.read_events("c")] == [(), (FIRST,), (FIRST, SECOND), (OTHER,)]
    assert [(row.child, row.path) for row in await store.read_events("c/1")] == [(None, ()), ("c/1/2", (SECOND,))]
    [row] = await store.read_events("c/1/2")
    assert (row.child, row.path) == (None, ())
    row = (await store.read_events("c"))[2]
    event = decode_event(row.child or "c", row.seq, row.task_id, row.type, row.body, row.spans, row.path)
    assert event == LimitReached(context_id="c/1/2", seq=3, path=(FIRST, SECOND))


async def test_pages_of_a_part_of_a_tree(store: Store):
    for n in range(20):
        for of in ON_THE_WAY:
            await store.append(batch(of, *[LimitReached(limit=n)] * 3))
    for of, children in itertools.product(ON_THE_WAY, (True, False)):
        whole = await store.read_events(of, children=children)
        rows: list[EventRow] = []
        while page := await store.read_events(of, after=rows[-1].seq if rows else 0, limit=7, children=children):
            assert len(page) <= 7
            rows += page
        assert rows == whole
    assert len(whole) == 60


async def test_deltas_of_runs_side_by_side_are_each_ones_own(store: Store):
    for _ in range(3):
        for of in ("c/1", "c/10", "c"):
            assert await store.append(batch(of, delta(), at=build_batch_token(T1, 1)))
    await store.commit(
        Commit(outcome=Outcome("k", "model", b"1"), events=batch("c/10", ModelCompleted(), at=build_batch_token(T1)))
    )
    rows = await store.read_events("c")
    assert [(row.seq, row.child) for row in rows] == [
        (1, "c/1"),
        (3, None),
        (4, "c/1"),
        (6, None),
        (7, "c/1"),
        (9, None),
        (10, "c/10"),
    ]
    assert rows[-1].spans == ((2, 2), (5, 5), (8, 8))
    await store.append(batch("c/1", ModelStarted(), at=build_batch_token(T1, 2)))  # its worker was lost
    rows = await store.read_events("c")
    assert [(row.type, row.child, row.spans) for row in rows[-2:]] == [
        ("model.retracted", "c/1", ((1, 1), (4, 4), (7, 7))),
        ("model.started", "c/1", ()),
    ]
    assert await store.append(batch("c", ModelCompleted(), at=build_batch_token(T1, 1)))  # no other fence holds it up
    numbered(await store.read_events("c"), set())


async def test_fences_and_keys_are_each_runs_own(store: Store):
    said = NewEvent(LimitReached(), key="k")
    assert await store.append(batch("c/1", said, at=build_batch_token(T2, 1)))
    assert not await store.append(batch("c/1", LimitReached(), at=build_batch_token(T1, 1)))
    assert await store.append(batch("c", said, said, at=build_batch_token(T1, 1)))
    assert await store.append(batch("c/10", said, at=build_batch_token(T1, 1)))
    assert await store.append(batch("c/1", said, LimitReached(), at=build_batch_token(T2, 1)))
    assert await told(store) == [(1, "c/1"), (2, "c"), (3, "c/10"), (4, "c/1")]


async def test_the_first_batch_says_where_events_stand(store: Store):
    await store.append(replace(batch("c/1", LimitReached()), lineage=None))
    with pytest.raises(RunIdError):  # it is a root by now
        await store.append(batch("c/1", LimitReached()))
    await store.append(replace(batch("c/1", LimitReached()), lineage=None))
    await store.append(batch("c/10", LimitReached()))
    await store.append(
        replace(batch("c/10", RunEvent(state="terminated")), lineage=None)
    )  # as who notices its end says
    assert await told(store, "c/1") == [(1, "c/1"), (2, "c/1")]
    assert await told(store) == [(1, "c/10"), (2, "c/10")]


async def test_a_run_that_is_begun_again_comes_by_another_way(store: Store):
    """Who opens a conversation again may call under the same ids once more: each event keeps the way it came by."""
    again = PathStep(agent="researcher", call_id="call-9", task_id="later")
    ways = {"c/1": (again,), "c/1/2": (again, SECOND)}
    for of in ("c/1", "c/1/2"):
        await store.append(batch(of, LimitReached(), delta(), at=build_batch_token(T2)))
    for of, path in ways.items():
        then = Lineage(root="c", agent="a", path=path)
        assert not await store.append(replace(batch(of, LimitReached(), at=build_batch_token(T1)), lineage=then)), (
            "too late"
        )
        await store.append(replace(batch(of, LimitReached(), at=build_batch_token(T2)), lineage=then))
        await store.append(replace(batch(of, RunEvent(state="terminated")), lineage=None))  # who says no way
    rows = await store.read_events("c")
    assert [row.path for row in rows] == [
        *[(FIRST,)] * 2,
        *[(FIRST, SECOND)] * 2,
        *[(again,)] * 2,
        *[(again, SECOND)] * 2,
    ]
    below = await store.read_events("c/1")
    assert [row.path for row in below] == [*[()] * 2, *[(SECOND,)] * 2, *[()] * 2, *[(SECOND,)] * 2]


async def test_changed_knows_what_is_there(store: Store):
    assert [await store.wait_for_event(of, 0, 0) for of in ON_THE_WAY] == [0, 0, 0, 0]
    await store.append(batch("c/1", LimitReached(), LimitReached()))
    assert [await store.wait_for_event(of, 0, 0) for of in ("c", "c/1", "c/10")] == [2, 2, 0]
    await store.append(batch("c", LimitReached()))
    assert [await store.wait_for_event(of, 2, 0) for of in ("c", "c/1", "c/10")] == [3, 3, 0]
    assert [await store.wait_for_event(of, 3, 0) for of in ("c", "c/1", "c/10")] == [0, 0, 0]


async def test_whoever_waits_is_woken(database: Database):
    stores = [await database.open() for _ in range(2)]
    waiting = [
        asyncio.ensure_future(store.wait_for_event(of, 0, 60)) for store in stores for of in ("c", "c/1", "c/1/2")
    ]
    await asyncio.sleep(0)
    await stores[0].append(batch("c/1/2", LimitReached()))
    assert await asyncio.gather(*[one for n, one in enumerate(waiting) if n % 3 != 1]) == [1] * 4
    assert not any(waiting[n].done() for n in (1, 4))  # of c/1 nothing is known yet
    await stores[1].append(batch("c/1", LimitReached()))
    assert await asyncio.gather(*waiting) == [1, 2, 1, 1, 2, 1]


async def test_followers_see_every_number_while_a_tree_writes(database: Database):
    """Many at once, on objects of their own as in processes of their own; each follower comes back at every row."""
    stores = [await database.open() for _ in range(3)]

    async def follow(store: Store, of: str, children: bool, most: int) -> list[EventRow]:
        seen: list[EventRow] = []
        looked = 0
        while len(seen) < most:
            looked = await store.wait_for_event(of, looked, 60) or looked
            while page := await store.read_events(of, after=seen[-1].seq if seen else 0, limit=1, children=children):
                seen += page
        return seen

    async def write(store: Store, of: str) -> None:
        for n in range(20):
            await store.append(batch(of, *[LimitReached(limit=n)] * 3))

    wanted = [(store, of, children) for store in stores for of in ON_THE_WAY for children in (True, False)]
    most = {("c", True): 720, ("c/1", True): 360}
    following = [asyncio.ensure_future(follow(*one, most.get(one[1:], 180))) for one in wanted]
    await asyncio.gather(*[write(store, of) for store in stores for of in ON_THE_WAY])
    for (store, of, children), seen in zip(wanted, await asyncio.gather(*following), strict=True):
        assert seen == await store.read_events(of, children=children)
    assert [row.seq for row in await stores[0].read_events("c")] == list(range(1, 721))


# --- whatever comes, all stores say the same ---------------------------------------------------------------------

EVENTS = st.sampled_from(
    [ModelStarted(), delta(), delta(), delta(), ModelRetracted(), ModelCompleted(), LimitReached()]
)
NEW = st.builds(NewEvent, EVENTS, st.sampled_from([None, None, None, "k1", "k2"]))
TOKENS = st.sampled_from(["", *[build_batch_token(at, attempt) for at in (T1, T2) for attempt in (1, 2, None)]])
BATCHES = st.builds(EventBatch, st.sampled_from(list(ON_THE_WAY)), st.lists(NEW, max_size=4), TOKENS, st.booleans())
WRITES = st.tuples(st.sampled_from(["append", "commit"]), BATCHES, st.sampled_from(["first", "first", "again", ""]))


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return (f"example-{n}-" for n in itertools.count())


async def play(store: Store | ReferenceStore, name: str, writes: list[tuple[str, EventBatch, str]]) -> list[object]:
    """What ``store`` answers to ``writes``, and what is in it then, seen from each of the runs."""
    answers: list[object] = []
    gone: set[int] = set()
    await store.open()
    try:
        for n, (how, one, says) in enumerate(writes):
            way = ON_THE_WAY[one.context_id] if says else None
            if way is not None and says == "again":
                way = way.model_copy(update={"path": (AGAIN, *way.path[1:])})
            there = None if way is None else way.model_copy(update={"root": f"{name}c"})
            one = replace(one, context_id=f"{name}{one.context_id}", lineage=there)
            try:
                if how == "append":
                    answers.append(await store.append(one))
                else:
                    answers.append(await store.commit(Commit(outcome=Outcome(f"{name}{n}", "model", b"1"), events=one)))
            except RunIdError:
                answers.append(RunIdError)
            numbered(await store.read_events(f"{name}c"), gone)
        for of, children in itertools.product(ON_THE_WAY, (True, False)):
            answers.append(await store.read_events(f"{name}{of}", children=children))
            answers.append(await store.wait_for_event(f"{name}{of}", 0, 0))
        return answers
    finally:
        await store.close()


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(WRITES, max_size=25))
def test_sqlite_and_reference_agree(
    tmp_path_factory: pytest.TempPathFactory, names: Iterator[str], writes: list[tuple[str, EventBatch, str]]
):
    name, url = next(names), f"sqlite:///{tmp_path_factory.getbasetemp()}/trees.db"
    stores = ReferenceStore(now=lambda: T2), SqliteStore(url, now=lambda: T2)
    reference, sqlite = (asyncio.run(play(store, name, writes)) for store in stores)
    assert sqlite == reference


@pytest.mark.postgres
@settings(max_examples=100, deadline=None)
@given(st.lists(WRITES, max_size=25))
def test_postgres_and_reference_agree(
    postgres_url: str, names: Iterator[str], writes: list[tuple[str, EventBatch, str]]
):
    name = next(names)
    stores = ReferenceStore(now=lambda: T2), PostgresStore(postgres_url, now=lambda: T2)
    reference, postgres = (asyncio.run(play(store, name, writes)) for store in stores)
    assert postgres == reference
