"""Waiting for events of a SQLite store where the world does not behave: closed, removed, replaced, several loops."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from perdure.errors import StoreError, StoreMismatchError
from perdure.ports.store import EventBatch, NewEvent
from perdure.store import sqlite_notify
from perdure.store.sqlite import SqliteStore
from perdure.types.events import LimitReached
from tests.support.wait import eventually

ONE = EventBatch("c", [NewEvent(LimitReached())])


def make(path: Path) -> SqliteStore:
    return SqliteStore(f"sqlite:///{path}", busy_timeout=0.05)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = make(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


@contextlib.contextmanager
def moved(store: SqliteStore) -> object:
    """The store's files are elsewhere."""
    files = list(store.path.parent.glob("store.db*"))
    for file in files:
        file.rename(file.with_name(f"aside-{file.name}"))
    yield
    for file in files:
        file.with_name(f"aside-{file.name}").rename(file)


async def begun(*waiting: Awaitable[bool]) -> list[asyncio.Future[bool]]:
    tasks = [asyncio.ensure_future(one) for one in waiting]
    await asyncio.sleep(0)  # each asks, and waits
    assert not any(task.done() for task in tasks)
    return tasks


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "perdure-store-watch"]


async def test_the_thread_begins_with_who_waits_and_ends_with_the_store(tmp_path: Path):
    store = make(tmp_path / "store.db")
    with pytest.raises(StoreError, match="not open"):
        await store.wait_for_event("c", 0, 0)
    for _ in range(2):
        await store.open()
        assert not watching()
        waiting = await begun(*[store.wait_for_event("c", 10, 60) for _ in range(5)])
        assert len(watching()) == 1
        await store.close()
        assert not watching()
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, StoreError) and "closed" in error.message for error in told)
        assert len({id(error) for error in told}) == 5


async def test_whoever_stops_waiting_leaves_nothing(store: SqliteStore):
    waiting = await begun(store.wait_for_event("c", 0, 60), store.wait_for_event("d", 0, 60))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not await store.wait_for_event("c", 0, 0.001)
    assert not store._threads.watcher._waiters


async def test_it_sleeps_when_nobody_waits_and_wakes(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_notify, "LINGER_SECONDS", 0.0)
    other = make(store.path)
    await other.open()
    for n in range(3):
        [waiting] = await begun(store.wait_for_event("c", n, 60))
        await other.append(ONE)
        assert await waiting
        await eventually(lambda: store._threads.watcher._is_asleep)
    await other.close()


async def test_a_removed_file_is_told_and_found_again(store: SqliteStore):
    await store.append(ONE)
    waiting = await begun(store.wait_for_event("c", 1, 60), store.wait_for_event("d", 0, 60))
    with moved(store):
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, StoreError)
            assert "removed" in error.message
        with pytest.raises(StoreError, match="removed"):
            await store.wait_for_event("c", 1, 60)
    waiting = await begun(store.wait_for_event("c", 1, 60))
    await store.append(ONE)
    assert await asyncio.gather(*waiting) == [2]


async def test_a_copy_in_its_place_is_followed(store: SqliteStore, tmp_path: Path):
    """Its connection counts changes anew: the same number says nothing."""
    await store.append(ONE)
    copy = tmp_path / "copy.db"
    with contextlib.closing(sqlite3.connect(store.path)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    elsewhere = make(copy)
    await elsewhere.open()
    await elsewhere.append(ONE)
    await elsewhere.close()
    waiting = await begun(store.wait_for_event("c", 1, 60))
    for suffix in ("-wal", "-shm"):
        Path(f"{store.path}{suffix}").unlink()
    copy.replace(store.path)
    assert await asyncio.gather(*waiting) == [2]
    assert [row.seq for row in await store.read_events("c")] == [1, 2]


async def test_another_store_in_its_place_is_refused(store: SqliteStore, tmp_path: Path):
    other = make(tmp_path / "other.db")
    await other.open()
    await other.close()
    waiting = await begun(store.wait_for_event("c", 0, 60))
    for suffix in ("-wal", "-shm"):
        Path(f"{store.path}{suffix}").unlink()
    other.path.replace(store.path)
    with pytest.raises(StoreMismatchError):
        await waiting[0]


async def test_several_event_loops_wait(store: SqliteStore):
    loops = [
        asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(store.wait_for_event("c", 0, 60)))) for _ in range(3)
    ]
    [here] = await begun(store.wait_for_event("c", 0, 60))
    await eventually(lambda: len(store._threads.watcher._waiters["c"]) == 4)
    await store.append(ONE)
    assert await asyncio.gather(here, *loops) == [1] * 4
