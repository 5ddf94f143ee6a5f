"""Calls that wait for an answer: to what their tool asks, or in the place of their result; and what is answered."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from ..errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    NotWaitingYetError,
    PerdureError,
    RunClosedError,
)
from ..types.approvals import DecidedApproval, PendingApproval, Waiting, arguments_hash, name_hash
from ..types.forms import misfit
from ..types.messages import clean
from ..types.plain_json import size
from ..types.state import DECIDED, PendingCall, RunState
from ..types.tool_calls import (
    ANSWER_BYTES,
    ANSWERS_BYTES,
    Answer,
    AsActivity,
    AsCallback,
    CallAnswer,
    Cleared,
    Question,
)
from ..types.validation_errors import describe_validation_error
from ..types.wire import OUTPUT_BYTES, REMOTE_BYTES, NewResult
from .apply import collect, end_at_limit
from .decide import CallModel, decide
from .external_calls import arguments_of, due_before, fits_beside, keep_cleared, keep_returned
from .payload_limits import DECIDED_BYTES, latest
from .waits import asks, expects, let_go

# ---
# Decisions and answers that come before the run has heard that anybody is asked.
#
# Whoever follows the events is told of a question by the activity that came upon it, with what that has recorded. The
# run
# hears of it as the activity ends: a moment later, or after a crash some time later.


def not_yet(state: RunState, call_id: str) -> NotWaitingYetError | None:
    """What whoever comes too early is told; None where the call will not wait, as far as the run knows."""
    pending = next((one for one in state.calls if one.call.id == call_id), None)
    if pending is None:
        why = "the model is asked, and may make such a call" if isinstance(decide(state), CallModel) else None
    elif due_before(pending):
        why = "its worker looks at it first"
    else:
        why = "its tool runs, and may ask something" if _runs(pending) else None
    if why is None:
        return None
    return NotWaitingYetError(
        f"call {call_id!r:.120} does not wait for anybody yet: {why}",
        hint="Send it again as soon as `status` shows the call among `approvals`.",
    )


def _runs(pending: PendingCall) -> bool:
    return isinstance(pending.call.disposition, AsActivity) and pending.result is None and not pending.held


_SEND = "To answer that, send its `hash`, as `status` shows it."


def ask_person(state: RunState, op: int, question: Question, now: datetime) -> None:
    """The tool of the call of operation ``op`` asks; the call is run again when somebody has answered."""
    open_now = sum(size(one.question.model_dump()) for one in state.calls if one.question is not None)
    for pending in state.calls:
        if pending.op != op or pending.result is not None:
            continue
        if open_now + size(question.model_dump()) > OUTPUT_BYTES:  # ``status`` could not be told any more
            text = f"ToolError: {pending.call.name} asks, and too much is asked at once: call it again later"
            pending.result = _result(pending, text, is_error=True)
        else:
            pending.question, pending.expects = question, None
    note(state, now)
    collect(state)
    end_at_limit(state)


def clear(state: RunState, op: int, cleared: Cleared, now: datetime) -> None:
    """The worker has looked at the call of operation ``op``: it may be handed over, or a client is to run it now."""
    for pending in state.calls:
        if pending.op == op and pending.result is None:
            keep_cleared(state, pending, cleared)
    note(state, now)
    collect(state)
    end_at_limit(state)


def note(state: RunState, now: datetime) -> None:
    """Note since when calls wait for an answer, and end the wait of those that nobody answered in time.

    Whoever calls this collects the results.
    """
    for pending in [one for one in state.calls if expects(one)]:
        if pending.expects is None:
            seconds = _terms(pending).expires
            until = None if seconds is None else now.timestamp() + seconds
            pending.expects = Waiting(since=now.isoformat(), until=until)
        if _late(pending, now):
            how = pending.call.disposition
            said = how.on_expiry if isinstance(how, AsCallback) and pending.question is None else None
            text = said or f"Expired: nobody answered the call of {pending.call.name} in time"
            pending.result = _result(pending, text, is_error=True).model_copy(update={"decided": let_go(pending)})
            _remember(state, pending, "expired", now)


def check_answer(state: RunState | None, raw: Any, now: datetime) -> CallAnswer:
    """The answer, as it can be taken; None where the state is not known yet.

    Raises ``InvalidInputError`` for one that does not fit, or for a call that does not wait for one;
    ``ApprovalDecidedError`` where somebody was quicker, ``ApprovalExpiredError``, ``RunClosedError``.
    """
    said = _read(raw)
    if state is None:
        return said
    if state.cancelled or (state.turn is not None and state.turn.failure is not None):
        raise RunClosedError(f"run {state.context_id!r} is ending", hint="Its calls are closed.")
    if _before(state, said) is not None:
        return said
    pending = _expecting(state, said.call_id)
    if pending is None:
        raise _none_waits(state, said.call_id)
    if not _meant(pending, said):
        raise _answered(state, said.call_id, "It asks something else now") or InvalidInputError(
            f"call {said.call_id!r} asks something else than what was looked at",
            hint=f"Look at what waits now. {_SEND}",
        )
    if _late(pending, now):
        raise ApprovalExpiredError(f"the time to answer call {said.call_id!r} is over")
    if said.error is None:
        _check_value(state, pending, said)
    return said


def answer_call(state: RunState, raw: Any, now: datetime) -> DecidedApproval:
    """Take an answer; whoever repeats himself gets back what it was. Raises as :func:`check_answer`."""
    note(state, now)
    said = check_answer(state, raw, now)
    if (before := _before(state, said)) is not None:
        return before
    pending = _expecting(state, said.call_id)
    assert pending is not None, "checked"
    by = clean(said.by) if said.by else None
    error = clean(said.error) if said.error is not None else None
    if pending.question is not None:
        value = None if error is not None else said.value
        pending.answers = [*pending.answers, Answer(value=value, error=error, by=by, at=now.isoformat())]
        pending.question = pending.expects = None
    else:
        text = error if error is not None else None if said.blob else _text(said.value)
        result = _result(pending, text, is_error=error is not None)
        said_by = {"answered_by": by or "", "decided": let_go(pending)}
        error_type = "ToolError" if error is not None else ""
        keep_returned(pending, result.model_copy(update={"blob": said.blob, **said_by}), error_type)
    past = _remember(state, pending, "answered", now, by=by, comment=error, hash=answer_hash(said))
    collect(state)
    end_at_limit(state)
    return past


def answer_hash(said: CallAnswer) -> str:
    """Names what is said (hexadecimal), whoever says it."""
    what = said.model_dump(mode="json", include={"value", "error", "blob"})
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def repeats(said: CallAnswer, past: DecidedApproval) -> bool:
    """Whether ``said`` is the answer that was given."""
    by = name_hash(said.by)
    past_is = past.call_id, past.state, name_hash(past.by), past.hash
    return past_is == (said.call_id, "answered", by, answer_hash(said))


def expecting(state: RunState) -> list[PendingApproval]:
    """What waits for an answer, as ``status`` shows it."""
    found = []
    for pending in filter(expects, state.calls):
        until = pending.expects.until if pending.expects else None
        found.append(
            PendingApproval(
                kind="callback" if pending.question is None else "question",
                call_id=pending.call.id,
                name=pending.call.name,
                arguments=arguments_of(pending),
                hash=asked_hash(pending),
                since=pending.expects.since if pending.expects else None,
                expires=None if until is None else datetime.fromtimestamp(until, UTC).isoformat(),
                question=pending.question.text if pending.question else None,
                form=_terms(pending).form,
            )
        )
    return found


def asked_hash(pending: PendingCall) -> str:
    """Names what is asked: the call, and which question of it."""
    asked = arguments_of(pending) or {}
    if pending.question is not None:
        asked = {"question": pending.question.text, "answers": len(pending.answers)}
    return arguments_hash(pending.call.id, pending.call.name, asked)


def _expecting(state: RunState, call_id: str) -> PendingCall | None:
    return next((one for one in state.calls if one.call.id == call_id and expects(one)), None)


def _before(state: RunState, said: CallAnswer) -> DecidedApproval | None:
    """What the same answer came to, unless it may be meant for what the call asks now."""
    pending = _expecting(state, said.call_id)
    if pending is not None and _meant(pending, said):
        return None
    return next((past for past in reversed(state.decided) if repeats(said, past)), None)


def _meant(pending: PendingCall, said: CallAnswer) -> bool:
    """Whether it is what the call asks now that is answered. Who sends no hash answers what a call asks first."""
    return not pending.answers if said.hash is None else said.hash == asked_hash(pending)


def _terms(pending: PendingCall) -> Question | AsCallback:
    how = pending.question or pending.call.disposition
    assert isinstance(how, Question | AsCallback), "it expects an answer"
    return how


def _check_value(state: RunState, pending: PendingCall, said: CallAnswer) -> None:
    """Raise ``InvalidInputError`` for what is no answer to this."""
    form = _terms(pending).form
    if said.blob is not None:
        if pending.question is not None or form is not None:
            raise InvalidInputError("value: it is too long for what is asked")
        if said.store_id is not None and state.store_id is not None and said.store_id != state.store_id:
            raise InvalidInputError(
                f"value: its text is in store {said.store_id}, and the run is kept in store {state.store_id}"
            )
        return
    if pending.question is None:
        _check_result(state, said.value)
    else:
        before = size([one.model_dump() for one in pending.answers])
        most = min(ANSWER_BYTES, ANSWERS_BYTES - before)
        if (found := size(said.value)) > most:
            raise InvalidInputError(f"value: it has {found:,} bytes as JSON and may have {max(most, 0):,}")
    if form is not None and (why := misfit(form, said.value)) is not None:
        raise InvalidInputError(f"value: it does not fit what is asked: {why[:500]}")


def _check_result(state: RunState, value: Any) -> None:
    """Of a callback: it travels whole, as a remote tool's, with those of the other calls."""
    text = _text(value)
    if (found := size(text)) > REMOTE_BYTES:
        raise InvalidInputError(
            f"value: it has {found:,} bytes as JSON and may have {REMOTE_BYTES:,}",
            hint="perdure's client puts a longer text into the store.",
        )
    if not fits_beside(state, text):
        raise InvalidInputError("value: with it the results of this reply are too long: give a shorter one")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _result(pending: PendingCall, text: str | None, *, is_error: bool) -> NewResult:
    return NewResult(call_id=pending.call.id, name=pending.call.name, text=text, is_error=is_error)


