"""The tables of a store that consoles, HTTP services and webhooks read: waits, outbox, audit and idempotency keys.

A run needs none of them. Waits and outbox rows are written in the transaction of the events that they follow from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

from .. import events
from ..errors import InvalidInputError
from ..types.approvals import PendingKind
from ..types.messages import RUN_ID_CHARS, clean_text
from ..types.subagents import Lineage
from .decisions import Decisions
from .grants import Grants
from .nudges import Nudges
from .tokens import Tokens
from .webhooks import WEBHOOK_EVENT_TYPES, WEBHOOK_TARGET, RowCursor, Webhooks

# ---
# Waits: the calls of all runs that wait for a person or a client.


class WaitCursor(NamedTuple):
    """The place of a wait in a list: the list goes on after it."""

    at: str
    """``created_at`` of the wait; in the order of expiry its ``expires_at``."""
    context_id: str
    call_id: str


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
    body: bytes | None = None
    """JSON of its event, ``approval.requested`` or ``question.asked``, as stored: see ``types.events.decode_event``.
    None if the event was deleted."""

    def get_cursor(self, *, by_expiry: bool = False) -> WaitCursor:
        """Return its place in the list of that order."""
        return WaitCursor((self.expires_at if by_expiry else None) or self.created_at, self.context_id, self.call_id)


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
        by_expiry: bool = False,
        after: WaitCursor | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """List waits, the oldest first; ``by_expiry`` those that expire, the soonest first. ``after`` is the cursor of
        the last row of the page before."""

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


_ENDED_STATES = ("completed", "failed", "cancelled", "terminated", "timed_out")


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
            return WaitChange(position, context_id, event.call_id, kind, event.name, event.hash, event.at, expires_at)
        case events.ApprovalDecided() | events.QuestionAnswered() | events.ToolCompleted():
            return WaitChange(position, context_id, event.call_id)
        case events.ModelCompleted():  # calls begin to wait with a reply, and all have a result before the next one
            return WaitChange(position, context_id)
        case events.TurnEvent(state="completed" | "failed" | "cancelled"):
            return WaitChange(position, context_id)
        case events.RunEvent(state=state) if state in _ENDED_STATES:
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


def add_seconds(at: str, seconds: float) -> str:
    """Return the time ``seconds`` after ``at``, formatted as that. Raises ``OverflowError``."""
    return (datetime.fromisoformat(at) + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


# ---
# The outbox: events that are to be delivered elsewhere.


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a process writes beside what it is given: settable on a store."""

    outbox: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Which events get an outbox row: by target, the types of events, ``*`` for any characters (``approval.*``). By
    default none: rows that no program takes would only grow. Deltas get none: they are deleted."""
    key_id: str | None = None
    """Id of the key that the bodies are encrypted with: None, as perdure stores bodies in plain today."""

    def find_targets(self, events: Iterable[events.Event]) -> list[tuple[int, str]]:
        """Return position and target of each outbox row that ``events`` get; that of ``WEBHOOK_TARGET`` only while a
        webhook is enabled, which the store looks up as it writes."""
        return [
            (position, target)
            for position, event in enumerate(events)
            if event.type != "model.delta"
            for target in self._find_targets(event.type)
        ]

    def _find_targets(self, type: str) -> list[str]:
        given = [target for target, patterns in self.outbox.items() if any(fnmatchcase(type, one) for one in patterns)]
        return list(dict.fromkeys([*given, WEBHOOK_TARGET])) if type in WEBHOOK_EVENT_TYPES else given


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An event that is to be delivered. ``stream``, ``seq`` and ``target`` identify the row."""

    stream: str
    """The conversation that numbers the event: the root of the run's tree."""
    seq: int
    target: str
    context_id: str
    """The run that the event is of."""
    type: str
    created_at: str
    """ISO 8601, UTC, microseconds."""
    taken: int = 0
    """How often it was taken, this time included."""


class Outbox(Protocol):
    """Events that are to be delivered elsewhere: written in the transaction of the event, deleted once another system
    is certain to deliver them. All methods raise ``StoreError`` when the store fails."""

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int = 100) -> list[OutboxRow]:
        """Take rows that no other owner has, the oldest first; they are this owner's for ``lease_seconds``.

        A row that is not deleted by then may be taken again: a delivery needs an id that is the same each time.
        """

    async def delete_outbox(self, owner: str, rows: Sequence[OutboxRow]) -> int:
        """Delete those of ``rows`` that ``owner`` still has, and return how many."""


# ---
# The audit trail: who has steered a run.


AUDIT_TEXT_CHARS = 500
"""Most characters of each text of an audit row, but for the id of its subject; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A request that steers a run or a schedule, recorded before it was sent."""

    id: str
    at: str
    """ISO 8601, UTC, microseconds."""
    by: str
    """Who asked for it, as the client was told."""
    auth: str
    """How that is known: ``os-user`` for the user of the operating system, ``given`` for a name that the program gave
    without a proof; a service writes its own, for instance ``token:<id>``."""
    origin: str
    """Where from: ``<host>/<process id>``, or the address of the caller of a service."""
    subject: str
    """Id of the run or schedule."""
    verb: str
    """``approve``, ``send``, ``schedule.pause`` …"""
    call_id: str | None = None
    detail: str | None = None
    """For people: what was asked for, without the contents of messages."""
    refused: str | None = None
    """The error that it was refused with, by class and message. None: it was accepted, or the process ended before it
    knew."""
    count: int = 1
    """How many refused requests it stands for; ``at``, ``call_id``, ``detail`` and ``origin`` are those of the first,
    ``refused`` is that of the last."""
    last_at: str | None = None
    """When the last of them was refused."""
    agent: str | None = None
    """Agent, tenant and user of the subject when the row was written: of a run those of the store's row, where there is
    one. They never change, whatever the id stands for later."""
    tenant: str | None = None
    user: str | None = None


