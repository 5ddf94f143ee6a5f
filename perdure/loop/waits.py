"""Calls that wait for a person: what each waits for, when the wait begins and expires, and its reminders.

Approvals, questions and callbacks are three kinds of one wait. :class:`CallWait` is that wait of a
:class:`~perdure.types.state.ToolCallState`; ``decide.Wait`` is the step in which the whole run waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..errors import InvalidInputError
from ..types.approvals import (
    ANYBODY,
    MAX_SENDERS,
    MAX_SHOWN_REQUESTERS,
    ApprovalOutcome,
    ApprovalTerms,
    DecidedApproval,
    PendingKind,
    Reminder,
    WaitingCall,
    WaitPeriod,
    hash_arguments,
    hash_name,
)
from ..types.state import RunState, ToolCallState
from ..types.summaries import summarize_call, summarize_question
from ..types.tool_calls import CallbackCall, Question
from .external_calls import get_final_arguments, needs_before_activity
from .payload_limits import DECISIONS_BYTES, MAX_PAST_DECISIONS, select_latest_rows


@dataclass(frozen=True, slots=True)
class CallWait:
    """What a call waits for. A view: the data of the wait is in ``pending``."""

    pending: ToolCallState
    kind: PendingKind

    @property
    def terms(self) -> ApprovalTerms | Question | CallbackCall:
        """The terms of the wait: what is asked for, and for how long."""
        call = self.pending.call
        terms = call.approval if self.kind == "approval" else self.pending.question or call.disposition
        assert isinstance(terms, ApprovalTerms | Question | CallbackCall), "a kind of wait has terms"
        return terms

    @property
    def period(self) -> WaitPeriod | None:
        """When the wait began and when it expires; None until :meth:`begin`."""
        return self.pending.approval_wait if self.kind == "approval" else self.pending.answer_wait

    @property
    def hash(self) -> str:
        """Hash of what the person is shown: the call and its arguments, or the call and its present question."""
        pending, terms = self.pending, self.terms
        if isinstance(terms, ApprovalTerms):
            return terms.hash
        shown = get_final_arguments(pending) or {}
        if pending.question is not None:
            shown = {"question": pending.question.text, "answers": len(pending.answers)}
        return hash_arguments(pending.call.id, pending.call.name, shown)

    def begin(self, now: datetime) -> None:
        """Begin the wait at ``now``, unless it has begun before."""
        if self.period is not None:
            return
        terms, at = self.terms, now.timestamp()
        remind = terms.remind if isinstance(terms, ApprovalTerms) else None
        period = WaitPeriod(
            since=now.isoformat(),
            until=None if terms.expires is None else at + terms.expires,
            next=None if remind is None else at + remind,
        )
        if self.kind == "approval":
            self.pending.approval_wait = period
        else:
            self.pending.answer_wait = period

    def ends(self) -> tuple[float | None, float | None]:
        """Return when the wait expires, and when its next reminder is due: seconds since 1970, None if never."""
        period = self.period
        return (None, None) if period is None else (period.until, period.next)

    def is_late(self, now: datetime) -> bool:
        """Whether the wait has expired at ``now``."""
        until, _ = self.ends()
        return until is not None and until <= now.timestamp()

    def show(self, requesters: Sequence[str] = ()) -> WaitingCall:
        """Build the entry of the wait in ``Status.approvals`` and in the memo. ``requesters``: of
        :func:`list_requesters`."""
        pending, terms, period = self.pending, self.terms, self.period
        until = period.until if period else None
        is_separate = isinstance(terms, ApprovalTerms) and terms.separate
        return WaitingCall(
            kind=self.kind,
            call_id=pending.call.id,
            tool=pending.call.name,
            arguments=get_final_arguments(pending),
            summary=self._summarize(),
            hash=self.hash,
            since=period.since if period else None,
            expires=None if until is None else datetime.fromtimestamp(until, UTC).isoformat(),
            on_expiry=terms.on_expiry if isinstance(terms, ApprovalTerms) else "deny",
            separate=is_separate,
            requesters=tuple(requesters[:MAX_SHOWN_REQUESTERS]) if is_separate else (),
            reminded=period.reminded if period else 0,
            question=terms.text if isinstance(terms, Question) else None,
            form=None if isinstance(terms, ApprovalTerms) else terms.form,
            consent=terms.consent if isinstance(terms, Question) else None,
        )

    def _summarize(self) -> str:
        """Return the summary that the worker has made of the call; a new one if there is none, or if a hook has changed
        its arguments."""
        call, arguments = self.pending.call, get_final_arguments(self.pending)
        if self.kind == "question" and self.pending.question is not None:
            return summarize_question(call.name, self.pending.question.text)
        has_own = call.summary and (self.kind == "approval" or arguments == call.arguments)
        return call.summary if has_own else summarize_call(call.name, arguments)


# ---
# Calls that wait for a person, and their deadlines.


def is_waiting_for_approval(pending: ToolCallState) -> bool:
    """Whether the call waits for approval."""
    return pending.call.approval is not None and pending.approval is None and pending.result is None


def wait_kind(pending: ToolCallState) -> PendingKind | None:
    """Return what the call waits for: approval, the answer to its tool's question, or its result (a callback); None if
    it does not wait for a person."""
    if is_waiting_for_approval(pending):
        return "approval"
    if pending.result is not None or pending.held:
        return None
    if pending.question is not None:
        return "question"
    is_callback = isinstance(pending.call.disposition, CallbackCall)
    return (
        "callback" if is_callback and pending.external_result is None and not needs_before_activity(pending) else None
    )


def is_waiting_for_person(pending: ToolCallState) -> bool:
    """Whether the call waits for a person."""
    return wait_kind(pending) is not None


def pending_waits(state: RunState) -> list[CallWait]:
    """List the waits for a person, in the order of the calls. Status, memo, timers and updates all read it here."""
    return [CallWait(pending, kind) for pending in state.calls if (kind := wait_kind(pending)) is not None]


def find_next_deadline(state: RunState) -> float | None:
    """Return when the next wait expires or the next reminder is due: seconds since 1970; None if never."""
    return min((at for wait in pending_waits(state) for at in wait.ends() if at is not None), default=None)


def find_next_expiry(state: RunState) -> float | None:
    """Return when the next wait for a person expires: seconds since 1970; None if none does."""
    return min((at for wait in pending_waits(state) if (at := wait.ends()[0]) is not None), default=None)


def get_callback_approval(pending: ToolCallState) -> ApprovalOutcome | None:
    """Return the approval of a callback, to be recorded with its result if no activity before the call recorded it."""
    callback = isinstance(pending.call.disposition, CallbackCall)
    return pending.approval if callback and pending.clearance is None else None


# ---
# Requesters: the people whose input leads to the calls of a turn. A call with ``separate`` needs another approver.
#
# Every input of a person passes :func:`record_requester`: messages and interrupts, answers to questions, results of
# callbacks and client tools, changed arguments, and the reason of a denial, which the model is given. What a subagent
# or a branch answers brings the people of its own turn, and what it is asked those of its parent's.


def list_requesters(state: RunState) -> list[str]:
    """List the ``hash_name`` of everyone whose input led to the calls of this turn, here or in the runs above;
    ``[ANYBODY]`` if they are too many to be remembered."""
    above = state.parent.asked_by if state.parent else ()
    names = list(dict.fromkeys([*above, *state.asked_by, *(state.turn.said_by if state.turn else ())]))
    return [ANYBODY] if ANYBODY in names else names


def has_requested(state: RunState, name: str | None) -> bool:
    """Whether the person with this ``hash_name`` is, or may be, a requester of this turn's calls."""
    requesters = list_requesters(state)
    return name in requesters or ANYBODY in requesters


