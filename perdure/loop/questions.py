"""Calls that wait for an answer: questions of a tool, and callbacks, whose answer is the result of the call."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..errors import InvalidInputError
from ..types.approvals import DecidedApproval
from ..types.forms import find_form_mismatch
from ..types.messages import clean_text
from ..types.plain_json import measure_json
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import (
    ALL_ANSWERS_BYTES,
    ANSWER_BYTES,
    CallAnswer,
    CallbackCall,
    Clearance,
    Question,
    ToolAnswer,
)
from ..types.wire import OUTPUT_BYTES, REMOTE_BYTES
from .apply import collect_results
from .external_calls import set_clearance, set_external_result
from .requests import as_text, hash_answer
from .results import build_error_result, build_result, can_fit_result
from .waits import CallWait, get_callback_approval, pending_waits, record_requester, remember


def apply_question(state: RunState, op: int, question: Question, now: datetime) -> None:
    """Set the question of the call of operation ``op``; the call is run again once the question is answered."""
    size = measure_json(question.model_dump())
    open_bytes = sum(measure_json(pending.question.model_dump()) for pending in state.calls if pending.question)
    for pending in state.calls:
        if pending.op != op or pending.result is not None:
            continue
        if open_bytes + size > OUTPUT_BYTES:  # ``status`` could no longer show it
            text = f"ToolError: {pending.call.name} asks, and too much is asked at once: call it again later"
            pending.result = build_error_result(pending.call, text)
        else:
            pending.question, pending.answer_wait = question, None
    update_answer_waits(state, now)
    collect_results(state)


def apply_clearance(state: RunState, op: int, cleared: Clearance, now: datetime) -> None:
    """Apply the clearance of the call of operation ``op``: it may be handed over, or waits for a client to run it."""
    for pending in state.calls:
        if pending.op == op and pending.result is None:
            set_clearance(state, pending, cleared)
    update_answer_waits(state, now)
    collect_results(state)


def update_answer_waits(state: RunState, now: datetime) -> None:
    """Begin the wait of new calls that wait for an answer, and end the waits that have expired.

    The caller collects the results.
    """
    for wait in pending_waits(state):
        if wait.kind == "approval":
            continue
        wait.begin(now)
        if wait.is_late(now):
            pending, terms = wait.pending, wait.terms
            text = terms.on_expiry if isinstance(terms, CallbackCall) else None
            text = text or f"Expired: the call of {pending.call.name} was not answered in time"
            pending.result = build_error_result(pending.call, text, decided=get_callback_approval(pending))
            remember(state, pending, state="expired", at=now.isoformat())


def take_answer(state: RunState, pending: ToolCallState, answer: CallAnswer, now: datetime) -> DecidedApproval:
    """Give the call its answer, which is already checked. The caller collects the results."""
    record_requester(state, answer.by)
    at, by = now.isoformat(), clean_text(answer.by) if answer.by else None
    error = clean_text(answer.error) if answer.error is not None else None
    if pending.question is not None:
        value = None if error is not None else answer.value
        pending.answers = [*pending.answers, ToolAnswer(value=value, error=error, by=by, at=at)]
        pending.question = pending.answer_wait = None
    else:
        text = error if error is not None else None if answer.blob else as_text(answer.value)
        approval, is_error = get_callback_approval(pending), error is not None
        result = build_result(
            pending.call, text, blob=answer.blob, is_error=is_error, answered_by=by or "", decided=approval
        )
        set_external_result(pending, result, "ToolError" if is_error else "")
    return remember(state, pending, state="answered", at=at, by=by, comment=error, hash=hash_answer(answer))


def check_value(state: RunState, wait: CallWait, answer: CallAnswer) -> None:
    """Raise ``InvalidInputError`` for a value that does not fit what ``wait`` asks for: its form, size or store."""
    pending, terms = wait.pending, wait.terms
    assert isinstance(terms, Question | CallbackCall), "it waits for an answer"
    form = terms.form
    if answer.blob is not None:
        if pending.question is not None or form is not None:
            raise InvalidInputError("value: it is too long for what is asked")
        if None not in (answer.store_id, state.store_id) and answer.store_id != state.store_id:
            raise InvalidInputError(
                f"value: its text is in store {answer.store_id}, and the run is kept in store {state.store_id}"
            )
        return
    if pending.question is None:
        _check_callback_result(state, answer.value)
    else:
        used = measure_json([earlier.model_dump() for earlier in pending.answers])
        allowed = max(0, min(ANSWER_BYTES, ALL_ANSWERS_BYTES - used))
        if (size := measure_json(answer.value)) > allowed:
            raise InvalidInputError(f"value: it has {size:,} bytes as JSON and may have {allowed:,}")
    if form is not None and (mismatch := find_form_mismatch(form, answer.value)) is not None:
        raise InvalidInputError(f"value: it does not fit what is asked: {mismatch[:500]}")


def _check_callback_result(state: RunState, value: Any) -> None:
    """Refuse a callback result that is too large to be carried inline with the other results of its reply."""
    text = as_text(value)
    if (size := measure_json(text)) > REMOTE_BYTES:
        raise InvalidInputError(
            f"value: it has {size:,} bytes as JSON and may have {REMOTE_BYTES:,}",
            hint="perdure's client puts a longer text into the store.",
        )
    if not can_fit_result(state, text):
        raise InvalidInputError("value: with it the results of this reply are too long: give a shorter one")
