"""The cache in front of the journal, and the bounded cache itself."""

from __future__ import annotations

from perdure.ports import Batch, Claim, Commit, MemoryWrite, NewEvent, Outcome, TurnRow
from perdure.store.journal import CachedJournal
from perdure.store.lru import ByteLRU
from perdure.testing.store import MemoryStore
from perdure.types.events import LimitReached


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def find(self, keys):
        self.asked.append(list(keys))
        return await super().find(keys)


async def test_what_was_committed_is_not_read():
    store = CountingStore()
    journal = CachedJournal(store)
    assert await journal.commit(Commit(outcome=Outcome("a", "tool", b"1"))) == b"1"
    assert await journal.find(["a"]) == {"a": b"1"}
    assert await journal.claim("a", "me") == Claim("done", b"1")
    assert store.asked == []


async def test_only_what_others_recorded_is_read():
    store = CountingStore()
    await store.commit(Commit(outcome=Outcome("b", "tool", b"2")))
    journal = CachedJournal(store)
    await journal.commit(Commit(outcome=Outcome("a", "tool", b"1")))
    assert await journal.find(["a", "b", "c"]) == {"a": b"1", "b": b"2"}
    assert store.asked == [["b", "c"]]


async def test_keeps_the_outcome_that_won():
    store = MemoryStore()
    await store.commit(Commit(outcome=Outcome("a", "tool", b"first")))
    journal = CachedJournal(store)
    assert await journal.commit(Commit(outcome=Outcome("a", "tool", b"late"))) == b"first"
    assert await journal.find(["a"]) == {"a": b"first"}


async def test_a_commit_reaches_the_store_as_it_is():
    store = MemoryStore()
    commit = Commit(
        outcome=Outcome("a", "tool", b"1"), turn=TurnRow("c", "t", "running"), memory=[MemoryWrite("n", "k", b"1")]
    )
    await CachedJournal(store).commit(commit)
    assert store.commits[0] is commit
    assert await store.turn("c", "t") == commit.turn
    assert await store.recall("n", "k") == b"1"


async def test_claims_go_to_the_store():
    store = MemoryStore()
    journal = CachedJournal(store)
    assert await journal.claim("a", "one") == Claim("new")
    assert await journal.claim("a", "two") == Claim("begun")
    assert await journal.claim("a", "two", again=True) == Claim("new", starts=2)
    await store.commit(Commit(outcome=Outcome("a", "tool", b"1")))
    assert await journal.claim("a", "two") == Claim("done", b"1")
    assert await journal.commit(Commit()) is None


async def test_events_go_along():
    store = MemoryStore()
    journal = CachedJournal(store)
    events = Batch("c", [NewEvent(LimitReached())])
    await journal.claim("a", "me", events=events)
    await journal.commit(Commit(outcome=Outcome("a", "tool", b"1"), events=events))
    assert await journal.claim("a", "me", events=events) == Claim("done", b"1")
    assert [row.seq for row in await store.events("c")] == [1, 2]


def test_the_least_recently_used_leave():
    gone: list[str] = []
    cache: ByteLRU[int] = ByteLRU(10, gone.append)
    for name in "abc":
        cache.put(name, 1, 3)
    assert cache.get("a") == 1
    cache.put("d", 1, 3)
    assert gone == ["b"]
    cache.touch(["c", "unknown"])
    cache.put("c", 2, 9)
    assert (cache.get("c"), cache.peek("d"), len(cache), cache.used) == (2, None, 1, 9)
    cache.put("e", 1, 11)
    assert (len(cache), cache.used, "e" in cache) == (0, 0, False)
