"""Decisions on calls that wait for approval, answers to calls that wait for one, and standing approvals.

``decide_approval`` and ``answer_call`` run the same checks in the same order, and then change the call. A repeated
update returns the outcome of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    NotWaitingYetError,
    PerdureError,
    RunClosedError,
)
from ..types.approvals import (
    CHANGED_ARGUMENTS_BYTES,
    MAX_STANDING_APPROVALS,
    ApprovalDecision,
    ApprovalOutcome,
    DecidedApproval,
    PendingApproval,
    Revocation,
    RevokedApproval,
    StandingApproval,
    hash_arguments,
    hash_name,
)
from ..types.messages import clean_text
from ..types.plain_json import measure_json
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import ActivityCall, CallAnswer
from ..types.validation_errors import describe_validation_error
from ..types.wire import NewResult
from . import questions
from .apply import collect_results, end_turn_at_limit
from .decide import CallModel, decide
from .external_calls import needs_before_activity
from .limits import uncount_tool_call
from .questions import check_value, hash_answer, take_answer
from .waits import PendingWait, list_requesters, mark_reminder_due, pending_waits, remember

Model = TypeVar("Model", bound=BaseModel)


def _parse(model: type[Model], raw: Any, whole: str, hint: str | None) -> Model:
    """Parse ``raw`` as ``model``. Raises ``InvalidInputError`` with the first problem; ``whole`` names ``raw``."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, whole), hint=hint) from None


# ---
# Standing approvals: an approver has approved every call of a tool in this conversation.


REVOCATION_HINT = 'Send {"tool": "<name>", "by": "<name>"}.'


def check_standing_approval(state: RunState, decision: ApprovalDecision, pending: ToolCallState) -> None:
    """Raise ``InvalidInputError`` if ``decision`` asks for a standing approval that cannot be kept."""
    if not decision.always:
        return
    if decision.arguments is not None and decision.arguments != pending.call.arguments:
        raise InvalidInputError(
            "always: it cannot go with changed arguments, which are those of one call",
            hint="Approve this call with them, or every call as it is made.",
        )
    if hash_name(decision.by) is None:
        raise InvalidInputError("always: a standing approval has a name", hint="Say who you are: by.")
    others = _list_other_standing_approvals(state, pending.call.name, decision.by)
    if len(others) >= MAX_STANDING_APPROVALS:
        raise InvalidInputError(
            f"always: the run has {MAX_STANDING_APPROVALS} standing approvals, and keeps no more",
            hint="Revoke one that is not needed, or approve this call alone.",
        )


def grant_standing_approval(state: RunState, tool: str, by: str, at: str) -> None:
    """Record that ``by`` approves every call of ``tool``; replaces an earlier standing approval of this approver."""
    state.standing = [*_list_other_standing_approvals(state, tool, by), StandingApproval(tool=tool, by=by, at=at)]


def find_standing_decision(state: RunState, pending: ToolCallState, now: datetime) -> ApprovalOutcome | None:
    """Return the decision of a standing approval on a waiting call; None if no standing approval covers the call."""
    terms = pending.call.approval
    assert terms is not None, "it asks"
    asked = list_requesters(state) if terms.separate else []
    for one in state.standing:
        if one.tool == pending.call.name and hash_name(one.by) not in asked:
            return ApprovalOutcome(state="approved", by=one.by, at=now.isoformat(), hash=terms.hash, standing=one.at)
    return None


def remove_standing_approvals(state: RunState, tool: str) -> list[StandingApproval]:
    """Remove the standing approvals of ``tool``, and return those removed."""
    gone = [one for one in state.standing if one.tool == tool]
    state.standing = [one for one in state.standing if one.tool != tool]
    return gone