def build_refusal_row(row: AuditRow) -> AuditRow:
    """Return the row that the refused request ``row`` is counted in: one for each day (UTC), caller, verb and subject.
    A caller that is refused again and again adds no rows."""
    shared = json.dumps([row.at[:10], row.by, row.auth, row.subject, row.verb, row.tenant])
    digest = hashlib.sha256(shared.encode()).hexdigest()[:32]
    return replace(row, id=f"refused-{digest}", last_at=row.at)


def cut_audit_row(row: AuditRow) -> AuditRow:
    """Return ``row`` with texts that can be stored."""
    limits = {"subject": RUN_ID_CHARS}  # it is looked for
    texts: dict[str, Any] = {
        name: clean_text(text)[: limits.get(name, AUDIT_TEXT_CHARS)]
        for name, text in asdict(row).items()
        if isinstance(text, str)
    }
    return replace(row, **texts)


class Audit(Protocol):
    """The audit trail. All methods raise ``StoreError`` when the store fails."""

    async def record_audit(self, row: AuditRow) -> None:
        """Record a request that is about to be sent; nothing if it is recorded."""

    async def record_refused_audit(self, row: AuditRow) -> None:
        """Count the request in the row of its caller's refusals (:func:`build_refusal_row`), and delete its own."""

    async def list_audit(
        self,
        *,
        subject: str | None = None,
        by: str | None = None,
        verb: str | None = None,
        since: str = "",
        until: str = "",
        refused: bool = False,
        tenants: Sequence[str] | None = None,
        after: RowCursor | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        """List requests from the time ``since`` on and before ``until``, the newest first. ``after``: ``at`` and ``id``
        of the last row of the page before.

        ``verb`` is one verb, or with ``*`` at its end the beginning of some (``schedule.*``). ``tenants``: only rows of
        these tenants, which leaves out those without one.
        """


# ---
# Idempotency keys: the answers to requests that a client may repeat.


IDEMPOTENCY_KEY_CHARS = 500
"""Most characters of a key."""
IDEMPOTENCY_ANSWER_BYTES = 64 * 1024
"""Most bytes of an answer; of a longer one, store a reference."""


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """Whether a request may act."""

    state: Literal["new", "running", "done", "mismatch"]
    """``new``: it may. ``running``: another one of that key has not ended. ``done``: it has, with ``answer``.
    ``mismatch``: the key belongs to another request."""
    answer: bytes | None = None


class Idempotency(Protocol):
    """Keys of requests with their answers. All methods raise ``StoreError`` when the store fails."""

    async def claim_idempotency(
        self, key: str, request_hash: str, owner: str, *, lease_seconds: float, keep_seconds: float
    ) -> IdempotencyClaim:
        """Claim the key for the request of that hash; of several at once one gets ``new``, and the same owner again.

        After ``lease_seconds`` without an answer its process counts as lost, and the next request of the same hash gets
        ``new``. After ``keep_seconds`` the key is free. Raises ``InvalidInputError`` for a key that cannot be stored.
        """

    async def list_idempotency_answers(self, prefix: str, limit: int) -> list[bytes]:
        """List the answers that are kept under keys that begin with ``prefix``."""

    async def complete_idempotency(self, key: str, owner: str, answer: bytes | None) -> bool:
        """Record the answer, or with None free the key. False if ``owner`` does not have the key any more.

        Raises ``InvalidInputError`` for an answer that is too long.
        """

    async def delete_expired_idempotency(self, limit: int = 1000) -> int:
        """Delete keys whose time is over; return how many."""


def check_idempotency_key(key: str) -> None:
    """Raise ``InvalidInputError`` for a key that cannot be stored."""
    if not 0 < len(key) <= IDEMPOTENCY_KEY_CHARS:
        raise InvalidInputError(f"an idempotency key has 1 to {IDEMPOTENCY_KEY_CHARS} characters, not {len(key):,}")
    if key != clean_text(key):
        raise InvalidInputError("an idempotency key is text without NUL and lone surrogates", hint="Encode it.")


def check_idempotency_answer(answer: bytes) -> None:
    """Raise ``InvalidInputError`` for an answer that is too long."""
    if len(answer) > IDEMPOTENCY_ANSWER_BYTES:
        raise InvalidInputError(
            f"the answer has {len(answer):,} bytes and may have {IDEMPOTENCY_ANSWER_BYTES:,}",
            hint="Store a reference to it.",
        )


def build_idempotency_claim(request_hash: str, recorded_hash: str, answer: bytes | None) -> IdempotencyClaim:
    """Build the claim of a request whose key has a row of another owner."""
    if recorded_hash != request_hash:
        return IdempotencyClaim("mismatch")
    return IdempotencyClaim("running") if answer is None else IdempotencyClaim("done", answer)


# ---
# Keys of encrypted bodies.


class EncryptedBodies(Protocol):
    """The keys that stored bodies are encrypted with."""

    async def count_keys(self) -> dict[str, dict[str, int]]:
        """Count the rows under each key: by key id, then by table. Rows in plain are not counted."""


class Surfaces(
    Waits, Decisions, Outbox, Webhooks, Audit, Idempotency, EncryptedBodies, Tokens, Grants, Nudges, Protocol
):
    """What of a store is not for runs themselves."""