def _late(pending: PendingCall, now: datetime) -> bool:
    until = pending.expects.until if pending.expects else None
    return until is not None and until <= now.timestamp()


def _remember(
    state: RunState,
    pending: PendingCall,
    how: Literal["answered", "expired"],
    now: datetime,
    **more: Any,
) -> DecidedApproval:
    call = pending.call
    past = DecidedApproval(call_id=call.id, name=call.name, state=how, at=now.isoformat(), **more)
    state.decided = latest([*state.decided, past][-DECIDED:], DECIDED_BYTES)
    return past


def _read(raw: Any) -> CallAnswer:
    expected = 'Send {"call_id": "<id>", "value": <JSON>, "by": "<name>"}, or "error" in the place of "value".'
    try:
        return CallAnswer.model_validate(raw)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "the answer"), hint=expected) from None


def _answered(state: RunState, call_id: str, but: str = "") -> PerdureError | None:
    """What whoever comes too late is told; None where nobody was quicker."""
    past = next((one for one in reversed(state.decided) if one.call_id == call_id), None)
    if past is None or past.state == "approved":
        return None
    if past.state == "expired":
        return ApprovalExpiredError(f"the time to answer call {call_id!r} is over")
    return ApprovalDecidedError(f"call {call_id!r} is already {past}", hint=f"{but}. {_SEND}" if but else None)


def _none_waits(state: RunState, call_id: str) -> PerdureError:
    if any(one.call.id == call_id and asks(one) for one in state.calls):
        return InvalidInputError(
            f"call {call_id!r} waits for approval, not for an answer", hint="Approve or deny it: decide_approval."
        )
    if (late := _answered(state, call_id)) is not None:
        return late
    if (early := not_yet(state, call_id)) is not None:
        return early
    ids = [repr(one.call.id) for one in state.calls if expects(one)]
    there = f"There waits: {', '.join(ids)}." if ids else "None does in this run."
    return InvalidInputError(f"no call {call_id!r:.120} waits for an answer", hint=there)
