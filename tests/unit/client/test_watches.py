"""Watches: one wait for all followers of a process, from the first follower to the last."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure.client.event_reader import EventReader
from perdure.client.watches import EndWatch, join_event_watch, join_watch
from perdure.errors import StoreError
from perdure.ports.store import EventBatch, NewEvent
from perdure.testing.store import MemoryStore
from perdure.types.events import LimitReached
from tests.support.wait import eventually

ONE = EventBatch("c", [NewEvent(LimitReached())])


class CountingStore(MemoryStore):
    """Counts waits and reads of events; waits fail while ``broken``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.broken = False
        self.failing_reads = 0

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        self.counts["wait"] += 1
        if self.broken:
            raise StoreError("the store is away")
        return await super().wait_for_event(context_id, after, timeout)

    async def read_events(self, context_id: str, **options: Any) -> Any:
        self.counts["read"] += 1
        if self.failing_reads:
            self.failing_reads -= 1
            raise StoreError("the store is away")
        return await super().read_events(context_id, **options)


def tasks() -> int:
    return len(asyncio.all_tasks())


class Follower:
    """Follows run ``c`` until ``ended``."""

    def __init__(self, client: Any, store: MemoryStore, ended: asyncio.Event) -> None:
        self.seen: list[int] = []
        self.task = asyncio.create_task(self._follow(client, store, ended))

    async def _follow(self, client: Any, store: MemoryStore, ended: asyncio.Event) -> None:
        reader = EventReader("c", store, 0)
        async with join_watch(client, "end", "c", build=lambda: EndWatch(ended.wait())) as ending:
            async for event in reader.read_until(client, ending):
                self.seen.append(event.seq)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_followers_share_one_wait_and_read_when_there_is_something() -> None:
    store, client, ended, before = CountingStore(), object(), asyncio.Event(), tasks()
    followers = [Follower(client, store, ended) for _ in range(50)]
    await store.append(ONE)
    await eventually(lambda: all(one.seen == [1] for one in followers))
    waits = store.counts["wait"]
    await eventually(lambda: store.counts["wait"] == waits)
    assert waits <= 3  # the first, which finds the event, and those behind it
    assert tasks() == before + 50 + 2  # theirs, one for the events and one for the end
    reads = store.counts["read"]
    await store.append(ONE)
    await eventually(lambda: all(one.seen == [1, 2] for one in followers))
    assert store.counts["wait"] <= waits + 2
    assert store.counts["read"] == reads + 1
    ended.set()
    await asyncio.gather(*(one.task for one in followers))
    assert tasks() == before


async def test_a_follower_that_is_behind_reads_for_itself() -> None:
    store, client, ended = CountingStore(), object(), asyncio.Event()
    for _ in range(3):
        await store.append(ONE)
    quick = [Follower(client, store, ended) for _ in range(2)]
    await eventually(lambda: all(one.seen == [1, 2, 3] for one in quick))
    slow = EventReader("c", store, 0, texts=False)
    async with join_watch(client, "end", "c", build=lambda: EndWatch(ended.wait())) as ending:
        events = slow.read_until(client, ending)
        seen = [(await anext(events)).seq]
        for _ in range(2):
            await store.append(ONE)
        await eventually(lambda: all(one.seen == [1, 2, 3, 4, 5] for one in quick))
        ended.set()
        seen += [event.seq async for event in events]
    assert seen == [1, 2, 3, 4, 5]
    await asyncio.gather(*(one.task for one in quick))


async def test_a_read_that_fails_fails_for_all_and_is_made_again() -> None:
    store, client, ended = CountingStore(), object(), asyncio.Event()
    followers = [Follower(client, store, ended) for _ in range(5)]
    await eventually(lambda: store.counts["read"])
    reads, store.failing_reads = store.counts["read"], 1
    await store.append(ONE)
    await eventually(lambda: all(one.seen == [1] for one in followers))
    assert store.counts["read"] == reads + 2
    ended.set()
    await asyncio.gather(*(one.task for one in followers))


async def test_the_first_follower_leaves_and_the_others_go_on() -> None:
    store, client, ended, before = CountingStore(), object(), asyncio.Event(), tasks()
    first, second = Follower(client, store, ended), Follower(client, store, ended)
    await store.append(ONE)
    await eventually(lambda: first.seen == second.seen == [1])
    await first.stop()
    await store.append(ONE)
    await eventually(lambda: second.seen == [1, 2])
    await second.stop()
    assert tasks() == before
    third = Follower(client, store, ended)
    await eventually(lambda: third.seen == [1, 2])
    ended.set()
    await third.task


async def test_what_was_recorded_before_the_end_is_read() -> None:
    store, client, ended = CountingStore(), object(), asyncio.Event()
    followers = [Follower(client, store, ended) for _ in range(3)]
    await eventually(lambda: store.counts["wait"])
    await store.append(ONE)
    ended.set()
    await asyncio.gather(*(one.task for one in followers))
    assert [one.seen for one in followers] == [[1]] * 3


async def test_an_end_takes_no_new_followers() -> None:
    client, ended = object(), [asyncio.Event(), asyncio.Event()]
    async with join_watch(client, "end", "c", build=lambda: EndWatch(ended[0].wait())) as slow:
        ended[0].set()
        await slow.end
        async with join_watch(client, "end", "c", build=lambda: EndWatch(ended[1].wait())) as later:
            assert not later.is_over
            async with join_watch(client, "end", "c", build=lambda: EndWatch(ended[0].wait())) as same:
                assert same is later
    async with join_watch(client, "end", "c", build=lambda: EndWatch(ended[0].wait())) as anew:
        assert anew is not later


async def test_the_error_of_an_end_reaches_each_follower() -> None:
    store, client = CountingStore(), object()

    async def fail() -> None:
        raise StoreError("not this store")

    async def follow() -> None:
        async with join_watch(client, "end", "c", build=lambda: EndWatch(fail())) as ending:
            async for _ in EventReader("c", store, 0).read_until(client, ending):
                pass

    errors = await asyncio.gather(*(follow() for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in errors] == ["not this store"] * 3


async def test_a_store_that_cannot_be_watched_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.watches._STORE_ERROR_SECONDS", 0.01)
    store, client, ended = CountingStore(), object(), asyncio.Event()
    store.broken = True
    follower = Follower(client, store, ended)
    await eventually(lambda: store.counts["wait"] > 2)
    await store.append(ONE)
    await eventually(lambda: follower.seen == [1])
    store.broken = False
    await store.append(ONE)
    await eventually(lambda: follower.seen == [1, 2])
    await follower.stop()


async def test_clients_and_runs_have_watches_of_their_own() -> None:
    store, clients = MemoryStore(), [object(), object()]
    async with (
        join_event_watch(clients[0], store, "c") as one,  # type: ignore[arg-type]  # only its identity counts
        join_event_watch(clients[1], store, "c") as other,  # type: ignore[arg-type]
        join_event_watch(clients[0], store, "d") as of_another_run,  # type: ignore[arg-type]
    ):
        assert len({id(watch) for watch in (one, other, of_another_run)}) == 3
