"""What the state is after something happened. Each function changes the state in place."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..types.messages import BlobRef, clean
from ..types.state import SEEN_IDS, Answer, Failure, Pause, PendingCall, RunState, Turn
from ..types.wire import (
    AsActivity,
    AsSubagent,
    Call,
    Finish,
    Inline,
    ModelOutput,
    New,
    NewMessage,
    NewResult,
    Refused,
    UserMessage,
)
from .decide import CallModel, Close
from .finish import REMINDER_ID, reminder
from .sizes import ID_BYTES, MESSAGE_BYTES, size

REFUSED_CHARS = 300
"""Of what ``status`` says of a message that was refused."""


def receive(state: RunState, raw: Any) -> bool:
    """Take a message: a string, or ``{"content", "id"}``. False if it was seen before or cannot be taken.

    Why it cannot is kept, shortened, for ``status``: a signal has nobody to raise an error to.
    """
    try:
        message = UserMessage(content=raw) if isinstance(raw, str) else UserMessage.model_validate(raw)
    except ValidationError as error:
        nearest = max(error.errors(include_url=False), key=lambda problem: len(problem["loc"]))
        where = ".".join(str(place) for place in nearest["loc"])
        return _refuse(state, f"{where[:80] or 'message'}: {nearest['msg']}: {str(raw)[:80]}")
    if why := unfit(message) or _elsewhere(state, message):
        return _refuse(state, f"{why}: {str(raw)[:80]}")
    sent = clean(message.id) if message.id else None  # an empty id is none: it would make all such messages one
    if sent is not None:
        if sent in state.seen:
            return False
        state.seen = [*state.seen, sent][-SEEN_IDS:]
    content = clean(message.content) if isinstance(message.content, str) else message.content
    opens = _opens_turn(state)
    state.inbox.append(NewMessage(content=content, id=sent, store_id=message.store_id))
    if opens:
        _open_turn(state)
    return True


def unfit(message: UserMessage) -> str | None:
    """Why Temporal could not carry ``message`` on, if so."""
    if (found := size(message.id)) > ID_BYTES:
        return f"id: it has {found:,} bytes as JSON and may have {ID_BYTES:,}"
    found = size(message.model_dump(mode="json", exclude_none=True))
    if found <= MESSAGE_BYTES:
        return None
    return (
        f"message: it has {found:,} bytes as JSON and may have {MESSAGE_BYTES:,}; "
        "send it with perdure's client, which puts a long one into the store"
    )


def _elsewhere(state: RunState, message: UserMessage) -> str | None:
    """Whether the text of ``message`` is in a store that is not the run's."""
    if not isinstance(message.content, BlobRef) or None in (message.store_id, state.store_id):
        return None
    if message.store_id == state.store_id:
        return None
    return f"message: its text is in store {message.store_id}, and the run is kept in store {state.store_id}"


def _refuse(state: RunState, why: str) -> bool:
    state.refused = [*state.refused, clean(why)[:REFUSED_CHARS]][-10:]
    return False


def _opens_turn(state: RunState) -> bool:
    """Whether the next message opens a turn. It joins earlier messages that still wait for their answer."""
    turn = state.turn
    if turn is None or state.cancelled:
        return turn is None
    return state.mode == "session" and turn.answer is not None and turn.failure is None and not state.inbox


def _open_turn(state: RunState) -> None:
    state.turns += 1
    state.recorded = False
    state.turn = Turn(task_id=f"{state.scope[:8]}-{state.turns}")


def apply_model(state: RunState, step: CallModel, output: ModelOutput) -> None:
    """The model answered ``step`` with ``output``."""
    turn = state.turn
    assert turn is not None, "a model call without a turn"
    _count(state, turn, output)
    _take(state, step.taken)
    state.head, state.store_id, state.limits = output.head, output.store_id, output.limits
    if step.purpose == "force_finish":
        _answer(turn, output.finish or Finish(content=output.text), output, at_limit=True)
        state.carry = [_not_run(call) for call in output.calls]
        return
    turn.answer = None
    first_op = state.op - len(output.calls)
    state.calls = [PendingCall(call=call, op=first_op + i, result=_known(call)) for i, call in enumerate(output.calls)]
    if output.finish is not None:
        _answer(turn, output.finish, output)
    elif not output.calls:
        state.carry = [NewMessage(content=reminder(output.limits.protocol), id=REMINDER_ID)]
    _collect(state)
    _limit(state, turn, output)