def check_revocation(state: RunState | None, raw: Any) -> Revocation:
    """Parse and check a revocation. Raises ``InvalidInputError``, also if the tool has no standing approvals.

    With ``state`` None (the input is not read yet) only ``raw`` is checked.
    """
    given = _parse(Revocation, raw, "the revocation", REVOCATION_HINT)
    if state is not None and not any(one.tool == given.tool for one in state.standing):
        there = "; ".join(map(str, state.standing))
        raise InvalidInputError(
            f"no approval of all calls of {given.tool!r:.120} stands in this run",
            hint=f"There stands: {there}." if there else "None stands.",
        )
    return given


def revoke_standing_approval(state: RunState, raw: Any, now: datetime) -> list[StandingApproval]:
    """Revoke the standing approvals of a tool, and return them. Raises as :func:`check_revocation`."""
    given = check_revocation(state, raw)
    gone = remove_standing_approvals(state, given.tool)
    names = tuple(dict.fromkeys(one.by for one in gone))
    by = clean_text(given.by) if given.by else None
    revoked = RevokedApproval(tool=given.tool, by=by, at=now.isoformat(), approved_by=names)
    state.revoked = [*state.revoked, revoked][-MAX_STANDING_APPROVALS:]
    return gone


def drop_recorded_revocations(state: RunState, told: Sequence[RevokedApproval]) -> None:
    """Drop the revocations ``told``, which are recorded; later ones stay."""
    state.revoked = [one for one in state.revoked if one not in told]


def _list_other_standing_approvals(state: RunState, tool: str, by: str | None) -> list[StandingApproval]:
    return [one for one in state.standing if (one.tool, hash_name(one.by)) != (tool, hash_name(by))]


# ---
# Pending approvals: deadlines, standing approvals and reminders.


def update_approval_waits(state: RunState, now: datetime) -> None:
    """Begin the wait of new calls, end the waits that have expired or that a standing approval covers, and mark due
    reminders. Also updates the waits for answers (:func:`~.questions.update_answer_waits`)."""
    for wait in pending_waits(state):
        pending, terms = wait.pending, wait.pending.call.approval
        if wait.kind != "approval" or terms is None:
            continue
        wait.begin(now)
        if wait.is_late(now):
            kept = "expired" if terms.on_expiry == "deny" else "approved"
            _record_decision(
                state,
                pending,
                ApprovalOutcome.model_validate({"state": kept, "at": now.isoformat(), "hash": terms.hash}),
            )
        elif (decided := find_standing_decision(state, pending, now)) is not None:
            _record_decision(state, pending, decided)
        else:
            mark_reminder_due(pending, now)
    questions.update_answer_waits(state, now)
    collect_results(state)
    end_turn_at_limit(state)


def list_pending_approvals(state: RunState) -> list[PendingApproval]:
    """List the waits for a person as ``status`` shows them: approvals first."""
    waits = sorted(pending_waits(state), key=lambda wait: wait.kind != "approval")
    return [wait.show() for wait in waits]


# ---
# Decisions and answers.


DECISION = 'Send {"call_id": "<id>", "hash": "<as status has it>", "decision": "approve" or "deny", "by": "<name>"}.'
ANSWER = 'Send {"call_id": "<id>", "value": <JSON>, "by": "<name>"}, or "error" in the place of "value".'
_ARGUMENT_OWNERS = {"remote": "those of a remote tool", "callback": "those of a callback"}
_SEND = "To answer that, send its `hash`, as `status` shows it."


def read_decision(raw: Any, hint: str | None = DECISION) -> ApprovalDecision:
    """Parse the argument of ``decide_approval``. Raises ``InvalidInputError`` if it is valid for no call at all."""
    decision = _parse(ApprovalDecision, raw, "the decision", hint)
    if decision.always and decision.decision == "deny":
        raise InvalidInputError("always: only an approval can stand", hint="A rule of the agent denies every call.")
    if decision.arguments is not None:
        if decision.decision == "deny":
            raise InvalidInputError("arguments: a call that is denied has none", hint="Leave them out.")
        if (found := measure_json(decision.arguments)) > CHANGED_ARGUMENTS_BYTES:
            raise InvalidInputError(
                f"arguments: they have {found:,} bytes as JSON and may have {CHANGED_ARGUMENTS_BYTES:,}"
            )
    return decision


