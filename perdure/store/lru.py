"""Least-recently-used caches that share one budget in bytes, for a worker's copies of what never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

V = TypeVar("V")

CACHE_BYTES = 256 * 1024 * 1024
"""Default budget of all caches of a worker."""
ENTRY_BYTES = 500
"""What an entry takes besides its value, measured with tracemalloc: its key (a hash), itself, and its two places."""


class CacheBudget:
    """Bytes that caches may take together: the least recently used entry of any of them leaves first.

    Not for several threads at once.
    """

    def __init__(self, bytes: int = CACHE_BYTES) -> None:
        self.bytes = bytes
        self.used = 0
        self.order: OrderedDict[int, _Entry] = OrderedDict()
        """Entries by ``id``, the least recently used first."""

    def shrink(self) -> None:
        """Evict until the budget is kept."""
        while self.used > self.bytes:
            _, entry = self.order.popitem(last=False)
            self.used -= entry.size
            entry.cache.forget(entry.key)


class _Entry:
    __slots__ = ("cache", "key", "size", "value")

    def __init__(self, cache: ByteLRU[Any], key: str, value: Any, size: int) -> None:
        self.cache = cache
        self.key = key
        self.value = value
        self.size = size


class ByteLRU(Generic[V]):
    """Values by key, each with its size, within a budget of its own (``budget`` bytes) or a shared one.

    A value that alone is over the budget is not kept, and nothing leaves for it. Not for several threads at once.
    """

    def __init__(self, budget: int | CacheBudget, on_evict: Callable[[str], None] | None = None) -> None:
        self.budget = CacheBudget(budget) if isinstance(budget, int) else budget
        self._entries: dict[str, _Entry] = {}
        self._on_evict = on_evict

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def peek(self, key: str) -> V | None:
        """The value, without counting as use."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def get(self, key: str) -> V | None:
        """The value, which is now the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self.budget.order.move_to_end(id(entry))
        value: V = entry.value
        return value

    def touch(self, keys: list[str]) -> None:
        """Count as used, in this order, what is there of ``keys``."""
        move, entries = self.budget.order.move_to_end, self._entries
        for key in keys:
            if key in entries:
                move(id(entries[key]))

    def put(self, key: str, value: V, size: int) -> None:
        """Keep ``value`` (``size`` bytes, without its key and the cache's own objects) as the most recently used."""
        self.remove(key)
        entry = _Entry(self, key, value, size + ENTRY_BYTES)
        budget = self.budget
        if entry.size > budget.bytes:
            if self._on_evict is not None:
                self._on_evict(key)
            return
        self._entries[key] = entry
        budget.order[id(entry)] = entry
        budget.used += entry.size
        budget.shrink()

    def remove(self, key: str) -> None:
        """Drop the value, if there is one. That is not reported as an eviction."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self.budget.order[id(entry)]
            self.budget.used -= entry.size

    def forget(self, key: str) -> None:
        """The budget has evicted ``key``."""
        del self._entries[key]
        if self._on_evict is not None:
            self._on_evict(key)
