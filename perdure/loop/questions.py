"""Calls that wait for an answer: to their tool's question, or in the place of their result."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

from ..errors import InvalidInputError
from ..types.approvals import DecidedApproval
from ..types.forms import misfit
from ..types.messages import clean
from ..types.plain_json import size
from ..types.state import PendingCall, RunState
from ..types.tool_calls import ANSWER_BYTES, ANSWERS_BYTES, Answer, AsCallback, CallAnswer, Cleared, Question
from ..types.wire import OUTPUT_BYTES, REMOTE_BYTES, NewResult
from .apply import collect, end_at_limit
from .external_calls import fits_beside, keep_cleared, keep_returned
from .waits import PendingWait, let_go, pending_waits, remember


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
    _settle(state, now)


def clear(state: RunState, op: int, cleared: Cleared, now: datetime) -> None:
    """The worker has looked at the call of operation ``op``: it may be handed over, or a client is to run it now."""
    for pending in state.calls:
        if pending.op == op and pending.result is None:
            keep_cleared(state, pending, cleared)
    _settle(state, now)


def _settle(state: RunState, now: datetime) -> None:
    note(state, now)
    collect(state)
    end_at_limit(state)


def note(state: RunState, now: datetime) -> None:
    """Note since when calls wait for an answer, and end the wait of those that nobody answered in time.

    Whoever calls this collects the results.
    """
    for wait in pending_waits(state):
        if wait.kind == "approval":
            continue
        wait.begin(now)
        if wait.is_late(now):
            pending, terms = wait.pending, wait.terms
            said = terms.on_expiry if isinstance(terms, AsCallback) else None
            text = said or f"Expired: nobody answered the call of {pending.call.name} in time"
            pending.result = _result(pending, text, is_error=True).model_copy(update={"decided": let_go(pending)})
            remember(state, pending, state="expired", at=now.isoformat())


def take_answer(state: RunState, pending: PendingCall, said: CallAnswer, now: datetime) -> DecidedApproval:
    """Give the call its answer, which is checked. Whoever calls this collects the results."""
    by = clean(said.by) if said.by else None
    error = clean(said.error) if said.error is not None else None
    if pending.question is not None:
        value = None if error is not None else said.value
        pending.answers = [*pending.answers, Answer(value=value, error=error, by=by, at=now.isoformat())]
        pending.question = pending.expects = None
    else:
        text = error if error is not None else None if said.blob else as_text(said.value)
        result = _result(pending, text, is_error=error is not None)
        said_by = {"answered_by": by or "", "decided": let_go(pending)}
        error_type = "ToolError" if error is not None else ""
        keep_returned(pending, result.model_copy(update={"blob": said.blob, **said_by}), error_type)
    return remember(state, pending, state="answered", at=now.isoformat(), by=by, comment=error, hash=answer_hash(said))


def answer_hash(said: CallAnswer) -> str:
    """Names what is said (hexadecimal), whoever says it."""
    what = said.model_dump(mode="json", include={"value", "error", "blob"})
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def as_text(value: Any) -> str:
    """``value`` as the model is told of a callback's result."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_value(state: RunState, wait: PendingWait, said: CallAnswer) -> None:
    """Raise ``InvalidInputError`` for a value that is no answer to what ``wait`` asks."""
    pending, terms = wait.pending, wait.terms
    assert isinstance(terms, Question | AsCallback), "it waits for an answer"
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
    text = as_text(value)
    if (found := size(text)) > REMOTE_BYTES:
        raise InvalidInputError(
            f"value: it has {found:,} bytes as JSON and may have {REMOTE_BYTES:,}",
            hint="perdure's client puts a longer text into the store.",
        )
    if not fits_beside(state, text):
        raise InvalidInputError("value: with it the results of this reply are too long: give a shorter one")


def _result(pending: PendingCall, text: str | None, *, is_error: bool) -> NewResult:
    return NewResult(call_id=pending.call.id, name=pending.call.name, text=text, is_error=is_error)
