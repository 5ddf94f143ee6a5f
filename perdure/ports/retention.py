"""Retention: what a collector of old runs, transcripts and blobs reads and deletes in a store. See decision 039."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OldRun:
    """A run by the time of its first row, and the root of its tree (itself for a root)."""

    created_at: str
    context_id: str
    root: str


@dataclass(frozen=True, slots=True)
class RunTree:
    """A root run and all runs below it, as they were read."""

    root: str
    statuses: Mapping[str, str | None]
    """Status of each run; None for one that has events and no row yet."""
    heads: Sequence[str]
    """Heads of the runs and their turns."""
    updated_at: str
    """Time of the last write to a row of the runs; "" without rows."""
    seq: int | None
    """The last number of the tree's events; None without any."""


@dataclass(frozen=True, slots=True)
class Collectable:
    """A node or blob without its body."""

    hash: str
    used_on: str
    """The day (UTC) on which it was written, or referred to again."""
    size: int
    """Bytes of its body in the database."""
    parent: str | None = None
    is_needed: bool = False
    """Whether another row refers to it."""


class Retention(Protocol):
    """The operations of a collector: each is one transaction. All methods raise ``StoreError``.

    Days are ISO dates (UTC). A writer that refers to a node or blob sets its day to the present one in the transaction
    of the reference; deletions take only what is older than their ``before_day``.
    """

    async def read_old_runs(self, before: str, after: tuple[str, str], limit: int) -> list[OldRun]:
        """Return runs created before a time, by that time and id; ``after``: those of the last one before."""

    async def read_tree(self, root: str) -> RunTree:
        """Return the tree of a root run."""

    async def delete_tree(self, tree: RunTree, grace_day: str, *, for_good: bool = False) -> bool:
        """Delete the runs of ``tree`` with all their rows, or nothing: False if they were written to since it was read.

        Their nodes and blobs stay, and get ``grace_day`` if their day is earlier. ``for_good``: their ids are not given
        again, as rows of them are kept (``audit``, ``usage``): a write of a run of such an id raises ``RunIdError``.
        """

    async def find_deleted(self, ids: Sequence[str]) -> set[str]:
        """Return those of ``ids`` that were deleted for good."""

    async def renew(self, hashes: Sequence[str], before_day: str, today: str) -> None:
        """Set the day of those nodes and blobs of ``hashes`` to ``today`` whose day is earlier than ``before_day``."""

    async def read_memory_references(
        self, after: tuple[str, str], limit: int
    ) -> tuple[tuple[str, str] | None, set[str]]:
        """Return the hashes of blobs that ``limit`` values of the memory name, and where the next ones begin, None at
        the end; begins after ``("", "")``."""

    async def read_old_nodes(self, before_day: str, after: tuple[str, str], limit: int) -> list[Collectable]:
        """Return nodes used before a day, by day and hash; ``after``: those of the last one before."""

    async def read_nodes_above(self, nodes: Sequence[Collectable], before_day: str) -> list[Collectable]:
        """Return the parents of ``nodes``, and the heads that they replace, that were used before a day."""

    async def read_old_blobs(self, before_day: str, after: tuple[str, str], limit: int) -> list[Collectable]:
        """As ``read_old_nodes``, for blobs."""

    async def read_holders(self, names: Sequence[str]) -> dict[str, set[str]]:
        """Return what refers to each of these nodes or blobs: hashes of nodes, and ids of runs."""

    async def delete_nodes(self, names: Sequence[str], before_day: str) -> list[Collectable]:
        """Delete those of ``names`` to which nothing refers, and that were used before a day; return them."""

    async def delete_blobs(self, names: Sequence[str], before_day: str) -> list[Collectable]:
        """Delete those of ``names`` to which nothing refers, and that were used before a day; return them."""

    async def find_blobs(self, names: Sequence[str]) -> set[str]:
        """Return which of these blobs exist."""
