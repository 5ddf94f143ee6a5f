"""Writes and reads the calls that fail, and the counts of failed attempts; what events change: `ports/failures.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..ports.failures import (
    HELD_UP_ATTEMPTS,
    FailedAttempts,
    FailingCall,
    FailingCursor,
    FailingKind,
    FailureChange,
    FailureFilter,
    FailureKey,
    find_failure_changes,
)
from ..ports.store import EventBatch
from ..ports.waits import WaitChange
from .schema import Database, Tables, split_keys
from .statements import load_statements

if TYPE_CHECKING:
    from ..types.events import Event

SQL = load_statements("failures")

# ---
# Writing: PostgreSQL does this in perdure_append_0001.


def encode_failure_changes(batch: EventBatch, events: Sequence[Event]) -> list[str | None]:
    """Return what ``events`` change, as PostgreSQL takes it: the token of the writer's activity, whose run it is, when
    a run is held up, and behind these the fields of each change, its position from 1; empty without a change."""
    changes = find_failure_changes(events, agent=batch.agent, tenant=batch.tenant, user=batch.user)
    if not changes:
        return []
    labels = [batch.agent, batch.tenant, batch.user]
    encoded: list[str | None] = [batch.token or batch.scheduled, *labels, str(HELD_UP_ATTEMPTS)]
    for position, *values in changes:
        encoded += [str(position + 1), *values]
    return encoded


class _LockedFeed(Protocol):
    """What is needed of the feed of a batch."""

    context_id: str
    stream: str
    failing: int


class FailureWriter:
    """Changes the failing calls with the events of a batch. The feed's lock orders the changes of a run.

    Nothing is looked up for a run of which ``feed.failing`` says that no call fails.
    """

    def __init__(self, database: Database, feed: _LockedFeed, batch: EventBatch, *, is_of_lost_worker: bool) -> None:
        self._database, self._feed, self._batch = database, feed, batch
        events = [new.event for new in batch.events]
        changes = find_failure_changes(events, agent=batch.agent, tenant=batch.tenant, user=batch.user)
        self._changes = {change.position: change for change in changes}
        self._is_of_lost_worker = is_of_lost_worker

    def confirm_event(self, index: int) -> bool:
        """Whether the event of that index is to be written, and change what it says of its call."""
        change = self._changes.get(index)
        if change is None or change.action not in ("hold_up", "recover"):
            return True
        if not self._feed.failing or self._is_of_lost_worker:
            return False
        if change.action == "hold_up":
            held_up = {"call": change.call, "at": change.at, "most": HELD_UP_ATTEMPTS}
            return self._database.run(SQL.hold_up, context_id=self._feed.context_id, **held_up).rowcount == 1
        return self._end_call(change.call) is not None

    def note_event(self, index: int, type: str, wait_changes: Iterable[WaitChange]) -> None:
        """Change what the event of that index, which is written, changes beside itself."""
        change = self._changes.get(index)
        if change is not None and change.action in ("fail", "end", "count"):
            self._note_failure(change)
        if not self._feed.failing:
            return
        if type == "model.started":  # every call of a tool has a result
            self._end_calls(kind="tool")
        for wait_change in wait_changes:  # what ends the waits of a run or a call, ends its failures
            if wait_change.context_id != self._feed.context_id or wait_change.kind is not None:
                continue
            if wait_change.call_id is None:
                self._end_calls()
            else:
                self._end_call(wait_change.call_id)

    def _note_failure(self, change: FailureChange) -> None:
        names = {"kind": change.kind, "source": change.source, "error_type": change.error_type}
        labels = {"agent": self._batch.agent, "tenant": self._batch.tenant, "user_id": self._batch.user}
        row: dict[str, Any] = {**names, **labels, "status": int(change.status) if change.status else None}
        counted = {"key": change.key, "hour": change.at[:13], "ended": int(change.action == "end")}
        self._database.run(SQL.count_failed_attempt, **row, **counted)
        if change.action == "end":
            if self._feed.failing:
                self._end_call(change.call)
        elif change.action == "fail":
            of_run = {"context_id": self._feed.context_id, "call": change.call, "root": self._feed.stream}
            times = {"at": change.at, "next_at": change.next_at}
            self._database.run(SQL.write_failing_call, **row, **of_run, **times, error=change.error)
            self._feed.failing = 1

    def _end_call(self, call: str) -> str | None:
        """Delete the call, and return when it held its run up, if it did."""
        ended = self._database.run(SQL.end_failing_call, context_id=self._feed.context_id, call=call).fetchone()
        self._look_for_others()
        return None if ended is None else ended[0]

    def _end_calls(self, kind: str | None = None) -> None:
        self._database.run(SQL.end_failing_calls, context_id=self._feed.context_id, kind=kind)
        if kind is None:
            self._feed.failing = 0
        else:
            self._look_for_others()

    def _look_for_others(self) -> None:
        others = self._database.run(SQL.has_failing_call, context_id=self._feed.context_id).fetchone()
        self._feed.failing = int(others is not None)


# ---
# Reading.


class FailureTables(Tables):
    """The methods of :class:`perdure.ports.failures.Failures`, for a store in a database."""

    async def list_failing_calls(
        self,
        *,
        held_up: bool = True,
        agent: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        after: FailingCursor | None = None,
        limit: int = 100,
    ) -> list[FailingCall]:
        """See :class:`perdure.ports.failures.Failures`."""
        since, context_id, call = after or (None, None, None)
        place = {"since": since, "after_id": context_id, "after_call": call}
        labels = {"agent": agent, "tenant": tenant, "user": user}
        rows = await self._select_rows(SQL.list_failing_calls, held_up=held_up, **labels, **place, limit=limit)
        return [FailingCall(*row) for row in rows]

    async def list_run_failures(
        self, context_ids: Sequence[str], *, held_up: bool = True, limit: int = 1000
    ) -> dict[str, tuple[FailingCall, ...]]:
        """See :class:`perdure.ports.failures.Failures`."""
        found: dict[str, list[FailingCall]] = {}
        for keys in split_keys(context_ids):
            for run_id, *row in await self._select_rows(
                SQL.list_run_failures, context_ids=keys, held_up=held_up, limit=limit
            ):
                found.setdefault(run_id, []).append(FailingCall(*row))
        return {run_id: tuple(calls) for run_id, calls in found.items()}

    async def count_held_up(self, *, agent: str | None = None) -> int:
        """See :class:`perdure.ports.failures.Failures`."""
        rows = await self._select_rows(SQL.count_held_up, agent=agent)
        return int(rows[0][0]) if rows else 0

    async def remove_failing_calls(self, context_id: str) -> None:
        """See :class:`perdure.ports.failures.Failures`."""
        await self._change_rows(SQL.remove_failing_calls, context_id=context_id)

    async def sum_failed_attempts(
        self, by: FailureKey = "total", filter: FailureFilter | None = None, *, limit: int = 1000
    ) -> list[FailedAttempts]:
        """See :class:`perdure.ports.failures.Failures`."""
        chosen = filter or FailureFilter()
        values = {
            "since": chosen.since[:13],
            "until": chosen.until[:13] or None,
            "agent": chosen.agent,
            "source": chosen.source,
            "tenant": chosen.tenant or None,
            "without_tenant": chosen.tenant == "",
            "tenants": chosen.tenants,
            "agents": chosen.agents,
        }
        rows = await self._select_rows(SQL.sum_failed_attempts, key=by, limit=limit, **values)
        return [_build_failed_attempts(*row) for row in rows]


def _build_failed_attempts(
    key: str | None, kind: FailingKind, source: str, status: int | None, error_type: str, attempts: Any, ended: Any
) -> FailedAttempts:
    return FailedAttempts(key, kind, source, status, error_type, int(attempts), int(ended))  # sums may be decimals
