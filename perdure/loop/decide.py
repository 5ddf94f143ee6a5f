"""The next step of a run: :func:`decide` returns exactly one kind of step for every state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ..types.interface import OperatorPause
from ..types.limits import LimitUse
from ..types.plain_json import measure_json
from ..types.state import PendingBranch, RunState, ToolCallState
from ..types.subagents import TellCall
from ..types.tool_calls import SubagentCall
from ..types.wire import NewItem, NewMessage, RunEnding
from . import payload_limits
from .children import is_waiting_for_background, list_active_background_runs, list_running_branches
from .compaction import CompactConversation, find_due_compaction
from .external_calls import measure_hook_payload
from .finish import REMINDER_ID, build_force_finish_text, build_response
from .limits import find_exceeded_limit
from .payload_limits import measure_model
from .turns import is_turn_answered
from .waits import find_next_deadline, is_waiting_for_person, list_calls_to_remind

EndStatus = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model with what is new since the head."""

    new: tuple[NewItem, ...]
    taken_from_inbox: int
    """How many messages of the inbox are among ``new``."""
    limit: LimitUse | None = None
    """The limit for which the model has to answer now."""


@dataclass(frozen=True, slots=True)
class RunToolCalls:
    """Run these tool calls, all at once. Calls that do not fit into one batch come next."""

    calls: tuple[ToolCallState, ...]


@dataclass(frozen=True, slots=True)
class RunBranches:
    """Run these branches of the step, all at once; then the step is tried again."""

    branches: tuple[PendingBranch, ...]


@dataclass(frozen=True, slots=True)
class SendReminders:
    """Send reminders that these calls still wait for approval."""

    calls: tuple[ToolCallState, ...]


