"""Bulk actions: one request to resume or cancel many runs, the runs that it is for, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from .webhooks import RowCursor

BulkVerb = Literal["resume", "cancel"]
"""What is done to each run."""
BulkState = Literal["running", "completed", "stopped"]
"""``stopped``: the rest of its runs is left as it is."""
BulkOutcome = Literal["pending", "acted", "skipped", "refused", "failed"]
"""Of one run: ``acted``; ``skipped``, for there was nothing to do any more; ``refused``, for want of a permission;
``failed``, with an error. ``pending`` until then."""
OUTCOMES: tuple[BulkOutcome, ...] = get_args(BulkOutcome)


@dataclass(frozen=True, slots=True)
class BulkRow:
    """A bulk action. It and its runs are deleted 30 days after it ended."""

    id: str
    verb: BulkVerb
    filter: str
    """JSON: which runs it was for."""
    tenant: str | None
    user: str | None
    """The tenant and the user that the filter, or who confirmed it, was limited to."""
    by: str
    auth: str
    origin: str
    """Who has confirmed it, how that is known, and from where: as in the audit trail."""
    total: int
    """Number of its runs, with those that were refused."""
    per_second: float
    """Most runs acted on in a second."""
    concurrency: int
    """Most runs acted on at a time."""
    state: BulkState = "running"
    created_at: str = ""
    """ISO 8601, UTC, microseconds; set by the store, as ``ended_at``."""
    ended_at: str | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class BulkRunRow:
    """A run of a bulk action."""

    context_id: str
    position: int
    """In the order in which they are acted on, from 0."""
    execution: str
    """Temporal's run id of the execution that was chosen; "" if Temporal did not know it."""
    agent: str
    tenant: str | None = None
    user: str | None = None
    outcome: BulkOutcome = "pending"
    detail: str | None = None
    """Why it was skipped, refused or failed."""
    attempts: int = 0
    """How many attempts have begun to act on it."""
    done_at: str | None = None


class BulkActions(Protocol):
    """Bulk actions and their runs. All methods raise ``StoreError`` when the store fails."""

    async def create_bulk(self, row: BulkRow, runs: Sequence[BulkRunRow]) -> None:
        """Record a bulk action with its runs; nothing if its id is recorded."""

    async def get_bulk(self, id: str) -> BulkRow | None:
        """Return one bulk action."""

    async def list_bulks(self, *, after: RowCursor | None = None, limit: int = 100) -> list[BulkRow]:
        """List bulk actions, the newest first. ``after``: ``created_at`` and ``id`` of the last row of the page
        before."""

    async def end_bulk(self, id: str, state: BulkState, by: str | None = None) -> bool:
        """Record that a running bulk action has ended; false if it is not running. Nothing of it begins from then
        on."""

    async def list_bulk_runs(
        self, id: str, *, outcome: BulkOutcome | None = None, after: int = -1, limit: int = 100
    ) -> list[BulkRunRow]:
        """List the runs behind that position, in their order."""

    async def count_bulk_runs(self, ids: Sequence[str]) -> Mapping[str, Mapping[BulkOutcome, int]]:
        """Count the runs of each bulk action by their outcome."""

    async def begin_bulk_run(self, id: str, context_id: str) -> int | None:
        """Record that an attempt to act on a pending run begins, and return its number from 1. None if the run is not
        pending, or the bulk action has ended: then nothing is done."""

    async def settle_bulk_run(self, id: str, context_id: str, outcome: BulkOutcome, detail: str | None = None) -> bool:
        """Record what became of a run; false if that is recorded."""

    async def delete_old_bulks(self, before: str) -> int:
        """Delete bulk actions that ended before that time, with their runs; return how many. One that never ended is
        deleted by the time at which it was made."""
