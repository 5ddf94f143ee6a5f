"""What the store of tests has beside the contract of all stores, which tests/contract/store has."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
import weakref
from pathlib import Path

import pytest

from perdure import Agent
from perdure.errors import StoreError
from perdure.ports.store import Blob, Commit, EventBatch, NewEvent, Outcome, RunRow
from perdure.testing import MemoryStore, scripted
from perdure.types.events import LimitReached

DONE = Commit(outcome=Outcome("key", "tool", b"1"))
EVENTS = EventBatch("run", [NewEvent(LimitReached())])


async def test_its_first_use_opens_it_and_closing_keeps_what_is_in_it() -> None:
    store = MemoryStore(now=lambda: "2026-01-01T00:00:00.000000+00:00")
    assert store.store_id == ""
    await store.commit(DONE)
    await store.open()
    store_id = store.store_id
    await store.close()
    await store.open()
    assert store.store_id == store_id
    assert await store.find_outcomes(["key"]) == {"key": b"1"}
    assert store.commits == [DONE]
    assert store.run_sql("SELECT key, done_at FROM journal") == [("key", "2026-01-01T00:00:00.000000+00:00")]
    assert await MemoryStore().find_outcomes(["key"]) == {}, "each has its own"


async def test_a_failure_is_raised_by_every_call_until_it_is_taken_back() -> None:
    store = MemoryStore()
    store.failure = StoreError("gone")
    opening, waiting = store.open(), store.wait_for_event("run", 0, 0)
    for call in (opening, store.commit(DONE), store.claim("key", "me"), waiting, store.nudge("run")):
        with pytest.raises(StoreError, match="gone"):
            await call
    store.failure = None
    assert await store.commit(DONE) == b"1"
    assert store.commits == [DONE]


async def test_a_commit_that_fails_in_the_middle_writes_nothing() -> None:
    store = MemoryStore()
    broken = RunRow("run", "agent", "scope", None, None)  # type: ignore[arg-type]  # a status is needed
    with pytest.raises(StoreError, match="NOT NULL"):
        await store.commit(Commit(blobs=[Blob.from_content(b"x")], run=broken))
    assert store.run_sql("SELECT count(*) FROM blobs") == [(0,)]
    await store.commit(DONE)


async def test_a_follower_on_another_event_loop_is_woken() -> None:
    store = MemoryStore()
    waits = threading.Event()
    seen: list[int] = []

    async def follow() -> None:
        waiting = asyncio.create_task(store.wait_for_event("run", 0, 30))
        await asyncio.sleep(0)  # it has looked, and waits
        waits.set()
        seen.append(await waiting)

    thread = threading.Thread(target=lambda: asyncio.run(follow()))
    thread.start()
    await asyncio.to_thread(waits.wait)
    await store.append(EVENTS)
    await asyncio.to_thread(thread.join)
    assert seen == [1]


def test_threads_write_one_after_the_other() -> None:
    store = MemoryStore()

    def write(name: str) -> None:
        for n in range(50):
            asyncio.run(store.commit(Commit(outcome=Outcome(f"{name}{n}", "tool", b"1"), events=EVENTS)))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.run_sql("SELECT count(*), max(seq) FROM events") == [(200, 200)]


def test_a_hundred_runs_leave_no_folder_no_file_and_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    agent, stores = Agent("support", "openai:gpt-5"), weakref.WeakSet[MemoryStore]()

    def count() -> tuple[int, int]:
        gc.collect()
        files = Path("/proc/self/fd")  # of Linux
        return len(list(files.iterdir())) if files.exists() else 0, threading.active_count()

    counts: list[tuple[int, int]] = []
    for n in range(100):
        store = MemoryStore()
        stores.add(store)
        with scripted(agent, ["Done."], store=store):
            assert agent.call_sync("Go.").content == "Done."
        counts += [count()] if n in (0, 99) else []
    del store
    gc.collect()
    files, threads = zip(*counts, strict=True)
    assert files[-1] <= files[0]
    assert threads[-1] <= threads[0]
    assert list(tmp_path.iterdir()) == []
    assert len(stores) == 0, "the connection is closed with its store"