def record_requester(state: RunState, by: str | None) -> None:
    """Record the author of an input to the turn, as given by its sender."""
    if (name := hash_name(by)) is not None:
        record_requesters(state, [name])


def record_requesters(state: RunState, names: Iterable[str], *, every_turn: bool = False) -> None:
    """Record the ``hash_name`` of authors of an input to the present turn, or with ``every_turn`` to all turns."""
    recorded = state.asked_by if every_turn or state.turn is None else state.turn.said_by
    known = set(list_requesters(state)) if not every_turn else set(recorded)
    new = [name for name in dict.fromkeys(names) if name not in known]
    recorded += new if len(known) + len(new) <= MAX_SENDERS else [ANYBODY]


def check_requester_room(state: RunState, by: str | None, *, opens_turn: bool = False) -> None:
    """Refuse the input of a new person once the turn has ``MAX_SENDERS``. ``opens_turn``: it is the first of a turn."""
    name, known = hash_name(by), [] if opens_turn else list_requesters(state)
    if name is not None and name not in known and len(known) >= MAX_SENDERS:
        raise InvalidInputError(
            f"by: {MAX_SENDERS:,} people have written in this turn, and a run remembers no more",
            hint="Send it when the turn has ended, or as one of them.",
        )


def remember(state: RunState, pending: ToolCallState, /, **fields: Any) -> DecidedApproval:
    """Record in ``status.decided`` how a wait of the call has ended. ``fields``: the other fields of the record."""
    past = DecidedApproval(call_id=pending.call.id, tool=pending.call.name, **fields)
    state.decided = select_latest_rows([*state.decided, past][-MAX_PAST_DECISIONS:], DECISIONS_BYTES)
    return past


