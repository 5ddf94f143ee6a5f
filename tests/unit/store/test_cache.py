"""The cache in front of the journal, and the bounded cache itself."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from perdure.ports.store import Claim, Commit, EventBatch, MemoryWrite, NewEvent, Outcome, TurnRow
from perdure.store import Chain
from perdure.store.cache import ENTRY_BYTES, ByteLRU, CacheBudget, CachedJournal
from perdure.testing.store import MemoryStore
from perdure.types.events import LimitReached
from perdure.types.messages import Message


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def find_outcomes(self, keys):
        self.asked.append(list(keys))
        return await super().find_outcomes(keys)


class Forgetting(MemoryStore):
    """Takes every outcome, and keeps none."""

    async def commit(self, commit: Commit) -> bytes | None:
        return commit.outcome.body if commit.outcome is not None else None


async def test_what_was_committed_is_not_read():
    store = CountingStore()
    journal = CachedJournal(store)
    assert await journal.commit(Commit(outcome=Outcome("a", "tool", b"1"))) == b"1"
    assert await journal.find_outcomes(["a"]) == {"a": b"1"}
    assert await journal.claim("a", "me") == Claim("done", b"1")
    assert store.asked == []


async def test_only_what_others_recorded_is_read():
    store = CountingStore()
    await store.commit(Commit(outcome=Outcome("b", "tool", b"2")))
    journal = CachedJournal(store)
    await journal.commit(Commit(outcome=Outcome("a", "tool", b"1")))
    assert await journal.find_outcomes(["a", "b", "c"]) == {"a": b"1", "b": b"2"}
    assert store.asked == [["b", "c"]]


async def test_keeps_the_outcome_that_won():
    store = MemoryStore()
    await store.commit(Commit(outcome=Outcome("a", "tool", b"first")))
    journal = CachedJournal(store)
    assert await journal.commit(Commit(outcome=Outcome("a", "tool", b"late"))) == b"first"
    assert await journal.find_outcomes(["a"]) == {"a": b"first"}


async def test_a_commit_reaches_the_store_as_it_is():
    store = MemoryStore()
    commit = Commit(
        outcome=Outcome("a", "tool", b"1"), turn=TurnRow("c", "t", "running"), memory=[MemoryWrite("n", "k", b"1")]
    )
    await CachedJournal(store).commit(commit)
    assert store.commits[0] is commit
    assert await store.get_turn("c", "t") == commit.turn
    assert await store.recall("n", "k") == b"1"


async def test_claims_go_to_the_store():
    store = MemoryStore()
    journal = CachedJournal(store)
    assert await journal.claim("a", "one") == Claim("new")
    assert await journal.claim("a", "two") == Claim("begun", begun_by="one")
    assert await journal.claim("a", "two", again=True) == Claim("new", starts=2, begun_by="one")
    await store.commit(Commit(outcome=Outcome("a", "tool", b"1")))
    assert await journal.claim("a", "two") == Claim("done", b"1")
    assert await journal.commit(Commit()) is None


async def test_events_go_along():
    store = MemoryStore()
    journal = CachedJournal(store)
    events = EventBatch("c", [NewEvent(LimitReached())])
    await journal.claim("a", "me", events=events)
    await journal.commit(Commit(outcome=Outcome("a", "tool", b"1"), events=events))
    assert await journal.claim("a", "me", events=events) == Claim("done", b"1")
    assert [row.seq for row in await store.read_events("c")] == [1, 2]


def test_the_least_recently_used_leave():
    gone: list[str] = []
    cache: ByteLRU[int] = ByteLRU(10 + 3 * ENTRY_BYTES, gone.append)
    for name in "abc":
        cache.put(name, 1, 3)
    assert cache.get("a") == 1
    cache.put("d", 1, 3)
    assert gone == ["b"]
    assert (cache.get("c"), cache.get("unknown")) == (1, None)
    cache.put("c", 2, 6 + ENTRY_BYTES)
    assert (cache.get("c"), cache.get("a"), cache.get("d")) == (2, None, 1)
    assert cache.budget.used == 9 + 3 * ENTRY_BYTES
    cache.put("e", 1, 10**6)
    assert ("e" in cache, sorted("cd") == [name for name in "cde" if name in cache]) == (False, True), "nothing left"
    cache.remove("c")
    cache.remove("d")
    assert (cache.budget.used, len(cache.budget.order)) == (0, 0)


async def test_so_many_outcomes_are_kept_and_the_first_leaves():
    store = CountingStore()
    journal = CachedJournal(store, max_outcomes=2)
    for name in "abc":
        await journal.commit(Commit(outcome=Outcome(name, "tool", b"1")))
    await journal.find_outcomes(["b", "c"])
    assert store.asked == []
    await journal.find_outcomes(["a"])
    assert store.asked == [["a"]]


def test_caches_of_one_budget_take_room_from_each_other():
    budget = CacheBudget(4 * (100 + ENTRY_BYTES))
    one: ByteLRU[str] = ByteLRU(budget)
    other: ByteLRU[str] = ByteLRU(budget)
    for n in range(4):
        one.put(str(n), "of one", 100)
    one.get("0")
    other.put("0", "of the other", 100)
    assert [key for key in "0123" if key in one] == ["0", "2", "3"], "the least recently used of both"
    assert (one.get("0"), other.get("0")) == ("of one", "of the other")


@pytest.mark.parametrize("size", [10, 2_000, 100_000])
async def test_the_budget_in_bytes_holds_for_many_small_values_and_for_large_ones(size: int) -> None:
    """Of transcripts and outcomes together, as the allocator counts."""
    budget = 300_000
    cache = CacheBudget(budget)
    chain, journal = Chain(MemoryStore(), cache=cache), CachedJournal(Forgetting(), cache=cache)
    head = None
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(max(40, 1_500_000 // (size + 4_000))):
            said = [Message.user(f"{n}" + "x" * size)]
            node, _ = chain.extend(head, said)
            chain.remember(node, said)
            await journal.commit(Commit(outcome=Outcome(f"{n:064}", "tool", b"x" * (size + n % 7))))
            head = node.hash
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert budget / 8 < held < budget * 1.1
