"""Caches of a worker in memory: least-recently-used, within one budget in bytes; and a journal with such a cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ..ports.store import Claim, Commit, EventBatch, Journal


V = TypeVar("V")

CACHE_BYTES = 256 * 1024 * 1024
"""Default budget of all caches of a worker."""
ENTRY_BYTES = 500
"""Bytes of an entry besides its value, measured with tracemalloc: its key (a hash), itself, and its two places."""


class CacheBudget:
    """A budget in bytes that several caches share: the least recently used entry of any of them is evicted first.

    Not thread-safe.
    """

    def __init__(self, bytes: int = CACHE_BYTES) -> None:
        self.bytes = bytes
        self.used = 0
        self.order: OrderedDict[int, _Entry] = OrderedDict()
        """Entries by ``id``, the least recently used first."""

    def shrink(self) -> None:
        """Evict entries until the budget is kept."""
        while self.used > self.bytes:
            _, entry = self.order.popitem(last=False)
            self.used -= entry.size
            entry.cache.drop_evicted(entry.key)


@dataclass(eq=False, slots=True)
class _Entry:
    cache: ByteLRU[Any]
    key: str
    value: Any
    size: int


class ByteLRU(Generic[V]):
    """A cache of values by key, each with its size, within a budget of its own (``budget`` bytes) or a shared one.

    A value that alone exceeds the budget is not kept, and evicts nothing. ``on_evict`` is called with the key of a
    value that is evicted or not kept. Of more than ``most`` values the one that was put first goes. Not thread-safe.
    """

    def __init__(
        self,
        budget: int | CacheBudget,
        on_evict: Callable[[str], object] = lambda _: None,
        *,
        most: int | None = None,
    ) -> None:
        self.budget = CacheBudget(budget) if isinstance(budget, int) else budget
        self._most = most
        self._entries: dict[str, _Entry] = {}
        self._on_evict = on_evict

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> V | None:
        """Return the value and mark it as the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self.budget.order.move_to_end(id(entry))
        value: V = entry.value
        return value

    def mark_used(self, keys: Sequence[str]) -> None:
        """Mark the values of ``keys`` that are kept as the most recently used, the last one above all."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self.budget.order.move_to_end(id(entry))

    def put(self, key: str, value: V, size: int) -> None:
        """Keep ``value`` (``size`` bytes, without its key and the cache's own objects) as the most recently used."""
        self.remove(key)
        entry = _Entry(self, key, value, size + ENTRY_BYTES)
        budget = self.budget
        if entry.size > budget.bytes:
            self._on_evict(key)
            return
        self._entries[key] = entry
        budget.order[id(entry)] = entry
        budget.used += entry.size
        budget.shrink()
        if self._most is not None and len(self._entries) > self._most:
            first = next(iter(self._entries))
            self.remove(first)
            self._on_evict(first)

    def remove(self, key: str) -> None:
        """Drop the value, if there is one. That is not reported as an eviction."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self.budget.order[id(entry)]
            self.budget.used -= entry.size

    def drop_evicted(self, key: str) -> None:
        """Remove ``key``, which the budget has evicted."""
        del self._entries[key]
        self._on_evict(key)


class CachedJournal:
    """A ``Journal`` that caches the outcomes that this process recorded, in front of another one. Used from one event
    loop.

    A recorded outcome never changes, so a copy is valid: a model call right after its tools reads nothing. Outcomes
    that are read are not cached: their bytes may be altered, which only the parsing caller notices, and an entry that
    is then restored must be read again.
    """

    def __init__(self, journal: Journal, *, cache: CacheBudget | None = None, max_outcomes: int | None = None) -> None:
        self._journal = journal
        self._outcomes: ByteLRU[bytes] = ByteLRU(cache or CacheBudget(), most=max_outcomes)

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the recorded outcomes among ``keys``."""
        outcomes = {key: body for key in keys if (body := self._outcomes.get(key)) is not None}
        if unknown := [key for key in keys if key not in outcomes]:
            outcomes |= await self._journal.find_outcomes(unknown)
        return outcomes

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """Record the intent of ``owner`` to act."""
        from ..ports.store import Claim

        body = self._outcomes.get(key)
        if body is not None:
            return Claim("done", body)
        return await self._journal.claim(key, owner, again=again, events=events)

    async def release_claim(self, key: str, owner: str) -> bool:
        """Delete the claim of an owner who has not acted."""
        return await self._journal.release_claim(key, owner)

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction; return the recorded outcome."""
        recorded = await self._journal.commit(commit)
        outcome = commit.outcome
        if outcome is not None and recorded == outcome.body:
            self._outcomes.put(outcome.key, outcome.body, len(outcome.body))
        return recorded
