"""Calls that wait for somebody's approval: from when on, until when, and what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from ..errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, RunClosedError
from ..types.approvals import (
    CHANGED_BYTES,
    STANDING,
    ApprovalDecision,
    Decided,
    DecidedApproval,
    PendingApproval,
    Revocation,
    Revoked,
    StandingApproval,
    Waiting,
    arguments_hash,
    name_hash,
)
from ..types.messages import clean
from ..types.plain_json import size
from ..types.state import DECIDED, PendingCall, RunState
from ..types.tool_calls import AsActivity
from ..types.validation_errors import describe_validation_error
from ..types.wire import NewResult
from . import questions
from .apply import collect, end_at_limit
from .limits import unused
from .payload_limits import DECIDED_BYTES, latest
from .questions import not_yet
from .waits import askers, asks, expects, look

# ---
# Standing approvals: somebody has approved every call of a tool in this conversation.


HINT = 'Send {"tool": "<name>", "by": "<name>"}.'


def check_always(state: RunState, decision: ApprovalDecision, pending: PendingCall) -> None:
    """Raise ``InvalidInputError`` for a standing approval that cannot be kept."""
    if not decision.always:
        return
    if decision.arguments is not None and decision.arguments != pending.call.arguments:
        raise InvalidInputError(
            "always: it cannot go with changed arguments, which are those of one call",
            hint="Approve this call with them, or every call as it is made.",
        )
    if name_hash(decision.by) is None:
        raise InvalidInputError("always: a standing approval has a name", hint="Say who you are: by.")
    others = _without(state, pending.call.name, decision.by)
    if len(others) >= STANDING:
        raise InvalidInputError(
            f"always: the run has {STANDING} standing approvals, and keeps no more",
            hint="Revoke one that is not needed, or approve this call alone.",
        )


def stand(state: RunState, tool: str, by: str, at: str) -> None:
    """Keep that ``by`` approves every call of ``tool``."""
    state.standing = [*_without(state, tool, by), StandingApproval(tool=tool, by=by, at=at)]


def by_standing(state: RunState, pending: PendingCall, now: datetime) -> Decided | None:
    """What standing approvals decide on a call that waits; None where somebody has to be asked."""
    terms = pending.call.approval
    assert terms is not None, "it asks"
    asked = askers(state) if terms.separate else []
    for one in state.standing:
        if one.tool == pending.call.name and name_hash(one.by) not in asked:
            return Decided(state="approved", by=one.by, at=now.isoformat(), hash=terms.hash, standing=one.at)
    return None


def withdraw(state: RunState, tool: str) -> list[StandingApproval]:
    """Nobody approves every call of ``tool`` any more; what had stood."""
    gone = [one for one in state.standing if one.tool == tool]
    state.standing = [one for one in state.standing if one.tool != tool]
    return gone


def check_revocation(state: RunState | None, raw: Any) -> Revocation:
    """Which standing approvals are to go. Raises ``InvalidInputError``, also where there are none of that tool."""
    try:
        given = Revocation.model_validate(raw)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "the revocation"), hint=HINT) from None
    if state is not None and not any(one.tool == given.tool for one in state.standing):
        there = "; ".join(map(str, state.standing))
        raise InvalidInputError(
            f"no approval of all calls of {given.tool!r:.120} stands in this run",
            hint=f"There stands: {there}." if there else "None stands.",
        )
    return given


def revoke(state: RunState, raw: Any, now: datetime) -> list[StandingApproval]:
    """Take the standing approvals of a tool back; which they were. Raises as :func:`check_revocation`."""
    given = check_revocation(state, raw)
    gone = withdraw(state, given.tool)
    names = tuple(dict.fromkeys(one.by for one in gone))
    by = clean(given.by) if given.by else None
    revoked = Revoked(tool=given.tool, by=by, at=now.isoformat(), approved_by=names)
    state.revoked = [*state.revoked, revoked][-STANDING:]
    return gone


def told_revoked(state: RunState, told: Sequence[Revoked]) -> None:
    """``told`` are said; what was taken back meanwhile is not."""
    state.revoked = [one for one in state.revoked if one not in told]


def _without(state: RunState, tool: str, by: str | None) -> list[StandingApproval]:
    return [one for one in state.standing if (one.tool, name_hash(one.by)) != (tool, name_hash(by))]


_WHOSE = {"remote": "those of a remote tool", "callback": "those of a callback"}


def ask(state: RunState, now: datetime) -> None:
    """Note since when new calls wait and of which somebody is to be reminded, and end the wait of those that nobody
    decided on in time, or has to."""
    for pending in [one for one in state.calls if asks(one)]:
        terms = pending.call.approval
        assert terms is not None, "it asks"
        if pending.waiting is None:
            until = None if terms.expires is None else now.timestamp() + terms.expires
            after = None if terms.remind is None else now.timestamp() + terms.remind
            pending.waiting = Waiting(since=now.isoformat(), until=until, next=after)
        if _late(pending, now):
            kept = "expired" if terms.on_expiry == "deny" else "approved"
            _decide(state, pending, Decided.model_validate({"state": kept, "at": now.isoformat(), "hash": terms.hash}))
        elif (decided := by_standing(state, pending, now)) is not None:
            _decide(state, pending, decided)
        else:
            look(pending, now)
    questions.note(state, now)
    collect(state)
    end_at_limit(state)


def check_approval(state: RunState | None, raw: Any, now: datetime) -> ApprovalDecision:
    """The decision, as it can be carried out; as it was sent where the state is not known yet.

    Raises ``InvalidInputError`` for one that does not fit, names no waiting call or approves without a hash,
    ``ApprovalDecidedError`` unless the same person has decided the same before, ``ApprovalExpiredError``;
    ``RunClosedError`` where the run is ending.
    """
    return _checked(state, _read(raw), now)


def _checked(state: RunState | None, decision: ApprovalDecision, now: datetime) -> ApprovalDecision:
    if state is None or _before(state, decision) is not None:
        return decision
    if state.cancelled or (state.turn is not None and state.turn.failure is not None):
        raise RunClosedError(f"run {state.context_id!r} is ending", hint="Its calls are closed.")
    pending = next((one for one in state.calls if one.call.id == decision.call_id and asks(one)), None)
    if pending is None or pending.call.approval is None:
        raise _none_waits(state, decision.call_id)
    terms = pending.call.approval
    if decision.hash is None and decision.decision == "approve":
        raise InvalidInputError(
            f"hash: an approval says what was looked at, and this one of call {decision.call_id!r} does not",
            hint="Send the call's `hash` as `status` shows it, together with its arguments.",
        )
    if decision.hash is not None and decision.hash != terms.hash:
        raise InvalidInputError(
            f"call {decision.call_id!r} is not the one that was looked at: it has other arguments now",
            hint="Look at what waits now, and decide on that.",
        )
    if _late(pending, now):
        raise ApprovalExpiredError(f"the approval of call {decision.call_id!r} has expired")
    if decision.arguments is not None and not isinstance(pending.call.disposition, AsActivity):
        whose = _WHOSE.get(pending.call.disposition.kind, "what a subagent is asked")
        raise InvalidInputError(f"arguments: {whose} cannot be changed", hint="Deny the call instead.")
    if terms.separate and decision.decision == "approve":
        _check_separate(state, decision)
    check_always(state, decision, pending)
    return decision


def decide_approval(state: RunState, raw: Any, now: datetime) -> DecidedApproval:
    """Carry a decision out; one that was carried out before is given back. Raises as :func:`check_approval`."""
    ask(state, now)
    decision = _checked(state, _read(raw), now)
    if (past := _before(state, decision)) is not None:
        return past
    pending = next(one for one in state.calls if one.call.id == decision.call_id and asks(one))
    call, terms = pending.call, pending.call.approval
    assert terms is not None, "it asks"
    changed = decision.arguments if decision.decision == "approve" else None
    if changed is not None and arguments_hash(call.id, call.name, changed) == terms.hash:
        changed = None  # as they were, where 1 and true, or 3 and 3.0, are not the same
    decided = _decide(
        state,
        pending,
        Decided(
            state="approved" if decision.decision == "approve" else "denied",
            by=clean(decision.by) if decision.by else None,
            at=now.isoformat(),
            comment=clean(decision.comment) if decision.comment else None,
            arguments=changed,
            hash=terms.hash if changed is None else arguments_hash(call.id, call.name, changed),
            always=decision.always,
        ),
    )
    if decision.always and decided.by is not None:
        stand(state, call.name, decided.by, decided.at)
    elif decision.decision == "deny":
        withdraw(state, call.name)
    ask(state, now)
    return decided


def repeats(decision: ApprovalDecision, past: DecidedApproval) -> bool:
    """Whether ``past`` is what came of ``decision``, sent again by the same person who had no answer."""
    by = name_hash(decision.by)
    if by is None or (name_hash(past.by), past.call_id) != (by, decision.call_id):
        return False
    comment = clean(decision.comment) if decision.comment else None
    made = "approved" if decision.decision == "approve" else "denied"
    always = decision.always and not past.standing  # said of another call, it holds for this one
    if (made, comment, always) != (past.state, past.comment, past.always):
        return False
    if decision.arguments is not None:
        return arguments_hash(past.call_id, past.name, decision.arguments) == past.hash
    return not past.changed and decision.hash in (None, past.hash)


def waiting(state: RunState) -> list[PendingApproval]:
    """What waits, as ``status`` shows it."""
    found = []
    for pending in state.calls:
        terms = pending.call.approval
        if not asks(pending) or terms is None:
            continue
        until = pending.waiting.until if pending.waiting else None
        found.append(
            PendingApproval(
                call_id=pending.call.id,
                name=pending.call.name,
                arguments=pending.call.arguments,
                hash=terms.hash,
                since=pending.waiting.since if pending.waiting else None,
                expires=None if until is None else datetime.fromtimestamp(until, UTC).isoformat(),
                on_expiry=terms.on_expiry,
                separate=terms.separate,
                reminded=pending.waiting.reminded if pending.waiting else 0,
            )
        )
    return found + questions.expecting(state)


def _before(state: RunState, decision: ApprovalDecision) -> DecidedApproval | None:
    """What the same decision came to, unless another call waits under the id by now."""
    if any(one.call.id == decision.call_id and asks(one) for one in state.calls):
        return None
    if decision.hash is None and decision.decision == "approve":
        return None
    past = next((one for one in reversed(state.decided) if one.call_id == decision.call_id), None)
    return past if past is not None and repeats(decision, past) else None


def _decide(state: RunState, pending: PendingCall, decided: Decided) -> DecidedApproval:
    pending.decided = decided
    call = pending.call
    if decided.state != "approved":
        unused(state, pending)
        pending.result = NewResult(
            call_id=call.id, name=call.name, text=_refusal(pending, decided), is_error=True, decided=decided
        )
    said = decided.model_dump(include={"state", "by", "at", "comment", "hash", "always", "standing"})
    past = DecidedApproval(call_id=call.id, name=call.name, changed=decided.arguments is not None, **said)
    state.decided = latest([*state.decided, past][-DECIDED:], DECIDED_BYTES)
    return past


def _refusal(pending: PendingCall, decided: Decided) -> str:
    """What the model is told."""
    if decided.state == "expired":
        return f"Expired: nobody approved the call of {pending.call.name} in time; it was not run"
    by = f" by {decided.by}" if decided.by else ""
    return f"Denied{by}: {decided.comment}" if decided.comment else f"Denied{by}"


def _late(pending: PendingCall, now: datetime) -> bool:
    until = pending.waiting.until if pending.waiting else None
    return until is not None and until <= now.timestamp()


def _read(raw: Any) -> ApprovalDecision:
    expected = (
        'Send {"call_id": "<id>", "hash": "<as status has it>", "decision": "approve" or "deny", "by": "<name>"}.'
    )
    try:
        decision = ApprovalDecision.model_validate(raw)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "the decision"), hint=expected) from None
    if decision.always and decision.decision == "deny":
        raise InvalidInputError("always: only an approval can stand", hint="A rule of the agent denies every call.")
    if decision.arguments is not None:
        if decision.decision == "deny":
            raise InvalidInputError("arguments: a call that is denied has none", hint="Leave them out.")
        if (found := size(decision.arguments)) > CHANGED_BYTES:
            raise InvalidInputError(f"arguments: they have {found:,} bytes as JSON and may have {CHANGED_BYTES:,}")
    return decision


def _none_waits(state: RunState, call_id: str) -> Exception:
    if any(one.call.id == call_id and expects(one) for one in state.calls):
        return InvalidInputError(
            f"call {call_id!r} waits for an answer, not for approval",
            hint='Answer it: answer_call {"call_id", "value"}; or with "error", why there is none.',
        )
    past = next((one for one in reversed(state.decided) if one.call_id == call_id), None)
    if past is not None and past.state == "expired":
        return ApprovalExpiredError(f"the approval of call {call_id!r} has {past}")
    if past is not None:
        return ApprovalDecidedError(f"call {call_id!r} is already decided: {past}")
    if not any(one.call.id == call_id for one in state.calls) and (early := not_yet(state, call_id)) is not None:
        return early
    ids = [repr(one.call.id) for one in state.calls if asks(one)]
    there = f"There waits: {', '.join(ids)}." if ids else "None waits in this run."
    return InvalidInputError(f"no call {call_id!r:.120} waits for approval", hint=there)


def _check_separate(state: RunState, decision: ApprovalDecision) -> None:
    if (by := name_hash(decision.by)) is None:
        raise InvalidInputError(
            f"by: call {decision.call_id!r} must be approved by somebody else than who asked for it",
            hint="Say who you are.",
        )
    if by in askers(state):
        raise InvalidInputError(
            f"{decision.by} asked for what led to call {decision.call_id!r}, and cannot approve it",
            hint="Somebody else has to.",
        )