def read_answer(raw: Any, hint: str | None = ANSWER) -> CallAnswer:
    """Parse the argument of ``answer_call``. Raises ``InvalidInputError``."""
    return _parse(CallAnswer, raw, "the answer", hint)


def check_approval(state: RunState | None, raw: Any, now: datetime) -> None:
    """Check a decision without changing the state; a repeated decision of the same approver passes.

    With ``state`` None (the input is not read yet) only ``raw`` is checked. Raises ``InvalidInputError`` for a decision
    that is invalid, names no waiting call or approves without a hash; ``ApprovalDecidedError``,
    ``ApprovalExpiredError``; ``NotWaitingYetError`` if the call may still come to wait; ``RunClosedError`` if the run
    is ending.
    """
    _check(state, read_decision(raw), now)


def check_answer(state: RunState | None, raw: Any, now: datetime) -> None:
    """Check an answer without changing the state. See :func:`check_approval`."""
    _check(state, read_answer(raw), now)


def decide_approval(state: RunState, raw: Any, now: datetime) -> DecidedApproval:
    """Apply a decision, or return the record of a repeated one. Raises as :func:`check_approval`."""
    update_approval_waits(state, now)
    decided = _resolve(state, read_decision(raw), now)
    update_approval_waits(state, now)
    return decided


def answer_call(state: RunState, raw: Any, now: datetime) -> DecidedApproval:
    """Apply an answer, or return the record of a repeated one. Raises as :func:`check_answer`."""
    questions.update_answer_waits(state, now)
    answered = _resolve(state, read_answer(raw), now)
    collect_results(state)
    end_turn_at_limit(state)
    return answered


def _resolve(state: RunState, said: ApprovalDecision | CallAnswer, now: datetime) -> DecidedApproval:
    found = _check(state, said, now)
    if isinstance(found, DecidedApproval):
        return found
    assert found is not None, "the state is known"
    if isinstance(said, CallAnswer):
        return take_answer(state, found.pending, said, now)
    return _take_decision(state, found.pending, said, now)


def is_repeated_decision(said: ApprovalDecision | CallAnswer, past: DecidedApproval) -> bool:
    """Whether ``said`` repeats the decision or answer recorded in ``past``, from the same sender."""
    by = hash_name(said.by)
    if (past.call_id, hash_name(past.by)) != (said.call_id, by):
        return False
    if isinstance(said, CallAnswer):
        return (past.state, past.hash) == ("answered", hash_answer(said))
    comment = clean_text(said.comment) if said.comment else None
    made = "approved" if said.decision == "approve" else "denied"
    always = said.always and not past.standing  # under a standing approval, `always` came with another call
    if by is None or (made, comment, always) != (past.state, past.comment, past.always):
        return False
    if said.arguments is not None:
        return hash_arguments(past.call_id, past.name, said.arguments) == past.hash
    return not past.changed and said.hash in (None, past.hash)


def find_repeated(decided: Sequence[DecidedApproval], said: ApprovalDecision | CallAnswer) -> DecidedApproval | None:
    """Return the latest record in ``decided`` (the latest last) that ``said`` repeats; None if there is none."""
    return next((past for past in reversed(decided) if is_repeated_decision(said, past)), None)


def build_late_error(
    decided: Sequence[DecidedApproval], said: ApprovalDecision | CallAnswer, hint: str | None = None
) -> PerdureError | None:
    """Build the error for a decision or answer that comes too late, which names who decided first; None if the call is
    undecided. A call that was approved may still be answered."""
    past = next((one for one in reversed(decided) if one.call_id == said.call_id), None)
    if past is None or (isinstance(said, CallAnswer) and past.state == "approved"):
        return None
    if past.state == "expired":
        return ApprovalExpiredError(f"call {past.call_id!r} has {past}")
    return ApprovalDecidedError(f"call {past.call_id!r} is already {past}", hint=hint)