def _count(state: RunState, turn: Turn, output: ModelOutput) -> None:
    """Every call of the reply gets an operation number right behind the model call's own."""
    state.op += 1 + len(output.calls)
    turn.iteration += 1
    state.iterations += 1
    state.usage += output.usage
    if output.cost_usd is not None:
        state.cost_usd = (state.cost_usd or 0.0) + output.cost_usd


def _take(state: RunState, taken: int) -> None:
    state.carry = []
    state.inbox = state.inbox[taken:]
    state.recorded = False


def _known(call: Call) -> New | None:
    """The result of a call that needs no activity."""
    match call.disposition:
        case Refused(text=text):
            return NewResult(call_id=call.id, name=call.name, text=text, is_error=True)
        case Inline(key=key, is_error=is_error):
            return NewResult(call_id=call.id, name=call.name, key=key, is_error=is_error)
        case AsActivity() | AsSubagent():
            return None


def _not_run(call: Call) -> New:
    text = "not run: the task had to be finished"
    return NewResult(call_id=call.id, name=call.name, text=text, is_error=True)


def _answer(turn: Turn, finish: Finish, output: ModelOutput, *, at_limit: bool = False) -> None:
    turn.answer = Answer(
        content=finish.content,
        blob=output.blob,
        finish_reason="limit" if at_limit else output.finish_reason,
        called=finish.called,
    )


def _limit(state: RunState, turn: Turn, output: ModelOutput) -> None:
    """Mark a turn that has used its iterations without an answer; calls that are asked for still run."""
    limits = output.limits
    if turn.answer is not None or turn.iteration < limits.max_iterations or limits.on_limit == "finish":
        return
    turn.at_limit = True
    turn.last_text, turn.last_blob = output.text, output.blob
    _end_at_limit(state)


def _end_at_limit(state: RunState) -> None:
    """End a marked turn once its last calls have their results."""
    turn = state.turn
    if turn is None or not turn.at_limit or state.calls:
        return
    if state.limits.on_limit == "error":
        most = state.limits.max_iterations
        turn.failure = Failure(
            type="MaxIterationsError",
            message=f"agent {state.agent} did not finish within {most} iterations",
        )
    else:
        turn.answer = Answer(content=turn.last_text, blob=turn.last_blob, finish_reason="limit")
    turn.at_limit = False
    _drop_reminder(state)


def _drop_reminder(state: RunState) -> None:
    """The turn is over: nobody is left to be reminded."""
    state.carry = [new for new in state.carry if isinstance(new, NewResult)]


def apply_result(state: RunState, op: int, result: New) -> None:
    """The call of operation ``op`` has a result. A second result of the same call is dropped."""
    for call in state.calls:
        if call.op == op and call.result is None:
            call.result = result
    _collect(state)
    _end_at_limit(state)


def _collect(state: RunState) -> None:
    """When every call has its result, the next model call gets them in the order of the calls."""
    results = [call.result for call in state.calls]
    if state.calls and all(result is not None for result in results):
        state.carry = [result for result in results if result is not None]
        state.calls = []


def fail(state: RunState, type: str, message: str) -> None:
    """The run cannot go on: it ends as failed, with its transcript closed."""
    if state.turn is None:
        _open_turn(state)
    assert state.turn is not None
    state.turn.failure = Failure(type=type, message=message)
    _ending(state, "not finished: the run failed")


def cancel(state: RunState) -> None:
    """Somebody cancelled the run: finished results stay, every other call gets one that says so."""
    state.cancelled = True
    _ending(state, "Cancelled: the run was cancelled before this call had finished")


def _ending(state: RunState, text: str) -> None:
    """Record the ending, over an earlier one too. A model call in flight has used up its operation number."""
    state.op += 1
    state.recorded = False
    state.pause = None
    _drop_reminder(state)
    for pending in state.calls:
        if pending.result is None:
            pending.result = NewResult(call_id=pending.call.id, name=pending.call.name, text=text, is_error=True)
    _collect(state)


def pause(state: RunState, reason: str, since: str) -> None:
    """The run waits for an operator."""
    state.pause = Pause(reason=reason, since=since)


def resume(state: RunState) -> None:
    """The operator says that the cause is gone."""
    state.pause = None


def close(state: RunState) -> None:
    """A session ends after its current turn; a run that waits for its first message ends at once."""
    state.closed = True


def apply_closed(state: RunState, step: Close, head: str | None) -> None:
    """The ending is recorded under ``head``; None when the store could not, and the run ends all the same."""
    state.op += 1
    state.head = head or state.head
    state.carry = []
    state.inbox = state.inbox[step.taken :]
    state.recorded = True
