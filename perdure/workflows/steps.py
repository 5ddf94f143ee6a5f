"""The steps of a run as activities: build their inputs, and apply their outcomes to the state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from ..loop.apply import apply_abort, apply_closing, apply_model, apply_result, fail_run_after_calls
from ..loop.approvals import drop_recorded_revocations, update_approval_waits
from ..loop.children import list_branch_outcomes
from ..loop.compaction import CompactConversation, apply_compaction, describe_shortening, try_shorten_conversation
from ..loop.decide import CallModel, RecordClosing, select_joining_calls
from ..loop.external_calls import get_final_arguments
from ..loop.finish import compute_turn_usage
from ..loop.lifecycle import PAUSING_ERRORS, RUN_FAILING_ERRORS, fail_run, pause_run
from ..loop.limits import count_calls_left, has_inherited_cost_limit
from ..loop.messages import take_message_auth
from ..loop.questions import apply_question
from ..loop.turns import get_effective_overrides
from ..loop.waits import (
    ReminderBatch,
    find_next_expiry,
    find_next_reminder_check,
    list_calls_to_remind,
    take_due_reminders,
)
from ..types.approvals import RevokedApproval
from ..types.state import RunState, ToolCallState
from ..types.subagents import TellCall
from ..types.tool_calls import ActivityCall, CallbackCall, RemoteCall, SubagentCall
from ..types.wire import MODEL_ACTIVITY, TOOL_ACTIVITY_PREFIX, ModelInput, ModelOutput, NewResult, ToolInput, ToolOutput
from .activity_options import (
    build_call_facts,
    close_options,
    dump_activity_input,
    is_cancelled_activity,
    model_options,
    read_activity_failure,
    tool_options,
)
from .child_workflows import BackgroundChildren, run_subagent
from .external_calls import run_callback_hooks, run_remote_call
from .host import get_host, get_logger
from .step_tasks import StepTasks

CONTEXT_LENGTH_ERROR = "ContextLengthError"


async def call_model(state: RunState, step: CallModel, work: StepTasks) -> None:
    """Run the model call ``step``, and apply its outcome."""
    task = work.guard.change_or_pause(state, "the input of a model call", lambda: _build_model_input(state, step))
    if task is None:
        return
    revoked, resend = tuple(state.revoked), state.resend
    try:
        raw = await get_host().execute_activity(MODEL_ACTIVITY, task, **model_options())
    except ActivityError as error:
        if is_cancelled_activity(error) and work.is_stopping():
            return  # the cancellation or interrupt is applied before the next decision
        failure = error
        work.guard.change_or_pause(state, "the failure of a model call", lambda: _apply_model_failure(state, failure))
    else:
        work.guard.change_or_pause(
            state, "the outcome of a model call", lambda: _apply_model_output(state, step, revoked, resend, raw)
        )


def _build_model_input(state: RunState, step: CallModel) -> dict[str, Any]:
    usage, cost_usd = compute_turn_usage(state)
    new = take_message_auth(state, step.new)
    return dump_activity_input(
        ModelInput(
            **build_call_facts(state, state.op, calling_model=True),
            head=state.head,
            new=new,
            purpose=step.purpose,
            tighter=(state.compaction.tighter or None) if state.compaction else None,
            behind=state.compaction.behind if state.compaction else None,
            overrides=get_effective_overrides(state),
            pinned=state.pinned,
            mode=state.mode if state.mode != "run" else None,
            resume=state.resume or None,
            resend=state.resend,
            used=usage,
            cost_usd=cost_usd,
            rejected=state.turn.rejected or None if state.turn else None,
            limit=step.limit,
            calls_left=count_calls_left(state),
            branches=list_branch_outcomes(state),
            cost_limited=has_inherited_cost_limit(state),
            revoked=tuple(state.revoked),
        )
    )


def _apply_model_failure(state: RunState, error: ActivityError) -> None:
    kind, message = read_activity_failure(error)
    if kind in PAUSING_ERRORS:
        pause_run(state, f"{kind}: {message}", get_host().now().isoformat())
    elif kind != CONTEXT_LENGTH_ERROR:
        fail_run(state, kind, message)
    elif not try_shorten_conversation(state, _read_compaction_ways(error)):
        fail_run(state, kind, message + describe_shortening(state))


def _apply_model_output(
    state: RunState, step: CallModel, revoked: Sequence[RevokedApproval], resend: bool, raw: Any
) -> None:
    drop_recorded_revocations(state, revoked)
    output = ModelOutput.model_validate(raw)
    if resend and not output.branches:  # a resume that came during the call is for the next one
        state.resend = False
    apply_model(state, step, output)


async def compact_conversation(state: RunState, step: CompactConversation, work: StepTasks) -> None:
    """Have the conversation up to the head rewritten, shorter. Items since the head wait for the next model call."""
    task = work.guard.change_or_pause(
        state,
        "the input of a compaction",
        lambda: dump_activity_input(
            ModelInput(
                **build_call_facts(state, state.op),
                head=state.head,
                purpose="compact",
                tighter=step.tighter or None,
                overrides=get_effective_overrides(state),
                pinned=state.pinned,
                mode=state.mode if state.mode != "run" else None,
                resume=state.resume or None,
                cost_limited=has_inherited_cost_limit(state),
            )
        ),
    )
    if task is None:
        return
    try:
        raw = await get_host().execute_activity(MODEL_ACTIVITY, task, **model_options())
    except ActivityError as error:
        if is_cancelled_activity(error) and work.is_stopping():
            return  # it stays due before the next model call
        kind, message = read_activity_failure(error)
        if kind in PAUSING_ERRORS:
            pause_run(state, f"{kind}: {message}", get_host().now().isoformat())
        else:
            fail_run(state, kind, f"the conversation could not be summed up: {message}")
    else:
        work.guard.change_or_pause(
            state, "the outcome of a compaction", lambda: apply_compaction(state, ModelOutput.model_validate(raw))
        )


async def run_tool_call(state: RunState, pending: ToolCallState, work: StepTasks, children: BackgroundChildren) -> None:
    """Run one tool call by its disposition, and apply its outcome."""
    call, how = pending.call, pending.call.disposition
    match how:
        case SubagentCall(background=None):
            await run_subagent(state, pending, work)
        case SubagentCall():
            await children.start_child(pending, how)
        case TellCall():
            await children.send_message(pending, how)
        case RemoteCall():
            await run_remote_call(state, pending, how, work)
        case CallbackCall():
            await run_callback_hooks(state, pending, work)
        case ActivityCall():
            await _run_tool_activity(state, pending, how, work)
        case _:
            text = f"this engine cannot run a call as {how.kind}"
            refused = NewResult(call_id=call.id, name=call.name, text=text, is_error=True)
            apply_result(state, pending.op, refused)


async def _run_tool_activity(state: RunState, pending: ToolCallState, how: ActivityCall, work: StepTasks) -> None:
    call = pending.call
    task = work.guard.change_or_pause(
        state,
        "the input of a tool call",
        lambda: dump_activity_input(
            ToolInput(
                **build_call_facts(state, pending.op),
                call_id=call.id,
                name=call.name,
                arguments=get_final_arguments(pending),
                head=state.head,
                definition=call.definition,
                toolset=how.toolset,
                idempotent=how.idempotent,
                retries=how.retries,
                approval=pending.decided,
                answers=tuple(pending.answers),
            )
        ),
    )
    if task is None:
        return
    try:
        raw = await get_host().execute_activity(TOOL_ACTIVITY_PREFIX + call.name, task, **tool_options(how))
    except ActivityError as error:
        if is_cancelled_exception(error) and work.is_stopping():
            return  # closed by the loop
        kind, message = read_activity_failure(error)
        if kind in PAUSING_ERRORS:
            pause_run(state, f"{kind}: {message}", get_host().now().isoformat())
            return  # the call is run when the run is resumed
        if kind in RUN_FAILING_ERRORS and how.task_queue is None:  # workers of another queue may not have the agent
            fail_run_after_calls(state, kind, message)
        result = NewResult(call_id=call.id, name=call.name, text=f"{kind}: {message}", is_error=True)
        work.guard.change_or_pause(state, "the failure of a tool call", lambda: apply_result(state, pending.op, result))
    else:
        work.guard.change_or_pause(state, "the outcome of a tool call", lambda: _apply_tool_output(state, pending, raw))


def _apply_tool_output(state: RunState, pending: ToolCallState, raw: Any) -> None:
    output = ToolOutput.model_validate(raw)
    if output.question is not None:
        apply_question(state, pending.op, output.question, get_host().now())
        return  # the call is run again when the question is answered
    if output.status == "aborted":  # before the result, which may be what ends the turn at a limit
        apply_abort(state, output.content or "")
    call = pending.call
    result = NewResult(call_id=call.id, name=call.name, key=output.key, is_error=output.is_error)
    apply_result(state, pending.op, result)


def send_reminders(state: RunState, work: StepTasks) -> Coroutine[Any, Any, None]:
    """Take the reminders that are due, and return the coroutine that sends them."""
    return _run_reminder_activity(
        state, work.guard.change_or_pause(state, "a reminder", lambda: _build_reminder_input(state)), work
    )


def _build_reminder_input(state: RunState) -> tuple[ReminderBatch, dict[str, Any]]:
    due = take_due_reminders(state, get_host().now())
    task = ModelInput(
        **build_call_facts(state, due.op),
        head=state.head,
        purpose="remind",
        reminders=due.reminders,
        overrides=get_effective_overrides(state),
    )
    return due, dump_activity_input(task)


async def _run_reminder_activity(
    state: RunState, reminder: tuple[ReminderBatch, dict[str, Any]] | None, work: StepTasks
) -> None:
    """Send reminders; cancelled once none of their calls waits. A failure is only logged, except an ``AbortError``."""
    if reminder is None:
        return
    told, task = reminder
    telling = asyncio.create_task(get_host().execute_activity(MODEL_ACTIVITY, task, **model_options()))
    with suppress(asyncio.CancelledError):
        await get_host().wait_condition(lambda: telling.done() or not told.has_waiting_call())
    if not telling.done():
        telling.cancel()
    await get_host().wait([telling])
    if telling.cancelled():  # before it began
        return
    error = telling.exception()
    if not isinstance(error, ActivityError):
        telling.result()
    elif not is_cancelled_activity(error):
        kind, message = read_activity_failure(error)
        if kind != "AbortError":
            get_logger().warning("nobody was reminded of calls of run %s: %s: %s", state.context_id, kind, message)
        elif not work.is_stopping():
            apply_abort(state, message)


async def record_ending(state: RunState, step: RecordClosing, work: StepTasks) -> None:
    """Record how the run, or a turn of it, ended."""
    task = work.guard.change_or_pause(state, "the input of an ending", lambda: _build_close_input(state, step))
    if task is None:
        return
    revoked = tuple(state.revoked)
    try:
        raw = await get_host().execute_activity(MODEL_ACTIVITY, task, **close_options(cancelled=state.cancelled))
    except ActivityError as error:
        if is_cancelled_activity(error) and not state.cancelled and work.is_cancelling():
            return  # the run was cancelled meanwhile: its ending is recorded instead
        get_logger().error("the ending could not be recorded: %s", read_activity_failure(error)[1])
        raw = {}
    work.guard.change_or_pause(state, "the record of an ending", lambda: _apply_close_output(state, step, revoked, raw))


def _build_close_input(state: RunState, step: RecordClosing) -> dict[str, Any]:
    new = take_message_auth(state, step.new)
    return dump_activity_input(
        ModelInput(
            **build_call_facts(state, state.op),
            head=state.head,
            new=new,
            purpose="close",
            closing=step.closing,
            mode=state.mode if state.mode != "run" else None,
            resume=state.resume or None,
            revoked=tuple(state.revoked),
        )
    )


def _apply_close_output(state: RunState, step: RecordClosing, revoked: Sequence[RevokedApproval], raw: Any) -> None:
    # Also if the ending could not be recorded: it is not tried again.
    drop_recorded_revocations(state, revoked)
    apply_closing(state, step, ModelOutput.model_validate(raw).head)


def _read_compaction_ways(error: BaseException) -> list[str]:
    """Read the ways to shorten a too long conversation from the activity's error (``RetryDecision``)."""
    cause = error.__cause__
    details = cause.details if isinstance(cause, ApplicationError) else ()
    said = details[0] if details else None
    return [str(way) for way in said.get("compaction", ())] if isinstance(said, dict) else []


