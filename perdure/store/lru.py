"""A least-recently-used cache bounded by bytes, for the worker-local copies of what never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class ByteLRU(Generic[V]):
    """Values by key, each with its size; the least recently used leave when their sum passes ``budget``.

    A value that alone is over the budget is not kept. Not for several threads at once.
    """

    def __init__(self, budget: int, on_evict: Callable[[str], None] | None = None) -> None:
        self.budget = budget
        self.used = 0
        self._entries: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._on_evict = on_evict

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def peek(self, key: str) -> V | None:
        """The value, without counting as use."""
        entry = self._entries.get(key)
        return entry[0] if entry is not None else None

    def get(self, key: str) -> V | None:
        """The value, which is now the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def touch(self, keys: list[str]) -> None:
        """Count as used, in this order, what is there of ``keys``."""
        move, entries = self._entries.move_to_end, self._entries
        for key in keys:
            if key in entries:
                move(key)

    def put(self, key: str, value: V, size: int) -> None:
        """Keep ``value`` (``size`` bytes) as the most recently used."""
        old = self._entries.pop(key, None)
        self.used += size - (old[1] if old else 0)
        self._entries[key] = (value, size)
        while self.used > self.budget and self._entries:
            gone, (_, freed) = self._entries.popitem(last=False)
            self.used -= freed
            if self._on_evict is not None:
                self._on_evict(gone)
