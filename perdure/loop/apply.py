"""What the state is after something happened. Each function changes the state in place."""

from __future__ import annotations

from ..types.state import Answer, Failure, PendingCall, RunState, Turn
from ..types.subagents import AsCollect, AsTell
from ..types.tool_calls import Answered, AsActivity, AsCallback, AsRemote, AsSubagent, Call, Inline, Refused
from ..types.wire import Finish, ModelOutput, New, NewMessage, NewResult
from .children import drop_branches, open_branches
from .compaction import after_reply
from .decide import CallModel, Close
from .external_calls import keep_returned
from .finish import REMINDER_ID, reminder
from .limits import admit, failure, largest, most_iterations, uses
from .turns import keep, leave_unanswered


def apply_model(state: RunState, step: CallModel, output: ModelOutput) -> None:
    """The model answered ``step`` with ``output``; or the step waits for branches, and has not happened yet."""
    turn = state.turn
    assert turn is not None, "a model call without a turn"
    if output.branches:
        open_branches(state, step.taken, output)
        return
    drop_branches(state)
    _count(state, turn, output)
    _take(state, step.taken)
    turn.unanswered = []
    state.head, state.store_id, state.limits = output.head, output.store_id, output.limits
    state.resume = False
    if output.overrides is not None:
        keep(state, output.overrides)
    state.pinned = output.pinned or state.pinned
    if output.indexed is not None:
        state.indexed, state.noted = list(output.indexed), output.noted
    after_reply(state, output)
    if step.purpose == "force_finish":
        turn.forced, turn.reached = True, step.limit
        _forced(state, turn, output)
        return
    turn.answer = None
    first_op = state.op - len(output.calls)
    state.calls = [
        PendingCall(call=call, op=first_op + i, result=_known(call))
        for i, call in enumerate(output.calls)
        if not isinstance(call.disposition, Answered)
    ]
    state.tool_calls += sum(isinstance(call.disposition, Inline) for call in output.calls)
    admit(state)
    if output.failed is not None:
        turn.failure = Failure(type=output.failed.type, message=output.failed.message)
    elif output.finish is not None:
        _answer(turn, output.finish, output)
    elif not output.calls:
        state.carry = [_reminder(output)]
    turn.rejected = turn.rejected + 1 if output.rejected else turn.rejected
    collect(state)
    for call in output.calls:
        if isinstance(call.disposition, Inline) and call.disposition.aborted is not None:
            abort(state, call.disposition.aborted)
    _limit(state, turn, output)


def abort(state: RunState, text: str) -> None:
    """A tool, or a hook of it, ended the run (``raise Abort``)."""
    fail_after_calls(state, "AbortError", text.removeprefix("AbortError: "))


def fail_after_calls(state: RunState, type: str, message: str) -> None:
    """The run fails at a tool call. Calls under way are let end; no other one begins."""
    turn = state.turn
    if turn is None or state.cancelled or turn.failure is not None:
        return
    turn.failure = Failure(type=type, message=message)
    turn.at_limit = False
    turn.answer = None
    state.recorded = False
    state.pause = None
    state.interrupt = None


def _forced(state: RunState, turn: Turn, output: ModelOutput) -> None:
    """A reply that had to be the answer; one that will not do is asked for again."""
    calls = [call for call in output.calls if not isinstance(call.disposition, Answered)]
    if output.failed is not None:
        turn.failure = Failure(type=output.failed.type, message=output.failed.message)
    elif output.rejected:
        turn.rejected += 1
        turn.answer = None
        state.carry = [_known(call) or _not_run(call) for call in calls]
        state.carry += [] if output.calls else [_reminder(output)]
        return
    else:
        _answer(turn, output.finish or Finish(content=output.text), output, at_limit=True)
    state.carry = [_not_run(call) for call in calls]


def _reminder(output: ModelOutput) -> NewMessage:
    return NewMessage(content=output.reminder or reminder(output.limits.protocol), id=REMINDER_ID)