def _check(
    state: RunState | None, said: ApprovalDecision | CallAnswer, now: datetime
) -> PendingWait | DecidedApproval | None:
    """Return the wait that ``said`` ends, or the record of what it repeats; None without a state. Raises as
    :func:`check_approval`."""
    if state is None:
        return None
    approval = isinstance(said, ApprovalDecision)
    waits = (wait for wait in pending_waits(state) if wait.pending.call.id == said.call_id)
    wait = next((wait for wait in waits if (wait.kind == "approval") == approval), None)
    meant = wait is not None and _is_meant(wait, said)
    # A decision applies to the waiting call of its id, if there is one.
    if not meant and (wait is None or not approval):
        blind = isinstance(said, ApprovalDecision) and said.decision == "approve" and said.hash is None
        if not blind and (past := find_repeated(state.decided, said)) is not None:
            return past
    if state.cancelled or (state.turn is not None and state.turn.failure is not None):
        raise RunClosedError(f"run {state.context_id!r} is ending", hint="Its calls are closed.")
    if wait is None:
        raise _build_no_wait_error(state, said)
    if not meant:
        raise _build_other_wait_error(state, said)
    if wait.is_late(now):
        raise ApprovalExpiredError(f"call {said.call_id!r} has expired: no decision by {wait.show().expires}")
    if isinstance(said, ApprovalDecision):
        _check_decision(state, wait.pending, said)
    elif said.error is None:
        check_value(state, wait, said)
    return wait


def _check_decision(state: RunState, pending: ToolCallState, decision: ApprovalDecision) -> None:
    if decision.arguments is not None and not isinstance(pending.call.disposition, ActivityCall):
        whose = _ARGUMENT_OWNERS.get(pending.call.disposition.kind, "what a subagent is asked")
        raise InvalidInputError(f"arguments: {whose} cannot be changed", hint="Deny the call instead.")
    terms = pending.call.approval
    if terms is not None and terms.separate and decision.decision == "approve":
        _check_separate_approver(state, decision)
    check_standing_approval(state, decision, pending)


def _is_meant(wait: PendingWait, said: ApprovalDecision | CallAnswer) -> bool:
    """Whether the sender has seen the present wait, by its hash. Without a hash a call may be denied, and its first
    question answered."""
    if said.hash is not None:
        return said.hash == wait.hash
    return said.decision == "deny" if isinstance(said, ApprovalDecision) else not wait.pending.answers


def _take_decision(
    state: RunState, pending: ToolCallState, decision: ApprovalDecision, now: datetime
) -> DecidedApproval:
    call, terms = pending.call, pending.call.approval
    assert terms is not None, "it asks"
    changed = decision.arguments if decision.decision == "approve" else None
    if changed is not None and hash_arguments(call.id, call.name, changed) == terms.hash:
        changed = None  # unchanged; compared by hash, since 1 == True and 3 == 3.0
    decided = _record_decision(
        state,
        pending,
        ApprovalOutcome(
            state="approved" if decision.decision == "approve" else "denied",
            by=clean_text(decision.by) if decision.by else None,
            at=now.isoformat(),
            comment=clean_text(decision.comment) if decision.comment else None,
            arguments=changed,
            hash=terms.hash if changed is None else hash_arguments(call.id, call.name, changed),
            always=decision.always,
        ),
    )
    if decision.always and decided.by is not None:
        grant_standing_approval(state, call.name, decided.by, decided.at)
    elif decision.decision == "deny":
        remove_standing_approvals(state, call.name)
    return decided


def _record_decision(state: RunState, pending: ToolCallState, decided: ApprovalOutcome) -> DecidedApproval:
    pending.decided = decided
    call = pending.call
    if decided.state != "approved":
        uncount_tool_call(state, pending)
        pending.result = NewResult(
            call_id=call.id, name=call.name, text=_build_refusal_text(pending, decided), is_error=True, decided=decided
        )
    facts = decided.model_dump(include={"state", "by", "at", "comment", "hash", "always", "standing"})
    return remember(state, pending, changed=decided.arguments is not None, **facts)


