"""Apply the outcomes of steps (model calls, tool calls, recorded endings) to the state, in place."""

from __future__ import annotations

from typing import Any

from ..types.interface import OperatorPause
from ..types.state import RunState, ToolCallState, TurnAnswer, TurnState
from ..types.subagents import CollectCall, TellCall
from ..types.tool_calls import (
    ActivityCall,
    AnsweredCall,
    Call,
    CallbackCall,
    InlineCall,
    RefusedCall,
    RemoteCall,
    SubagentCall,
)
from ..types.wire import FinalAnswer, ModelOutput, NewItem, NewMessage, NewResult, TurnFailure
from .children import apply_labels, drop_branches, open_branches
from .compaction import update_compaction_after_reply
from .decide import CallModel, RecordClosing
from .external_calls import set_external_result
from .finish import REMINDER_ID, build_reminder_text
from .limits import (
    add_usage,
    admit_calls,
    build_limit_failure,
    compute_largest_call,
    get_max_iterations,
    list_limit_uses,
)
from .results import build_error_result, build_result
from .turns import keep_overrides, record_unanswered_messages

NOT_RUN = "not run: the task had to be finished"


def apply_model(state: RunState, step: CallModel, output: ModelOutput) -> None:
    """Apply ``output``, the outcome of the model call ``step``; with branches in it, only open the branches."""
    turn = state.turn
    assert turn is not None, "a model call without a turn"
    if output.branches:
        open_branches(state, step.taken_from_inbox, output)
        return
    drop_branches(state)
    _count_model_call(state, turn, output)
    state.unsent = []
    state.inbox = state.inbox[step.taken_from_inbox :]
    state.recorded = False
    turn.unanswered = []
    state.head, state.store_id, state.limits = output.head, output.store_id, output.limits
    state.resume = False
    apply_labels(state, output)
    if output.overrides is not None:
        keep_overrides(state, output.overrides)
    state.pinned = output.pinned or state.pinned
    if output.search_attributes is not None:
        state.search_attributes, state.memo_is_written = list(output.search_attributes), output.memo_is_written
    update_compaction_after_reply(state, output)
    if step.limit is not None:
        turn.forced, turn.reached = True, step.limit
        _apply_forced_reply(state, turn, output)
        return
    turn.answer = None
    first_op = state.op - len(output.calls)
    state.calls = [
        ToolCallState(call=call, op=first_op + i, result=_build_immediate_result(call))
        for i, call in enumerate(output.calls)
        if not isinstance(call.disposition, AnsweredCall)
    ]
    state.tool_calls += sum(isinstance(call.disposition, InlineCall) for call in output.calls)
    admit_calls(state)
    if output.failed is not None:
        turn.failure = output.failed
    elif output.finish is not None:
        _set_turn_answer(turn, output.finish, output)
    elif not output.calls:
        state.unsent = [_build_reminder_message(output)]
    turn.rejected = turn.rejected + 1 if output.rejected else turn.rejected
    turn.cut = turn.cut + 1 if output.cut else 0
    collect_results(state)
    for call in output.calls:
        if isinstance(call.disposition, InlineCall) and call.disposition.aborted is not None:
            apply_abort(state, call.disposition.aborted)
    _mark_iteration_limit(state, turn, output)


def apply_abort(state: RunState, text: str) -> None:
    """Fail the run: a tool, or one of its hooks, raised ``Abort``."""
    fail_run_after_calls(state, "AbortError", text.removeprefix("AbortError: "))


def fail_run_after_calls(state: RunState, type: str, message: str) -> None:
    """Fail the run at a tool call. Calls in flight run to their end; no further call begins."""
    turn = state.turn
    if turn is None or state.cancelled or turn.failure is not None:
        return
    turn.failure = TurnFailure(type=type, message=message)
    turn.at_limit = False
    turn.answer = None
    state.recorded = False
    state.pause = None
    state.interrupt = None


def _apply_forced_reply(state: RunState, turn: TurnState, output: ModelOutput) -> None:
    """Apply a reply that had to be the answer; after a rejected one the model is called again."""
    calls = [call for call in output.calls if not isinstance(call.disposition, AnsweredCall)]
    if output.failed is not None:
        turn.failure = output.failed
    elif output.rejected:
        turn.rejected += 1
        turn.answer = None
        state.unsent = [_build_immediate_result(call) or build_error_result(call, NOT_RUN) for call in calls]
        state.unsent += [] if output.calls else [_build_reminder_message(output)]
        return
    else:
        _set_turn_answer(turn, output.finish or FinalAnswer(content=output.text), output, at_limit=True)
    state.unsent = [build_error_result(call, NOT_RUN) for call in calls]


def _build_reminder_message(output: ModelOutput) -> NewMessage:
    return NewMessage(content=output.reminder or build_reminder_text(output.limits.protocol), id=REMINDER_ID)


def _count_model_call(state: RunState, turn: TurnState, output: ModelOutput) -> None:
    """Count the model call. Each call of the reply gets an operation number right after the model call's own."""
    state.op += 1 + len(output.calls)
    turn.iteration += 1
    turn.replies_without_model += output.is_synthetic
    state.iterations += 1
    add_usage(state, output.usage, output.cost_usd)
    if not output.is_synthetic:
        state.largest = compute_largest_call(state, output.usage.total_tokens, output.cost_usd)


