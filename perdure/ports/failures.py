"""The port of calls that fail: which runs are held up by one, and how many attempts have failed, by cause.

A workflow does not see the attempts of its activities, so it is the store that knows. Rows are written in the
transaction of the ``error`` event of the attempt, and go in the transaction of what ends the call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from .times import add_seconds

if TYPE_CHECKING:
    from .. import events

HELD_UP_ATTEMPTS = 3
"""Failed attempts of one call, in a row, after which its run counts as held up. One or two pass unseen at any provider
under load; with Temporal's delays the third comes three seconds after the first, and has a cause that lasts."""

FailingKind = Literal["model", "compact", "close", "remind", "tool"]
"""What kind of call fails: of a model, of one for a summary, the record of an ending, reminders, or of a tool."""


class FailingCursor(NamedTuple):
    """The place of a failing call in a list: the list continues after it."""

    since: str
    context_id: str
    call: str


@dataclass(frozen=True, slots=True)
class FailingCall:
    """A call whose last attempt has failed, and that is tried again. Times: ISO 8601, UTC, by the worker's clock."""

    context_id: str
    call: str
    """The call's id for a tool; else the type of the activity: a run has one at a time."""
    root: str
    """The root of the run's tree; the run itself if it is the root."""
    agent: str
    tenant: str | None
    user: str | None
    kind: FailingKind
    source: str
    """What failed: ``"<provider>:<model>"``, or the tool's name; "" for the engine's own work and authors' code."""
    error_type: str
    error: str
    """The message of the last attempt's error, up to 1,000 characters."""
    status: int | None
    """HTTP status of the provider's answer."""
    attempts: int
    """Failed attempts in a row."""
    since: str
    """When the first of them failed."""
    last_at: str
    next_at: str
    """When the next attempt is due."""
    held_up_at: str | None = None
    """When the run was held up by it; None before :data:`HELD_UP_ATTEMPTS`."""

    def get_cursor(self) -> FailingCursor:
        """Return its place in the list."""
        return FailingCursor(self.since, self.context_id, self.call)


FailureKey = Literal["total", "hour", "day", "agent", "tenant"]
"""What failed attempts are summed by, beside their causes: ``hour`` and ``day`` of UTC, ``2026-11-28T23``."""


@dataclass(frozen=True, slots=True)
class FailureFilter:
    """Which failed attempts. None and "" are all."""

    since: str = ""
    """In the hour of this time (ISO 8601, UTC), or later."""
    until: str = ""
    """Before the hour of this time."""
    agent: str | None = None
    source: str | None = None
    tenant: str | None = None
    """"" for those without one."""
    tenants: Sequence[str] | None = None
    """Only those of these tenants, and of these ``agents``."""
    agents: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """A number of failed attempts with one cause."""

    key: str | None
    """What they have in common, by :data:`FailureKey`; None for a total, and for those without a tenant."""
    kind: FailingKind
    source: str
    """As in :class:`FailingCall`."""
    status: int | None
    error_type: str
    attempts: int
    ended: int
    """Those of them after which the call was not tried again: a wrong key, a refused request."""


class Failures(Protocol):
    """The calls that fail, and the counts of failed attempts. All methods raise ``StoreError`` when the store fails.

    A row goes with the first of: the call's outcome, an error after which it is not tried again, the run's next reply,
    the end of its turn, its own end. So a row may be out of date only if a run ended without a worker, until a client
    has recorded the end.
    """

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
        """List the calls that hold their runs up, or all that fail, those that have failed for longest first."""

    async def list_run_failures(
        self, context_ids: Sequence[str], *, held_up: bool = True, limit: int = 1000
    ) -> dict[str, tuple[FailingCall, ...]]:
        """Return for each of these runs the calls that fail in it and in the runs below it, the oldest first; a run
        without one is left out."""

    async def count_held_up(self, *, agent: str | None = None) -> int:
        """Count the trees of runs with a run that is held up."""

    async def remove_failing_calls(self, context_id: str) -> None:
        """Remove the rows of a run that has ended without a record."""

    async def sum_failed_attempts(
        self, by: FailureKey = "total", filter: FailureFilter | None = None, *, limit: int = 1000
    ) -> list[FailedAttempts]:
        """Sum failed attempts by a key and their cause, the most first; hours and days the newest first."""


# ---
# What events change.


class FailureChange(NamedTuple):
    """What an event changes in the failing calls, once it is recorded. Fields are texts: they are sent as one array."""

    position: int
    """Index of the event in its batch."""
    action: Literal["fail", "end", "count", "hold_up", "recover"]
    """``fail``: an attempt that another follows. ``end``: one that none follows. ``count``: another model was called
    instead. ``hold_up``, ``recover``: the event is dropped unless the call has just held its run up, or has done so;
    the latter also ends it."""
    call: str
    kind: FailingKind = "model"
    source: str = ""
    status: str = ""
    error_type: str = ""
    error: str = ""
    at: str = ""
    next_at: str = ""
    key: str = ""
    """Of the row that counts it."""


_KINDS: dict[str, FailingKind] = {
    "perdure.model": "model",
    "perdure.compact": "compact",
    "perdure.close": "close",
    "perdure.remind": "remind",
}


def find_failure_changes(
    events: Iterable[events.Event], *, agent: str, tenant: str | None, user: str | None
) -> list[FailureChange]:
    """Return what ``events`` of a run change in the failing calls, in their order. What ends a step, a turn or a run
    changes more: see ``waits.find_wait_changes``, whose changes of all calls of a run are those of its failing ones."""
    changes: list[FailureChange] = []
    for position, event in enumerate(events):
        if event.type == "error":
            changes.append(_build_failure_change(position, event, agent, tenant, user))
        elif event.type == "run" and event.failing_call is not None:
            action: Literal["hold_up", "recover"] = "hold_up" if event.state == "held_up" else "recover"
            changes.append(FailureChange(position, action, event.failing_call, at=event.at))
    return changes


def _build_failure_change(
    position: int, event: events.ErrorEvent, agent: str, tenant: str | None, user: str | None
) -> FailureChange:
    kind = _KINDS.get(event.activity, "tool")
    follows = "count" if event.fallback is not None else "end" if event.retry_in is None else "fail"
    status = "" if event.status is None else str(event.status)
    cause = (agent, tenant or "", user or "", kind, event.source, status, event.error_type)
    digest = hashlib.sha256(json.dumps(cause).encode()).hexdigest()
    return FailureChange(
        position,
        follows,  # type: ignore[arg-type]  # one of the three
        event.call_id or event.activity,
        kind,
        event.source,
        status,
        event.error_type,
        event.error,
        event.at,
        event.at if event.retry_in is None else _add_delay(event.at, event.retry_in),
        f"{event.at[:13]}/{digest}",
    )


def _add_delay(at: str, seconds: float) -> str:
    try:
        return add_seconds(at, seconds)
    except (OverflowError, ValueError):  # later than the year 9999; an event without a time
        return at