@dataclass(frozen=True, slots=True)
class RecordClosing:
    """Record the ending of the run or turn, or a pause at a limit, and the items that no model call was given."""

    new: tuple[NewItem, ...]
    taken: int
    """How many messages of the inbox are among ``new``."""
    closing: RunEnding


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a message, for an operator, for an approval or answer, or for a subagent in background."""

    until: Literal["message", "resumed", "approval", "child"]
    deadline: float | None = None
    """When the wait for an approval or answer expires, or a reminder is due: seconds since 1970."""


@dataclass(frozen=True, slots=True)
class StopChildren:
    """Stop the subagents in background, which do not outlive their parent, and wait until they have ended."""


@dataclass(frozen=True, slots=True)
class ReportToParent:
    """Report the end of a background run to its parent."""

    status: EndStatus


@dataclass(frozen=True, slots=True)
class EndRun:
    """End the run with ``status``."""

    status: EndStatus


NextStep = (
    CallModel
    | CompactConversation
    | RunToolCalls
    | RunBranches
    | SendReminders
    | RecordClosing
    | Wait
    | StopChildren
    | ReportToParent
    | EndRun
)


def decide(state: RunState) -> NextStep:
    """Return the next step of ``state``, which is not changed."""
    turn = state.turn
    if state.pause is not None and state.pause.fault:  # also of an ending, which would fail again at once
        return Wait("resumed")
    if state.cancelled:
        return _close_unless_recorded(state, "cancelled")
    if turn is not None and turn.failure is not None:
        return _close_unless_recorded(state, "failed")
    if state.pause is not None:
        return Wait("resumed")
    if (step := _decide_requested_pause(state)) is not None:
        return step
    ready = tuple(
        call
        for call in state.calls
        if call.result is None and not is_waiting_for_person(call) and not is_waiting_for_background(call)
    )
    if calls := tuple(call for call in ready if not call.held):
        return RunToolCalls(_select_call_batch(calls, state))
    if calls_to_remind := list_calls_to_remind(state):
        return SendReminders(calls_to_remind)
    if held := tuple(call for call in ready if call.held):
        limit = find_exceeded_limit(state)
        return RunToolCalls(_select_call_batch(held, state)) if limit is None else _decide_limit_pause(state, limit)
    if branches := list_running_branches(state):
        return RunBranches(branches)
    if any(map(is_waiting_for_person, state.calls)):
        return Wait("approval", find_next_deadline(state))
    if any(map(is_waiting_for_background, state.calls)):
        return Wait("child")
    if turn is None or is_turn_answered(state):
        return _decide_between_turns(state)
    return _decide_model_call(state)


def is_turn_in_progress(state: RunState) -> bool:
    """Whether a turn of the run is at work, or waits for something. Not between two turns, nor while a message waits
    in a paused run and no model has replied to it; and not while the run waits for an engine without the fault that it
    met."""
    if state.pause is not None and state.pause.fault:
        return False
    turn = state.turn
    is_idle = turn is None or (not state.calls and (is_turn_answered(state) or turn.iteration == 0))
    return not (is_idle and isinstance(decide(state), Wait))


def _decide_requested_pause(state: RunState) -> NextStep | None:
    """Return the step of a pause that a client has asked for, or of its end; None without one. Nothing is in flight.

    A turn that has its answer is ended all the same: no work is left that could wait.
    """
    pause = state.requested_pause
    if pause is None:
        return None
    if pause.resumed is not None:
        return _build_pause_record(state, "waiting", pause.resumed) if pause.recorded else None
    if not state.calls and not list_running_branches(state) and (state.turn is None or is_turn_answered(state)):
        step = _decide_between_turns(state)
        if step != Wait("message"):
            return step
    return Wait("resumed") if pause.recorded else _build_pause_record(state, "paused", pause.asked)


def _build_pause_record(state: RunState, status: Literal["paused", "waiting"], pause: OperatorPause) -> RecordClosing:
    """Record that the run is paused, with the results that are in, or that it goes on."""
    new = tuple(state.unsent[: _count_fitting_items(state.unsent)]) if status == "paused" else ()
    response = build_response(state).model_dump(mode="json", exclude_none=True)
    turn: Literal["completed"] | None = "completed" if is_turn_answered(state) else None  # as it was recorded before
    return RecordClosing(new, 0, RunEnding(status=status, turn=turn, response=response, pause=pause))


def select_joining_calls(state: RunState, running_ops: Collection[int]) -> tuple[ToolCallState, ...]:
    """Select the calls that may begin while others run: those since approved or answered, or whose remote result is in.

    ``running_ops``: operation numbers of the calls in flight. Calls that did not fit into their batch wait for its end.
    """
    turn = state.turn
    if state.cancelled or state.interrupt or state.pause or turn is None or turn.failure or state.is_pause_requested:
        return ()
    running = tuple(call for call in state.calls if call.op in running_ops)
    joining = tuple(
        call
        for call in state.calls
        if call.result is None
        and (call.approval is not None or call.answers or call.external_result is not None)
        and not (call.held or is_waiting_for_person(call) or is_waiting_for_background(call) or call.op in running_ops)
    )
    return _select_call_batch((*running, *joining), state)[len(running) :] if joining else ()


def _decide_between_turns(state: RunState) -> NextStep:
    if state.turn is None:
        return _report_or_end(state, "completed") if state.closed else Wait("message")
    # The model activity recorded its answer. A turn that ended at a limit or an interrupt is still to be recorded.
    is_unrecorded = state.turn.answer is not None and state.turn.answer.finish_reason in ("limit", "interrupted")
    if state.mode == "run" or state.closed:
        # For a session, the activity recorded that it waits. Usage of a subagent that has ended since is not recorded.
        uncollected = any(not row.collected for row in state.background_runs)
        if state.unsent or state.revoked or is_unrecorded or uncollected or state.mode == "session":
            return _close_unless_recorded(state, "completed")
        return _report_or_end(state, "completed")
    if state.unsent or (is_unrecorded and not state.recorded):
        return _build_closing_step(state, "waiting")
    return Wait("message")


def _decide_model_call(state: RunState) -> NextStep:
    has_messages = any(isinstance(item, NewMessage) for item in state.unsent)
    if has_messages and _count_fitting_items(state.unsent) < len(state.unsent):
        return _build_closing_step(state, "waiting")  # a stopped turn left more messages than one call is given
    limit = find_exceeded_limit(state)
    if limit is not None and state.limits.on_limit == "pause":
        return _decide_limit_pause(state, limit)
    if (shorter := find_due_compaction(state)) is not None:
        return shorter
    taken = _count_fitting_messages(state) if state.branching is None else state.branching.taken
    new = (*state.unsent, *state.inbox[:taken])
    if limit is None:
        return CallModel(new, taken)
    # "error" and "return" end the turn in end_turn_at_limit and end_turn_at_budget (apply.py, lifecycle.py). What still
    # comes here under them is a message that joined an ended turn: it gets an answer, and no more tools.
    reminder = NewMessage(content=build_force_finish_text(state.limits.protocol, limit), id=REMINDER_ID)
    return CallModel((*new, reminder), taken, limit)


def _decide_limit_pause(state: RunState, limit: LimitUse) -> NextStep:
    """Pause until ``limit`` is raised; the carried items are recorded first, so that the operator can see them."""
    is_recorded = state.turn is not None and limit.same(state.turn.reached)
    return Wait("resumed") if is_recorded else _build_closing_step(state, "paused", limit)


def _select_call_batch(waiting: tuple[ToolCallState, ...], state: RunState) -> tuple[ToolCallState, ...]:
    """Select calls from the front of ``waiting`` that one workflow task may schedule: at least one."""
    waiting = waiting[: payload_limits.CALLS_AT_ONCE]
    if len(waiting) == 1:
        return waiting
    each = measure_json(state.context) + measure_json(state.auth_context) + payload_limits.CALL_OVERHEAD_BYTES
    total = subagents = 0
    for index, pending in enumerate(waiting):
        request = pending.call.disposition
        total += each + measure_json(pending.call.arguments) + measure_hook_payload(pending)
        total += sum(measure_json(answer.model_dump()) for answer in pending.answers)
        if isinstance(request, SubagentCall | TellCall):
            total += measure_json(request.message)
            subagents += isinstance(request, SubagentCall)
        if index and (total > payload_limits.CALL_INPUTS_BYTES or subagents > payload_limits.SUBAGENTS_AT_ONCE):
            return waiting[:index]
    return waiting


def _count_fitting_messages(state: RunState) -> int:
    """Count the messages from the front of the inbox that one step is given after the carried items."""
    return _count_fitting_items(state.inbox, state.unsent) if state.inbox else 0


def _count_fitting_items(items: Sequence[NewItem], before: Sequence[NewItem] = ()) -> int:
    """Count the items from the front of ``items`` that one step is given after those of ``before``.

    At least one, so that steps that bring more results each time cannot keep a long message out; unless it would not
    fit at all.
    """
    total = sum(map(measure_model, before))
    for index, item in enumerate(items):
        total += measure_model(item)
        most = payload_limits.STEP_MESSAGES_BYTES + (0 if index else payload_limits.MESSAGE_BYTES)
        if total > most and (index or before):
            return index
    return len(items)


def _close_unless_recorded(state: RunState, status: EndStatus) -> NextStep:
    if list_active_background_runs(state):  # the ending records what they have used, too
        return StopChildren()
    if state.recorded and not state.inbox and not state.unsent and not state.revoked:
        return _report_or_end(state, status)
    return _build_closing_step(state, status)


def _report_or_end(state: RunState, status: EndStatus) -> ReportToParent | EndRun:
    """End the run; a background run reports to its parent first, and again if it went on meanwhile."""
    has_waiting_parent = state.parent is not None and state.parent.background
    return ReportToParent(status) if has_waiting_parent and state.reported != state.op else EndRun(status)


def _build_closing_step(
    state: RunState,
    status: Literal["completed", "failed", "cancelled", "waiting", "paused"],
    limit: LimitUse | None = None,
) -> RecordClosing:
    carried = _count_fitting_items(state.unsent)
    taken = _count_fitting_messages(state) if carried == len(state.unsent) and status != "paused" else 0
    failure = state.turn.failure if state.turn else None
    answered = is_turn_answered(state) and failure is None
    pause = state.requested_pause if status == "waiting" and state.is_pause_requested else None
    closing = RunEnding(
        status=status,
        turn="completed" if answered and status not in ("completed", "paused") else None,
        error_type=failure.type if failure else None,
        error=failure.message if failure else None,
        response=build_response(state).model_dump(mode="json", exclude_none=True),
        limit=limit or _find_ending_limit(state),
        stays_paused=pause.asked if pause is not None and pause.recorded else None,
    )
    return RecordClosing((*state.unsent[:carried], *state.inbox[:taken]), taken, closing)


def _find_ending_limit(state: RunState) -> LimitUse | None:
    """Return the limit that the turn ended at; None if it ended otherwise."""
    turn = state.turn
    if turn is None or turn.reached is None:
        return None
    at_limit = turn.answer is not None and turn.answer.finish_reason == "limit"
    failed = turn.failure is not None and turn.failure.type in ("MaxIterationsError", "BudgetExceededError")
    return turn.reached if at_limit or failed else None