# ---
# Reminders of calls that wait for approval: when one is due, and its content.


_INTERVAL_TOLERANCE = 1e-6
"""Part of an interval that is taken for floating-point error, not for time."""


@dataclass(frozen=True, slots=True)
class ReminderBatch:
    """Reminders that are sent together, under an operation number of their own."""

    op: int
    calls: tuple[ToolCallState, ...]
    reminders: tuple[Reminder, ...]

    def has_waiting_call(self) -> bool:
        """Whether one of the calls still waits."""
        return any(map(is_waiting_for_approval, self.calls))


def mark_reminder_due(pending: ToolCallState, now: datetime) -> None:
    """Mark a reminder of the call as due at ``now``: only one, however many intervals have passed."""
    terms, waiting = pending.call.approval, pending.approval_wait
    if terms is None or terms.remind is None or waiting is None or waiting.next is None:
        return
    at = now.timestamp()
    if waiting.next > at:
        return
    since = datetime.fromisoformat(waiting.since).timestamp()
    intervals = int((at - since) / terms.remind + _INTERVAL_TOLERANCE)
    pending.approval_wait = waiting.model_copy(update={"due": True, "next": since + (intervals + 1) * terms.remind})


def list_calls_to_remind(state: RunState) -> tuple[ToolCallState, ...]:
    """List the calls whose reminder is due; none while a pause is requested: they stay due until the run is resumed."""
    if state.is_pause_requested:
        return ()
    return tuple(
        call for call in state.calls if is_waiting_for_approval(call) and call.approval_wait and call.approval_wait.due
    )


def take_due_reminders(state: RunState, now: datetime) -> ReminderBatch:
    """Take the reminders that are due, which then count as sent."""
    calls, reminders = list_calls_to_remind(state), []
    for pending in calls:
        waiting = pending.approval_wait
        assert waiting is not None, "it is due"
        number = waiting.reminded + 1
        pending.approval_wait = waiting.model_copy(update={"due": False, "reminded": number})
        rest = None if waiting.until is None else max(0.0, round(waiting.until - now.timestamp(), 3))
        reminders.append(Reminder(call_id=pending.call.id, name=pending.call.name, number=number, expires_in=rest))
    op, state.op = state.op, state.op + 1
    return ReminderBatch(op, calls, tuple(reminders))