# ---
# Concurrent tool calls of a reply, with calls that are approved or answered meanwhile, and reminders of waiting calls.


async def run_tool_calls(
    state: RunState, calls: Iterable[ToolCallState], work: StepTasks, children: BackgroundChildren
) -> None:
    """Run ``calls`` to their end, and the calls that are approved or answered meanwhile."""
    beside = _ToolCallSource(state, work, children)
    await work.run_all(beside.build_coroutines(calls), beside)


async def send_reminders_while_waiting(state: RunState, work: StepTasks, children: BackgroundChildren) -> None:
    """Send the due reminders, and run the calls that are approved or answered meanwhile."""
    await work.run_all([send_reminders(state, work)], _ToolCallSource(state, work, children))


class _ToolCallSource:
    """A :class:`~.step_tasks.TaskSource` of tool calls that may begin while others run, and of reminders."""

    def __init__(self, state: RunState, work: StepTasks, children: BackgroundChildren) -> None:
        self._state = state
        self._work = work
        self._children = children
        self._running_ops: set[int] = set()
        """Operation numbers of the calls in flight."""
        self._next_expiry: float | None = None
        """When the next wait for a person expires, as of the last check: seconds since 1970."""

    def build_coroutines(self, calls: Iterable[ToolCallState]) -> list[Coroutine[Any, Any, None]]:
        """Build the coroutines that run ``calls``, which count as in flight from now on."""
        return [self._build_coroutine(pending) for pending in calls]

    def has_more(self) -> bool:
        """See base."""
        joining = select_joining_calls(self._state, self._running_ops)
        return bool(list_calls_to_remind(self._state) or joining) or find_next_expiry(self._state) != self._next_expiry

    def seconds_to_next_check(self) -> float | None:
        """See base: until a reminder is due, or a wait for a person expires."""
        self._next_expiry = find_next_expiry(self._state)
        at = self._compute_next_deadline()
        return None if at is None else max(at - get_host().now().timestamp(), 0.001)

    def _compute_next_deadline(self) -> float | None:
        ends = [find_next_reminder_check(self._state), self._next_expiry]
        return min((at for at in ends if at is not None), default=None)

    def start_more(self) -> list[Coroutine[Any, Any, None]]:
        """See base."""
        begun: list[Coroutine[Any, Any, None]] = []
        if self._compute_next_deadline() is not None:
            self._work.guard.change_or_pause(
                self._state, "the wait for a person", lambda: update_approval_waits(self._state, get_host().now())
            )
        if self._state.pause is not None and self._state.pause.fault:
            return begun
        if list_calls_to_remind(self._state):
            begun.append(send_reminders(self._state, self._work))
        return begun + self.build_coroutines(select_joining_calls(self._state, self._running_ops))

    def _build_coroutine(self, pending: ToolCallState) -> Coroutine[Any, Any, None]:
        self._running_ops.add(pending.op)

        async def run() -> None:
            try:
                await run_tool_call(self._state, pending, self._work, self._children)
            finally:
                self._running_ops.discard(pending.op)

        return run()