def _count(state: RunState, turn: Turn, output: ModelOutput) -> None:
    """Every call of the reply gets an operation number right behind the model call's own."""
    state.op += 1 + len(output.calls)
    turn.iteration += 1
    turn.unasked += output.unasked
    state.iterations += 1
    state.usage += output.usage
    if not output.unasked:
        state.largest = largest(state, output.usage.total_tokens, output.cost_usd)
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
        case AsActivity() | AsRemote() | AsSubagent() | AsCollect() | AsTell() | AsCallback() | Answered():
            return None


def _not_run(call: Call) -> New:
    text = "not run: the task had to be finished"
    return NewResult(call_id=call.id, name=call.name, text=text, is_error=True)


def _answer(turn: Turn, finish: Finish, output: ModelOutput, *, at_limit: bool = False) -> None:
    turn.answer = Answer(
        content=finish.content,
        blob=output.answer_blob,
        finish_reason="limit" if at_limit else output.finish_reason,
        called=finish.called,
        typed=finish.typed,
    )
    turn.rejected = 0


def _limit(state: RunState, turn: Turn, output: ModelOutput) -> None:
    """Mark a turn that has used its iterations without an answer; calls that are asked for still run."""
    limits = output.limits
    if limits.on_limit == "return" and (limits.run or limits.turn):  # a budget may be used up before the next call
        turn.last_text, turn.last_blob = output.text, output.blob
    if turn.answer is not None or turn.failure is not None or limits.on_limit in ("finish", "pause"):
        return
    if turn.iteration < most_iterations(state):
        return
    turn.at_limit = True
    turn.last_text, turn.last_blob = output.text, output.blob
    end_at_limit(state)


def end_at_limit(state: RunState) -> None:
    """End a marked turn once its last calls have their results."""
    turn = state.turn
    if turn is None or not turn.at_limit or state.calls:
        return
    turn.reached = uses(state)[-1]
    if state.limits.on_limit == "error":
        leave_unanswered(state)
        turn.failure = failure(state, turn.reached)
    else:
        turn.answer = Answer(content=turn.last_text, blob=turn.last_blob, finish_reason="limit")
    turn.at_limit = False
    drop_reminder(state)


def drop_reminder(state: RunState) -> None:
    """The turn is over: nobody is left to be reminded."""
    state.carry = [new for new in state.carry if isinstance(new, NewResult) or new.id != REMINDER_ID]


def apply_returned(state: RunState, op: int, result: NewResult, error_type: str = "") -> None:
    """The call of operation ``op`` was run elsewhere, and came to ``result``; where it failed, with ``error_type``."""
    for call in state.calls:
        if call.op == op and call.result is None and call.returned is None:
            keep_returned(call, result, error_type)
    collect(state)
    end_at_limit(state)


def apply_result(state: RunState, op: int, result: New) -> None:
    """The call of operation ``op`` has a result. A second result of the same call is dropped."""
    for call in state.calls:
        if call.op == op and call.result is None:
            call.result, call.returned = result, None  # what it came to elsewhere is not carried on beside it
    collect(state)
    end_at_limit(state)


def collect(state: RunState) -> None:
    """When every call has its result, the next model call gets them in the order of the calls."""
    results = [call.result for call in state.calls]
    if state.calls and all(result is not None for result in results):
        state.carry = [result for result in results if result is not None]
        state.calls = []


def apply_closed(state: RunState, step: Close, head: str | None) -> None:
    """The ending is recorded under ``head``; None when the store could not, and the run ends all the same."""
    state.op += 1
    state.head = head or state.head
    state.resume = state.resume and head is None
    if step.closing.status == "paused":
        _paused(state, step, recorded=head is not None)
        return
    state.carry = state.carry[len(step.new) - step.taken :]
    state.inbox = state.inbox[step.taken :]
    # Closed meanwhile: that the session waits is not its ending.
    state.recorded = step.closing.status != "waiting" or not state.closed


def _paused(state: RunState, step: Close, *, recorded: bool) -> None:
    """The run waits for somebody to raise a limit. What could not be recorded is for the model call that follows."""
    if recorded:
        state.carry = state.carry[len(step.new) :]
    if state.turn is not None and not (recorded and state.carry):
        state.turn.reached = step.closing.limit