def _build_refusal_text(pending: ToolCallState, decided: ApprovalOutcome) -> str:
    """Build the text of the call's result, which the model gets."""
    if decided.state == "expired":
        return f"Expired: nobody approved the call of {pending.call.name} in time; it was not run"
    by = f" by {decided.by}" if decided.by else ""
    return f"Denied{by}: {decided.comment}" if decided.comment else f"Denied{by}"


def _check_separate_approver(state: RunState, decision: ApprovalDecision) -> None:
    if (by := hash_name(decision.by)) is None:
        raise InvalidInputError(
            f"by: call {decision.call_id!r} must be approved by somebody else than who asked for it",
            hint="Say who you are.",
        )
    if by in list_requesters(state):
        raise InvalidInputError(
            f"{decision.by} asked for what led to call {decision.call_id!r}, and cannot approve it",
            hint="Somebody else has to.",
        )


# ---
# Errors for refused decisions and answers.


def _build_no_wait_error(state: RunState, said: ApprovalDecision | CallAnswer) -> PerdureError:
    """Build the error for an update whose call id has no matching wait."""
    call_id, approval, waits = said.call_id, isinstance(said, ApprovalDecision), pending_waits(state)
    wanted, other = ("approval", "an answer") if approval else ("an answer", "approval")
    if any(wait.pending.call.id == call_id for wait in waits):
        hint = 'Answer it: answer_call {"call_id", "value"}; or with "error", why there is none.'
        return InvalidInputError(
            f"call {call_id!r} waits for {other}, not for {wanted}",
            hint=hint if approval else "Approve or deny it: decide_approval.",
        )
    if (late := build_late_error(state.decided, said)) is not None:
        return late
    # A call that the run already has was let begin, and will not wait for approval any more.
    begun = approval and any(one.call.id == call_id for one in state.calls)
    if not begun and (early := not_yet(state, call_id)) is not None:
        return early
    ids = [repr(wait.pending.call.id) for wait in waits if (wait.kind == "approval") == approval]
    there = f"There waits: {', '.join(ids)}." if ids else "None waits in this run."
    return InvalidInputError(f"no call {call_id!r:.120} waits for {wanted}", hint=there)


def _build_other_wait_error(state: RunState, said: ApprovalDecision | CallAnswer) -> PerdureError:
    """Build the error for an update whose hash is missing, or not that of the present wait."""
    if isinstance(said, CallAnswer):
        return build_late_error(state.decided, said, f"It asks something else now. {_SEND}") or InvalidInputError(
            f"call {said.call_id!r} asks something else than what was looked at",
            hint=f"Look at what waits now. {_SEND}",
        )
    if said.hash is None:
        return InvalidInputError(
            f"hash: an approval says what was looked at, and this one of call {said.call_id!r} does not",
            hint="Send the call's `hash` as `status` shows it, together with its arguments.",
        )
    return InvalidInputError(
        f"call {said.call_id!r} is not the one that was looked at: it has other arguments now",
        hint="Look at what waits now, and decide on that.",
    )


def not_yet(state: RunState, call_id: str) -> NotWaitingYetError | None:
    """Build the error for an update that comes before its call waits; None if, as far as the run knows, it will not.

    The event of a question is recorded by the tool's activity; the workflow learns of the question only when the
    activity ends: a moment later, or after a crash some time later.
    """
    pending = next((one for one in state.calls if one.call.id == call_id), None)
    if pending is None:
        why = "the model is asked, and may make such a call" if isinstance(decide(state), CallModel) else None
    elif needs_before_activity(pending):
        why = "its worker looks at it first"
    else:
        runs = isinstance(pending.call.disposition, ActivityCall) and pending.result is None and not pending.held
        why = "its tool runs, and may ask something" if runs else None
    if why is None:
        return None
    return NotWaitingYetError(
        f"call {call_id!r:.120} does not wait for anybody yet: {why}",
        hint="Send it again as soon as `status` shows the call among `approvals`.",
    )