def _build_immediate_result(call: Call) -> NewItem | None:
    """Build the result of a refused or inline call, which needs no activity; None for other calls."""
    match call.disposition:
        case RefusedCall(text=text):
            return build_error_result(call, text)
        case InlineCall(key=key, is_error=is_error):
            return build_result(call, key=key, is_error=is_error)
        case (
            ActivityCall()
            | RemoteCall()
            | SubagentCall()
            | CollectCall()
            | TellCall()
            | CallbackCall()
            | AnsweredCall()
        ):
            return None


def _set_turn_answer(turn: TurnState, finish: FinalAnswer, output: ModelOutput, *, at_limit: bool = False) -> None:
    turn.answer = TurnAnswer(
        content=finish.content,
        blob=output.answer_blob,
        finish_reason="limit" if at_limit else output.finish_reason,
        called=finish.called,
        typed=finish.typed,
    )
    turn.rejected = 0


def _mark_iteration_limit(state: RunState, turn: TurnState, output: ModelOutput) -> None:
    """Mark a turn that has used its iterations without an answer; the calls of its last reply still run."""
    limits = output.limits
    if limits.on_limit == "return" and (limits.run or limits.turn):  # a budget may be used up before the next call
        turn.last_text, turn.last_blob = output.text, output.blob
    if turn.answer is not None or turn.failure is not None or limits.on_limit in ("finish", "pause"):
        return
    if turn.iteration < get_max_iterations(state):
        return
    turn.at_limit = True
    turn.last_text, turn.last_blob = output.text, output.blob
    end_turn_at_limit(state)


def end_turn_at_limit(state: RunState) -> None:
    """End a turn marked as at its iteration limit once its last calls have their results."""
    turn = state.turn
    if turn is None or not turn.at_limit or state.calls:
        return
    turn.reached = list_limit_uses(state)[-1]
    if state.limits.on_limit == "error":
        record_unanswered_messages(state)
        turn.failure = build_limit_failure(state, turn.reached)
    else:
        turn.answer = TurnAnswer(content=turn.last_text, blob=turn.last_blob, finish_reason="limit")
    turn.at_limit = False
    drop_reminder(state)


def drop_reminder(state: RunState) -> None:
    """Drop the reminder to the model from the carried items: the turn is over."""
    state.unsent = [new for new in state.unsent if isinstance(new, NewResult) or new.id != REMINDER_ID]


def apply_external_result(state: RunState, op: int, result: NewResult, error_type: str = "") -> None:
    """Apply the result of the external call of operation ``op``; ``error_type`` names the error of a failed one."""
    for pending in state.calls:
        if pending.op == op and pending.result is None and pending.external_result is None:
            set_external_result(pending, result, error_type)
    collect_results(state)


def apply_result(state: RunState, op: int, result: NewItem) -> None:
    """Set the result of the call of operation ``op``. A second result of the same call is dropped."""
    for pending in state.calls:
        if pending.op == op and pending.result is None:
            pending.result, pending.external_result = result, None  # the result that hooks were still to see is dropped
    collect_results(state)


def finish_call(state: RunState, pending: ToolCallState, text: str | None = None, **fields: Any) -> None:
    """Set the result of the call to ``text``. ``fields``: the other fields of ``NewResult``."""
    apply_result(state, pending.op, build_result(pending.call, text, **fields))


def fail_call(state: RunState, pending: ToolCallState, text: str) -> None:
    """Set the result of the call to the error ``text``."""
    finish_call(state, pending, text, is_error=True)


def carry_results(state: RunState) -> None:
    """Once every call has its result, carry the results to the next model call, in the order of the calls."""
    results = [pending.result for pending in state.calls if pending.result is not None]
    if state.calls and len(results) == len(state.calls):
        state.unsent, state.calls = results, []


def collect_results(state: RunState) -> None:
    """Carry the results, and end a turn that waited for them at its limit."""
    carry_results(state)
    end_turn_at_limit(state)


def apply_closing(state: RunState, step: RecordClosing, head: str | None) -> None:
    """Apply a recorded ending. ``head`` is its head; None if the store could not record it: the run ends anyway."""
    state.op += 1
    state.head = head or state.head
    state.resume = state.resume and head is None
    if step.closing.pause is not None:
        _apply_pause_record(state, step, step.closing.pause, recorded=head is not None)
        return
    if step.closing.status == "paused":
        _apply_limit_pause(state, step, recorded=head is not None)
        return
    state.unsent = state.unsent[len(step.new) - step.taken :]
    state.inbox = state.inbox[step.taken :]
    # If the session was closed meanwhile, the record that it waits is not that of its ending.
    state.recorded = step.closing.status != "waiting" or not state.closed


def _apply_pause_record(state: RunState, step: RecordClosing, pause: OperatorPause, *, recorded: bool) -> None:
    """Apply the record of a pause or of its end. Another client may have resumed or paused the run meanwhile."""
    present = state.requested_pause
    if recorded:
        state.unsent = state.unsent[len(step.new) :]
    if present is None:
        return
    if step.closing.status == "paused":
        present.recorded = present.recorded or present.asked == pause
    elif present.resumed == pause:
        state.requested_pause = None


def _apply_limit_pause(state: RunState, step: RecordClosing, *, recorded: bool) -> None:
    """Apply the pause at a limit. Items that could not be recorded are left to the next model call."""
    if recorded:
        state.unsent = state.unsent[len(step.new) :]
    if state.turn is not None and not (recorded and state.unsent):
        state.turn.reached = step.closing.limit
