"""The port of the inbox: the calls of all runs that wait for a person or a client.

A run does not need it. Rows are written in the transaction of the events that they follow from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, Protocol

from .. import events
from ..types.approvals import PendingKind
from ..types.run_states import ENDED_STATES
from ..types.subagents import Lineage
from .times import add_seconds

WaitOrder = Literal["since", "expiry", "amount"]
"""``since``: the longest waiting first. ``expiry``: those that expire, the soonest first. ``amount``: those that have
one, the largest first."""
WaitGroup = Literal["tool", "user", "tenant"]
"""What calls of a list are together by; those without a user, or a tenant, come first."""


class WaitCursor(NamedTuple):
    """The place of a wait in a list: the list continues after it."""

    at: str
    """``created_at`` of the wait; in the other orders its ``expires_at``, or its ``amount``."""
    context_id: str
    call_id: str
    name: str = ""
    """The tool, user or tenant of the wait, in a list with a group."""


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A call that waits for an approval or an answer."""

    context_id: str
    call_id: str
    root: str
    """The root of the run's tree; the run itself if it is the root."""
    kind: PendingKind
    agent: str
    tool: str
    hash: str
    """Identifies what is asked for: a decision or an answer is sent with it."""
    created_at: str
    """ISO 8601, UTC, microseconds, by the worker's clock. The run's ``status`` has its own times, which are later by
    the time that the activity took to report."""
    expires_at: str | None = None
    """When it expires at the earliest, as ``created_at``; None if it does not."""
    summary: str = ""
    """The call or its question in one line."""
    amount: float | None = None
    """The number of its arguments by which it is sorted."""
    tenant: str | None = None
    """The tenant and the user of the run, in a list of waits; not kept with the wait."""
    user: str | None = None
    body: bytes | None = None
    """JSON of its event, ``approval.requested`` or ``question.asked``, as stored: see ``types.events.decode_event``.
    None if the event was deleted."""

    def get_cursor(self, order: WaitOrder = "since", group: WaitGroup | None = None) -> WaitCursor:
        """Return its place in the list of that order and group."""
        places = {"since": self.created_at, "expiry": self.expires_at, "amount": self.amount and repr(self.amount)}
        name = "" if group is None else getattr(self, group) or ""
        return WaitCursor(places[order] or "0", self.context_id, self.call_id, name)


@dataclass(frozen=True, slots=True)
class RunWaits:
    """What a run waits for, as far as the store knows."""

    waits: tuple[WaitRow, ...] = ()
    """Calls that wait in the run and in the runs below it, the oldest first, without their bodies."""
    is_at_work: bool = False
    """Whether a call has begun, or failed, since the run's row was written: ``RunRow.status`` is from before it."""


class Waits(Protocol):
    """The calls that wait for a person or a client. All methods raise ``StoreError`` when the store fails.

    A row is written with the event that asks, and goes with the first of: the event of the decision, answer or result;
    the run's next reply; the end of its turn; its own end. So there may be rows that are out of date: of a call that
    is decided but not begun, and of a run that ended without a worker, until a client has recorded the end. What a
    person is to decide on is checked with the run. After a reset by Temporal's own tools, calls may wait without a row.
    """

    async def list_waits(
        self,
        *,
        agent: str | None = None,
        kind: PendingKind | None = None,
        tool: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        text: str | None = None,
        order: WaitOrder = "since",
        group: WaitGroup | None = None,
        after: WaitCursor | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """List waits in an order, with a group those of a group together. ``text`` occurs in the summary, the tool or
        the run's id, letters of ASCII in either case. ``after`` is the cursor of the last row of the page before."""

    async def count_wait_groups(
        self, group: WaitGroup, *, agent: str | None = None, kind: PendingKind | None = None, limit: int = 100
    ) -> dict[str, int]:
        """Count the waits of each tool, user or tenant, those with most first; "" for those without one."""

    async def list_run_waits(self, context_ids: Sequence[str], *, limit: int = 1000) -> dict[str, RunWaits]:
        """Return what each of these runs waits for: of all together the ``limit`` oldest waits. A wait in a subagent is
        of each run above it."""

    async def count_waits(self, *, agent: str | None = None) -> int:
        """Count the waits."""

    async def put_wait(self, row: WaitRow) -> None:
        """Add the wait of a call that waits without a row; nothing if there is one. Its ``body`` is not kept."""

    async def remove_wait(self, context_id: str, call_id: str, hash: str | None = None) -> None:
        """Remove the wait of a call that has been decided or answered; with ``hash`` only a wait for that."""


class WaitChange(NamedTuple):
    """What an event changes in the waits, once it is recorded."""

    position: int
    """Index of the event in its batch."""
    context_id: str
    call_id: str | None = None
    """None for all calls of the run."""
    kind: PendingKind | None = None
    """None for a wait that ends."""
    tool: str = ""
    hash: str = ""
    created_at: str = ""
    expires_at: str | None = None
    summary: str = ""
    amount: float | None = None


def find_wait_changes(context_id: str, events: Iterable[events.Event], lineage: Lineage | None) -> list[WaitChange]:
    """Return what ``events`` of a run with ``lineage`` change in the waits, in their order."""
    changes: list[WaitChange] = []
    wait_types = _list_wait_event_types()
    for position, event in enumerate(events):
        if event.type in wait_types:
            change = _find_wait_change(context_id, position, event, lineage)
            changes += [] if change is None else [change]
    return changes


@cache
def _list_wait_event_types() -> frozenset[str]:
    kinds = (
        *(events.ApprovalRequested, events.QuestionAsked, events.ApprovalDecided, events.QuestionAnswered),
        *(events.ToolCompleted, events.ModelCompleted, events.TurnEvent, events.RunEvent),
    )
    return frozenset(kind.model_fields["type"].default for kind in kinds)


def _find_wait_change(
    context_id: str, position: int, event: events.Event, lineage: Lineage | None
) -> WaitChange | None:
    match event:
        case events.ApprovalRequested() | events.QuestionAsked():
            kind: PendingKind = "approval" if isinstance(event, events.ApprovalRequested) else event.kind
            expires_at = _add_expiry(event.at, event.expires_in)
            asked = (event.call_id, kind, event.name, event.hash, event.at, expires_at)
            return WaitChange(position, context_id, *asked, event.summary, event.amount)
        case events.ApprovalDecided() | events.QuestionAnswered() | events.ToolCompleted():
            return WaitChange(position, context_id, event.call_id)
        case events.ModelCompleted():  # calls begin to wait with a reply, and all have a result before the next one
            return WaitChange(position, context_id)
        case events.TurnEvent(state="completed" | "failed" | "cancelled"):
            return WaitChange(position, context_id)
        case events.RunEvent(state=state) if state in ENDED_STATES:
            return WaitChange(position, context_id)
        case events.RunEvent(state="started") if lineage is not None:  # the call of it may have waited for approval
            return WaitChange(position, context_id.rpartition("/")[0], lineage.path[-1].call_id)
        case _:
            return None


def _add_expiry(at: str, seconds: float | None) -> str | None:
    if seconds is None or not at:
        return None
    try:
        return add_seconds(at, seconds)
    except OverflowError:  # later than the year 9999
        return None
