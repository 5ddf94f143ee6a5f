"""Decisions on calls that wait for approval, answers to calls that wait for one, and standing approvals.

``decide_approval`` and ``answer_call`` run the same checks in the same order, and then change the call. A repeated
update returns the outcome of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..errors import (
    ApprovalExpiredError,
    ApprovalForbiddenError,
    InvalidInputError,
    NotWaitingYetError,
    PerdureError,
    RunClosedError,
)
from ..types.approvals import (
    MAX_STANDING_APPROVALS,
    ApprovalDecision,
    ApprovalOutcome,
    DecidedApproval,
    DecisionState,
    Revocation,
    RevokedApproval,
    StandingApproval,
    WaitingCall,
    hash_arguments,
    hash_name,
)
from ..types.messages import clean_text
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import ActivityCall, CallAnswer
from . import questions
from .apply import collect_results
from .decide import CallModel, decide
from .external_calls import needs_before_activity
from .limits import uncount_tool_call
from .questions import check_value, take_answer
from .requests import DECISION_OUTCOMES, build_late_error, find_repeated, parse_request, read_answer, read_decision
from .results import build_error_result
from .waits import (
    CallWait,
    check_requester_room,
    has_requested,
    list_requesters,
    mark_reminder_due,
    pending_waits,
    record_requester,
    remember,
)

# ---
# Standing approvals: an approver has approved every call of a tool in this conversation.


REVOCATION_HINT = 'Send {"tool": "<name>", "by": "<name>"}.'


def grant_standing_approval(state: RunState, tool: str, by: str, at: str) -> None:
    """Record that ``by`` approves every call of ``tool``; replaces an earlier standing approval of this approver."""
    state.standing = [*_list_other_standing_approvals(state, tool, by), StandingApproval(tool=tool, by=by, at=at)]


def remove_standing_approvals(state: RunState, tool: str) -> list[StandingApproval]:
    """Remove the standing approvals of ``tool``, and return those removed."""
    removed = [approval for approval in state.standing if approval.tool == tool]
    state.standing = [approval for approval in state.standing if approval.tool != tool]
    return removed


def check_revocation(state: RunState | None, raw: Any) -> Revocation:
    """Parse and check a revocation. Raises ``InvalidInputError``, also if the tool has no standing approvals.

    With ``state`` None (the input is not read yet) only ``raw`` is checked.
    """
    revocation = parse_request(Revocation, raw, "the revocation", REVOCATION_HINT)
    if state is not None and not any(approval.tool == revocation.tool for approval in state.standing):
        known = "; ".join(map(str, state.standing))
        raise InvalidInputError(
            f"tool {revocation.tool!r:.120} has no standing approval in this run",
            hint=f"Standing approvals: {known}." if known else "This run has no standing approvals.",
        )
    return revocation


def revoke_standing_approval(state: RunState, raw: Any, now: datetime) -> list[StandingApproval]:
    """Revoke the standing approvals of a tool, and return them. Raises as :func:`check_revocation`."""
    revocation = check_revocation(state, raw)
    removed = remove_standing_approvals(state, revocation.tool)
    approvers = tuple(dict.fromkeys(approval.by for approval in removed))
    by = clean_text(revocation.by) if revocation.by else None
    revoked = RevokedApproval(tool=revocation.tool, by=by, at=now.isoformat(), approved_by=approvers)
    state.revoked = [*state.revoked, revoked][-MAX_STANDING_APPROVALS:]
    return removed


def drop_recorded_revocations(state: RunState, recorded: Sequence[RevokedApproval]) -> None:
    """Drop the revocations ``recorded``; later ones stay."""
    state.revoked = [revoked for revoked in state.revoked if revoked not in recorded]


def _list_other_standing_approvals(state: RunState, tool: str, by: str | None) -> list[StandingApproval]:
    key = (tool, hash_name(by))
    return [approval for approval in state.standing if (approval.tool, hash_name(approval.by)) != key]


def _check_standing_approval(state: RunState, decision: ApprovalDecision, pending: ToolCallState) -> None:
    """Raise ``InvalidInputError`` if ``decision`` asks for a standing approval that cannot be kept."""
    if decision.arguments is not None and decision.arguments != pending.call.arguments:
        raise InvalidInputError(
            "always: it cannot go with changed arguments, which are those of one call",
            hint="Approve this call with them, or every call as it is made.",
        )
    if hash_name(decision.by) is None:
        raise InvalidInputError("always: a standing approval needs a name", hint="Say who you are: by.")
    if len(_list_other_standing_approvals(state, pending.call.name, decision.by)) >= MAX_STANDING_APPROVALS:
        raise InvalidInputError(
            f"always: the run has {MAX_STANDING_APPROVALS} standing approvals, which is the limit",
            hint="Revoke one that is not needed, or approve this call alone.",
        )


def _find_standing_decision(state: RunState, pending: ToolCallState, now: datetime) -> ApprovalOutcome | None:
    """Return the decision of a standing approval on a waiting call; None if no standing approval covers the call."""
    terms = pending.call.approval
    assert terms is not None, "it waits for approval"
    for approval in state.standing:
        if terms.separate and has_requested(state, hash_name(approval.by)):
            continue
        if approval.tool == pending.call.name:
            return ApprovalOutcome(
                state="approved", by=approval.by, at=now.isoformat(), hash=terms.hash, standing=approval.at
            )
    return None


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
            outcome: DecisionState = "expired" if terms.on_expiry == "deny" else "approved"
            _record_decision(state, pending, ApprovalOutcome(state=outcome, at=now.isoformat(), hash=terms.hash))
        elif (decided := _find_standing_decision(state, pending, now)) is not None:
            _record_decision(state, pending, decided)
        else:
            mark_reminder_due(pending, now)
    questions.update_answer_waits(state, now)
    collect_results(state)


def list_pending_approvals(state: RunState) -> list[WaitingCall]:
    """List the waits for a person as ``status`` shows them: approvals first."""
    waits = sorted(pending_waits(state), key=lambda wait: wait.kind != "approval")
    requesters = list_requesters(state) if any(wait.kind == "approval" for wait in waits) else []
    return [wait.show(requesters) for wait in waits]


# ---
# Decisions and answers.


_ARGUMENT_OWNERS = {"remote": "those of a remote tool", "callback": "those of a callback"}
_SEND = "To answer that, send its `hash`, as `status` shows it."


def check_approval(state: RunState | None, raw: Any, now: datetime) -> None:
    """Check a decision without changing the state; a repeated decision of the same approver passes.

    With ``state`` None (the input is not read yet) only ``raw`` is checked. Raises ``InvalidInputError`` for a decision
    that is invalid, names no waiting call or approves without a hash; ``ApprovalDecidedError``,
    ``ApprovalExpiredError``; ``NotWaitingYetError`` if the call may still come to wait; ``RunClosedError`` if the run
    is ending.
    """
    update = read_decision(raw)
    if state is not None:
        _check(state, update, now)


def check_answer(state: RunState | None, raw: Any, now: datetime) -> None:
    """Check an answer without changing the state. See :func:`check_approval`."""
    update = read_answer(raw)
    if state is not None:
        _check(state, update, now)


def decide_approval(state: RunState, raw: Any, now: datetime) -> DecidedApproval:
    """Apply a decision, or return the record of a repeated one. Raises as :func:`check_approval`."""
    return _resolve(state, read_decision(raw), now)


def answer_call(state: RunState, raw: Any, now: datetime) -> DecidedApproval:
    """Apply an answer, or return the record of a repeated one. Raises as :func:`check_answer`."""
    return _resolve(state, read_answer(raw), now)


def _resolve(state: RunState, update: ApprovalDecision | CallAnswer, now: datetime) -> DecidedApproval:
    update_approval_waits(state, now)
    found = _check(state, update, now)
    if isinstance(found, DecidedApproval):
        return found
    if isinstance(update, CallAnswer):
        decided = take_answer(state, found.pending, update, now)
    else:
        decided = _take_decision(state, found.pending, update, now)
    update_approval_waits(state, now)
    return decided


def _check(state: RunState, update: ApprovalDecision | CallAnswer, now: datetime) -> CallWait | DecidedApproval:
    """Return the wait that ``update`` ends, or the record of what it repeats. Raises as :func:`check_approval`."""
    is_decision = isinstance(update, ApprovalDecision)
    waits = (wait for wait in pending_waits(state) if wait.pending.call.id == update.call_id)
    wait = next((wait for wait in waits if (wait.kind == "approval") == is_decision), None)
    is_meant = wait is not None and _is_meant(wait, update)
    # A decision applies to the waiting call of its id, if there is one.
    if not is_meant and (wait is None or not is_decision):
        blind = isinstance(update, ApprovalDecision) and update.decision == "approve" and update.hash is None
        if not blind and (past := find_repeated(state.decided, update)) is not None:
            return past
    if state.cancelled or (state.turn is not None and state.turn.failure is not None):
        raise RunClosedError(f"run {state.context_id!r} is ending", hint="Its calls are closed.")
    if wait is None:
        raise _build_no_wait_error(state, update)
    if not is_meant:
        raise _build_other_wait_error(state, update)
    if wait.is_late(now):
        raise ApprovalExpiredError(f"call {update.call_id!r} has expired: no decision by {wait.show().expires}")
    if isinstance(update, CallAnswer) or _is_input(wait.pending, update):
        check_requester_room(state, update.by)
    if isinstance(update, ApprovalDecision):
        _check_decision(state, wait.pending, update)
    elif update.error is None:
        check_value(state, wait, update)
    return wait


def _check_decision(state: RunState, pending: ToolCallState, decision: ApprovalDecision) -> None:
    if decision.arguments is not None and not isinstance(pending.call.disposition, ActivityCall):
        owner = _ARGUMENT_OWNERS.get(pending.call.disposition.kind, "what a subagent is asked")
        raise InvalidInputError(f"arguments: {owner} cannot be changed", hint="Deny the call instead.")
    terms = pending.call.approval
    if terms is not None and terms.separate and decision.decision == "approve":
        if (by := hash_name(decision.by)) is None:
            raise InvalidInputError(
                f"by: call {decision.call_id!r} needs an approver other than its requester", hint="Say who you are."
            )
        if has_requested(state, by):
            raise ApprovalForbiddenError(
                f"{decision.by} requested what led to call {decision.call_id!r}, and cannot approve it",
                hint="Another person must approve it.",
            )
        if _is_input(pending, decision):
            raise ApprovalForbiddenError(
                f"arguments: call {decision.call_id!r} needs an approver other than its requester, and a requester is "
                "who changes its arguments, too",
                hint="Deny it with the reason: the model may call it with those arguments, and another person approve.",
            )
    if decision.always:
        _check_standing_approval(state, decision, pending)


def _is_input(pending: ToolCallState, decision: ApprovalDecision) -> bool:
    """Whether the decision is an input to the turn: it changes the arguments, or tells the model why it denies."""
    if decision.decision == "deny":
        return bool(decision.comment)
    changed, terms = decision.arguments, pending.call.approval
    return changed is not None and (
        terms is None or hash_arguments(pending.call.id, pending.call.name, changed) != terms.hash
    )


def _is_meant(wait: CallWait, update: ApprovalDecision | CallAnswer) -> bool:
    """Whether the sender has seen the present wait, by its hash. Without a hash a call may be denied, and its first
    question answered."""
    if update.hash is not None:
        return update.hash == wait.hash
    return update.decision == "deny" if isinstance(update, ApprovalDecision) else not wait.pending.answers


def _take_decision(
    state: RunState, pending: ToolCallState, decision: ApprovalDecision, now: datetime
) -> DecidedApproval:
    call, terms = pending.call, pending.call.approval
    assert terms is not None, "it waits for approval"
    if _is_input(pending, decision):
        record_requester(state, decision.by)
    changed, digest = decision.arguments, terms.hash
    if changed is not None and (digest := hash_arguments(call.id, call.name, changed)) == terms.hash:
        changed = None  # unchanged; compared by hash, since 1 == True and 3 == 3.0
    outcome = ApprovalOutcome(
        state=DECISION_OUTCOMES[decision.decision],
        by=clean_text(decision.by) if decision.by else None,
        at=now.isoformat(),
        comment=clean_text(decision.comment) if decision.comment else None,
        arguments=changed,
        hash=digest,
        always=decision.always,
    )
    decided = _record_decision(state, pending, outcome)
    if decision.always and decided.by is not None:
        grant_standing_approval(state, call.name, decided.by, decided.at)
    elif decision.decision == "deny":
        remove_standing_approvals(state, call.name)
    return decided


def _record_decision(state: RunState, pending: ToolCallState, decided: ApprovalOutcome) -> DecidedApproval:
    pending.approval = decided
    if decided.state != "approved":
        uncount_tool_call(state, pending)
        by = f" by {decided.by}" if decided.by else ""
        text = f"Denied{by}: {decided.comment}" if decided.comment else f"Denied{by}"
        if decided.state == "expired":
            text = f"Expired: the call of {pending.call.name} was not approved in time, and was not run"
        pending.result = build_error_result(pending.call, text, decided=decided)
    fields = decided.model_dump(include={"state", "by", "at", "comment", "hash", "always", "standing"})
    return remember(state, pending, changed=decided.arguments is not None, **fields)


# ---
# Errors for refused decisions and answers.


def _build_no_wait_error(state: RunState, update: ApprovalDecision | CallAnswer) -> PerdureError:
    """Build the error for an update whose call id has no matching wait."""
    call_id, is_decision, waits = update.call_id, isinstance(update, ApprovalDecision), pending_waits(state)
    wanted, other = ("approval", "an answer") if is_decision else ("an answer", "approval")
    if any(wait.pending.call.id == call_id for wait in waits):
        hint = 'Answer it: answer_call {"call_id", "value"}; or with "error", why there is none.'
        return InvalidInputError(
            f"call {call_id!r} waits for {other}, not for {wanted}",
            hint=hint if is_decision else "Approve or deny it: decide_approval.",
        )
    if (too_late := build_late_error(state.decided, update)) is not None:
        return too_late
    # A call that the run already has was let begin, and will not wait for approval any more.
    begun = is_decision and any(pending.call.id == call_id for pending in state.calls)
    if not begun and (too_early := _build_early_error(state, call_id)) is not None:
        return too_early
    ids = [repr(wait.pending.call.id) for wait in waits if (wait.kind == "approval") == is_decision]
    hint = f"Waiting calls: {', '.join(ids)}." if ids else "No call of this run waits for it."
    return InvalidInputError(f"no call {call_id!r:.120} waits for {wanted}", hint=hint)


def _build_other_wait_error(state: RunState, update: ApprovalDecision | CallAnswer) -> PerdureError:
    """Build the error for an update whose hash is missing, or not that of the present wait."""
    if isinstance(update, CallAnswer):
        return build_late_error(state.decided, update, hint=f"The question has changed. {_SEND}") or InvalidInputError(
            f"call {update.call_id!r}: its question has changed since it was read", hint=f"Read `status` again. {_SEND}"
        )
    if update.hash is None:
        return InvalidInputError(
            f"hash: an approval of call {update.call_id!r} must name the hash of what was reviewed",
            hint="Send the call's `hash` as `status` shows it, together with its arguments.",
        )
    return InvalidInputError(
        f"call {update.call_id!r}: its hash is another than the one sent: its arguments may have changed",
        hint="Read `status` again, and decide on the call that waits now.",
    )


def _build_early_error(state: RunState, call_id: str) -> NotWaitingYetError | None:
    """Build the error for an update that comes before its call waits; None if, as far as the run knows, it will not.

    The event of a question is recorded by the tool's activity; the workflow learns of the question only when the
    activity ends: a moment later, or after a crash some time later.
    """
    pending = next((pending for pending in state.calls if pending.call.id == call_id), None)
    reason = None
    if pending is None:
        if isinstance(decide(state), CallModel):
            reason = "the model is called, and may make such a call"
    elif needs_before_activity(pending):
        reason = "its worker checks it first"
    elif isinstance(pending.call.disposition, ActivityCall) and pending.result is None and not pending.held:
        reason = "its tool runs, and may ask a question"
    if reason is None:
        return None
    return NotWaitingYetError(
        f"call {call_id!r:.120} does not wait for a person yet: {reason}",
        hint="Send it again as soon as `status` shows the call among `approvals`.",
    )
