"""Calls that wait for an answer: questions of a tool, and callbacks, whose answer is the result of the call."""

from __future__ import annotations

import hashlib
import json
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
from ..types.wire import OUTPUT_BYTES, REMOTE_BYTES, NewResult
from .apply import collect_results, end_turn_at_limit
from .external_calls import set_clearance, set_external_result
from .results import can_fit_result
from .waits import PendingWait, get_callback_approval, pending_waits, remember


def apply_question(state: RunState, op: int, question: Question, now: datetime) -> None:
    """Set the question of the call of operation ``op``; the call is run again once the question is answered."""
    open_now = sum(measure_json(one.question.model_dump()) for one in state.calls if one.question is not None)
    for pending in state.calls:
        if pending.op != op or pending.result is not None:
            continue
        if open_now + measure_json(question.model_dump()) > OUTPUT_BYTES:  # ``status`` could no longer show it
            text = f"ToolError: {pending.call.name} asks, and too much is asked at once: call it again later"
            pending.result = _build_answer_result(pending, text, is_error=True)
        else:
            pending.question, pending.expects = question, None
    _settle(state, now)


def apply_clearance(state: RunState, op: int, cleared: Clearance, now: datetime) -> None:
    """Apply the clearance of the call of operation ``op``: it may be handed over, or waits for a client to run it."""
    for pending in state.calls:
        if pending.op == op and pending.result is None:
            set_clearance(state, pending, cleared)
    _settle(state, now)


def _settle(state: RunState, now: datetime) -> None:
    update_answer_waits(state, now)
    collect_results(state)
    end_turn_at_limit(state)


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
            said = terms.on_expiry if isinstance(terms, CallbackCall) else None
            text = said or f"Expired: nobody answered the call of {pending.call.name} in time"
            pending.result = _build_answer_result(pending, text, is_error=True).model_copy(
                update={"decided": get_callback_approval(pending)}
            )
            remember(state, pending, state="expired", at=now.isoformat())


def take_answer(state: RunState, pending: ToolCallState, said: CallAnswer, now: datetime) -> DecidedApproval:
    """Give the call its answer, which is already checked. The caller collects the results."""
    by = clean_text(said.by) if said.by else None
    error = clean_text(said.error) if said.error is not None else None
    if pending.question is not None:
        value = None if error is not None else said.value
        pending.answers = [*pending.answers, ToolAnswer(value=value, error=error, by=by, at=now.isoformat())]
        pending.question = pending.expects = None
    else:
        text = error if error is not None else None if said.blob else as_text(said.value)
        result = _build_answer_result(pending, text, is_error=error is not None)
        said_by = {"answered_by": by or "", "decided": get_callback_approval(pending)}
        error_type = "ToolError" if error is not None else ""
        set_external_result(pending, result.model_copy(update={"blob": said.blob, **said_by}), error_type)
    return remember(state, pending, state="answered", at=now.isoformat(), by=by, comment=error, hash=hash_answer(said))


def hash_answer(said: CallAnswer) -> str:
    """Hash value, error and blob of an answer, without its sender: 32 hexadecimal digits."""
    what = said.model_dump(mode="json", include={"value", "error", "blob"})
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def as_text(value: Any) -> str:
    """Format the value of a callback's answer as the model gets it: a string as it is, else its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_value(state: RunState, wait: PendingWait, said: CallAnswer) -> None:
    """Raise ``InvalidInputError`` for a value that does not fit what ``wait`` asks for: its form, size or store."""
    pending, terms = wait.pending, wait.terms
    assert isinstance(terms, Question | CallbackCall), "it waits for an answer"
    form = terms.form
    if said.blob is not None:
        if pending.question is not None or form is not None:
            raise InvalidInputError("value: it is too long for what is asked")
        if said.store_id is not None and state.store_id is not None and said.store_id != state.store_id:
            raise InvalidInputError(
                f"value: its text is in store {said.store_id}, and the run is kept in store {state.store_id}"
            )
        return
    if pending.question is None:
        _check_callback_result(state, said.value)
    else:
        before = measure_json([one.model_dump() for one in pending.answers])
        most = min(ANSWER_BYTES, ALL_ANSWERS_BYTES - before)
        if (found := measure_json(said.value)) > most:
            raise InvalidInputError(f"value: it has {found:,} bytes as JSON and may have {max(most, 0):,}")
    if form is not None and (why := find_form_mismatch(form, said.value)) is not None:
        raise InvalidInputError(f"value: it does not fit what is asked: {why[:500]}")


def _check_callback_result(state: RunState, value: Any) -> None:
    """Refuse a callback result that is too large to be carried inline with the other results of its reply."""
    text = as_text(value)
    if (found := measure_json(text)) > REMOTE_BYTES:
        raise InvalidInputError(
            f"value: it has {found:,} bytes as JSON and may have {REMOTE_BYTES:,}",
            hint="perdure's client puts a longer text into the store.",
        )
    if not can_fit_result(state, text):
        raise InvalidInputError("value: with it the results of this reply are too long: give a shorter one")


def _build_answer_result(pending: ToolCallState, text: str | None, *, is_error: bool) -> NewResult:
    return NewResult(call_id=pending.call.id, name=pending.call.name, text=text, is_error=is_error)
