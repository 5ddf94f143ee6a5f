"""The steps of a run as activities: build their inputs, and apply their outcomes to the state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio.exceptions import ActivityError

from ..loop.apply import apply_abort, apply_closing, apply_model, fail_call
from ..loop.approvals import drop_recorded_revocations, update_approval_waits
from ..loop.children import apply_labels, list_branch_outcomes
from ..loop.compaction import CompactConversation, apply_compaction, describe_shortening, try_shorten_conversation
from ..loop.decide import CallModel, RecordClosing, select_joining_calls
from ..loop.external_calls import get_final_arguments
from ..loop.finish import compute_turn_usage
from ..loop.lifecycle import fail_run
from ..loop.limits import count_calls_left, has_inherited_cost_limit
from ..loop.messages import take_message_sender
from ..loop.turns import get_caller_overrides, get_effective_overrides
from ..loop.waits import ReminderBatch, find_next_deadline, find_next_expiry, list_calls_to_remind, take_due_reminders
from ..types.approvals import RevokedApproval
from ..types.schema_version import check_schema_version
from ..types.state import RunState, ToolCallState, UncollectedActivity
from ..types.subagents import TellCall
from ..types.tool_calls import ActivityCall, CallbackCall, RemoteCall, SubagentCall
from ..types.wire import (
    CLOSE_ACTIVITY,
    COMPACT_ACTIVITY,
    ENGINE_ACTIVITY_PREFIX,
    MODEL_ACTIVITY,
    REMIND_ACTIVITY,
    TOOL_ACTIVITY_PREFIX,
    CallFacts,
    CloseInput,
    CloseOutput,
    CompactInput,
    CompactOutput,
    ModelInput,
    ModelOutput,
    RemindInput,
)
from .activity_options import (
    ATTEMPT_TIMEOUT,
    ActivityFailure,
    build_call_facts,
    build_tool_input,
    engine_options,
    is_cancelled_activity,
    may_have_recorded,
    read_activity_failure,
)
from .child_workflows import BackgroundChildren, run_subagent
from .external_calls import apply_tool_failure, apply_tool_output, run_callback_hooks, run_remote_call
from .host import get_host, get_logger
from .step_tasks import StepTasks

CANCELLED_CLOSE_TIMEOUT = timedelta(minutes=5)
"""How long the ending of a cancelled run waits for the store before the run ends unrecorded."""
CONTEXT_LENGTH_ERROR = "ContextLengthError"


def _dump_input(task: CallFacts) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude_none=True)


def _build_conversation_facts(state: RunState, *, calling_model: bool = False) -> dict[str, Any]:
    """Build the fields of ``ConversationFacts``."""
    facts = build_call_facts(state, state.op, calling_model=calling_model)
    return {**facts, "head": state.head, "resume": state.resume or None}


def _build_request_facts(state: RunState, *, calling_model: bool = False) -> dict[str, Any]:
    """Build the fields of ``RequestFacts``."""
    return {
        **_build_conversation_facts(state, calling_model=calling_model),
        "pinned": state.pinned,
        "overrides": get_effective_overrides(state),
        "caller_overrides": get_caller_overrides(state),
        "is_external": state.turn is not None and state.turn.is_external,
        "client_tools": state.turn.client_tools if state.turn else None,
        "cost_limited": has_inherited_cost_limit(state),
    }


async def call_model(state: RunState, step: CallModel, tasks: StepTasks) -> None:
    """Run the model call ``step``, and apply its outcome."""
    revoked, resend = tuple(state.revoked), state.resend
    await tasks.run_activity(
        state,
        "a model call",
        MODEL_ACTIVITY,
        lambda state: _build_model_input(state, step),
        lambda state, raw: _apply_model_output(state, step, revoked, resend, raw),
        _apply_model_failure,
        taken=step.taken_from_inbox,
    )


def _build_model_input(state: RunState, step: CallModel) -> dict[str, Any]:
    new = take_message_sender(state, step.new)  # first: it may change who is acted for, which the input has
    usage, cost_usd = compute_turn_usage(state)
    return _dump_input(
        ModelInput(
            **_build_request_facts(state, calling_model=True),
            new=new,
            window_halvings=(state.compaction.window_halvings or None) if state.compaction else None,
            refused_head=state.compaction.refused_head if state.compaction else None,
            mode=state.mode if state.mode != "run" else None,
            resend=state.resend,
            used=usage,
            cost_usd=cost_usd,
            limit=step.limit,
            calls_left=count_calls_left(state),
            rejected=state.turn.rejected or None if state.turn else None,
            cut=state.turn.cut or None if state.turn else None,
            branches=list_branch_outcomes(state),
            revoked=tuple(state.revoked),
        )
    )


def _apply_model_failure(state: RunState, failure: ActivityFailure) -> None:
    if failure.type != CONTEXT_LENGTH_ERROR:
        fail_run(state, failure.type, failure.message)
        return
    retry = failure.details[0] if failure.details else None  # a ``RetryDecision``
    ways = [str(way) for way in retry.get("compaction", ())] if isinstance(retry, dict) else []
    if not try_shorten_conversation(state, ways):
        fail_run(state, failure.type, failure.message + describe_shortening(state))


def _apply_model_output(
    state: RunState, step: CallModel, revoked: Sequence[RevokedApproval], resend: bool, raw: Any
) -> None:
    drop_recorded_revocations(state, revoked)
    output = ModelOutput.model_validate(raw)
    if resend and not output.branches:  # a resume that came during the call is for the next one
        state.resend = False
    apply_model(state, step, output)


async def compact_conversation(state: RunState, step: CompactConversation, tasks: StepTasks) -> None:
    """Have the conversation up to the head rewritten, shorter. Items since the head wait for the next model call."""
    await tasks.run_activity(
        state,
        "a compaction",
        COMPACT_ACTIVITY,
        lambda state: _build_compact_input(state, step),
        lambda state, raw: apply_compaction(state, CompactOutput.model_validate(raw)),
        lambda state, failure: fail_run(
            state, failure.type, f"the conversation could not be summed up: {failure.message}"
        ),
    )


def _build_compact_input(state: RunState, step: CompactConversation) -> dict[str, Any]:
    return _dump_input(
        CompactInput(
            **_build_request_facts(state),
            rewrites=step.rewrites or None,
            warned=state.compaction is not None and state.compaction.warned,
        )
    )


async def run_tool_call(
    state: RunState, pending: ToolCallState, tasks: StepTasks, children: BackgroundChildren
) -> None:
    """Run one tool call by its disposition, and apply its outcome."""
    match pending.call.disposition:
        case SubagentCall(background=None):
            await run_subagent(state, pending, tasks)
        case SubagentCall() as start:
            await children.start_child(pending, start)
        case TellCall() as message:
            await children.send_message(pending, message)
        case RemoteCall() as remote:
            await run_remote_call(state, pending, remote, tasks)
        case CallbackCall():
            await run_callback_hooks(state, pending, tasks)
        case ActivityCall() as activity:
            await _run_tool_activity(state, pending, activity, tasks)
        case other:
            text = f"this engine cannot run a call as {other.kind}"
            fail_call(state, pending, text)


async def _run_tool_activity(state: RunState, pending: ToolCallState, activity: ActivityCall, tasks: StepTasks) -> None:
    await tasks.run_activity(
        state,
        "a tool call",
        TOOL_ACTIVITY_PREFIX + pending.call.name,
        lambda state: build_tool_input(
            state,
            pending,
            arguments=get_final_arguments(pending),
            toolset=activity.toolset,
            idempotent=activity.idempotent,
            retries=activity.retries,
            answers=tuple(pending.answers),
        ),
        lambda state, raw: apply_tool_output(state, pending, raw),
        lambda state, failure: apply_tool_failure(state, pending, failure),
        options=engine_options(
            task_queue=activity.task_queue,
            start_to_close_timeout=timedelta(seconds=activity.timeout) + ATTEMPT_TIMEOUT,
        ),
    )


def send_reminders(state: RunState, tasks: StepTasks) -> list[Coroutine[Any, Any, None]]:
    """Take the reminders that are due, and return the coroutine that sends them; none if they could not be built."""
    reminder = tasks.guard.change_or_pause(state, "a reminder", _build_reminder_input)
    return [] if reminder is None else [_run_reminder_activity(state, *reminder, tasks)]


def _build_reminder_input(state: RunState) -> tuple[ReminderBatch, dict[str, Any]]:
    batch = take_due_reminders(state, get_host().now())
    task = RemindInput(**build_call_facts(state, batch.op), head=state.head, reminders=batch.reminders)
    return batch, _dump_input(task)


async def _run_reminder_activity(state: RunState, batch: ReminderBatch, task: dict[str, Any], tasks: StepTasks) -> None:
    """Send reminders; cancelled once none of their calls waits. A failure is only logged, except an ``AbortError``."""
    activity = get_host().execute_activity(REMIND_ACTIVITY, task, **engine_options())
    reminding = asyncio.create_task(activity)
    with suppress(asyncio.CancelledError):
        await get_host().wait_condition(lambda: reminding.done() or not batch.has_waiting_call())
    if not reminding.done():
        reminding.cancel()
    await get_host().wait([reminding])
    if reminding.cancelled():  # before it began
        return
    error = reminding.exception()
    if not isinstance(error, ActivityError):
        reminding.result()
    elif not is_cancelled_activity(error):
        failure = read_activity_failure(error)
        if failure.type != "AbortError":
            get_logger().warning("the reminder of waiting calls of run %s failed: %s", state.context_id, failure)
        elif not tasks.is_stopping():
            apply_abort(state, failure.message)
            tasks.guard.note_change()


async def record_ending(state: RunState, step: RecordClosing, tasks: StepTasks) -> None:
    """Record how the run, or a turn of it, ended. This waits for the store without limit, but only
    ``CANCELLED_CLOSE_TIMEOUT`` in a cancelled run, which must end."""
    task = tasks.guard.change_or_pause(state, "the input of an ending", _build_close_input, step)
    if task is None:
        return
    revoked = tuple(state.revoked)

    def apply_output(state: RunState, raw: Any) -> None:
        _apply_close_output(state, step, revoked, raw)

    limit = CANCELLED_CLOSE_TIMEOUT if state.cancelled else None
    try:
        raw = await get_host().execute_activity(
            CLOSE_ACTIVITY,
            task,
            **engine_options(max_retry_seconds=10, schedule_to_close_timeout=limit),
        )
    except ActivityError as error:
        if is_cancelled_activity(error) and not state.cancelled and tasks.is_cancelling():
            # The run was cancelled meanwhile: its ending is recorded instead, behind what is recorded already.
            if may_have_recorded(error):
                work = UncollectedActivity(activity=CLOSE_ACTIVITY, input=task)
                await tasks.collect(state, "the record of an ending", work, apply_output, closing=True)
            return
        get_logger().error("the ending could not be recorded: %s", read_activity_failure(error).message)
        raw = {}
    check_schema_version(raw, "the record of an ending")
    tasks.guard.change_or_pause(state, "the record of an ending", apply_output, raw)


def _build_close_input(state: RunState, step: RecordClosing) -> dict[str, Any]:
    new = take_message_sender(state, step.new)  # first: it may change who is acted for, which the input has
    facts = _build_conversation_facts(state)
    return _dump_input(CloseInput(**facts, new=new, closing=step.closing, revoked=tuple(state.revoked)))


def _apply_close_output(state: RunState, step: RecordClosing, revoked: Sequence[RevokedApproval], raw: Any) -> None:
    # Also if the ending could not be recorded: it is not tried again.
    drop_recorded_revocations(state, revoked)
    output = CloseOutput.model_validate(raw)
    apply_labels(state, output)
    apply_closing(state, step, output.head)


# ---
# What a paused run has to collect before it goes on.


async def collect_open_work(state: RunState, tasks: StepTasks) -> None:
    """Collect what activities have recorded that ended without an applied output, as their run paused.

    In a run that goes on, the open tool calls are due again, and find their outcomes.
    """
    closing = tasks.is_stopping() or (state.turn is not None and state.turn.failure is not None)
    kept, state.uncollected = state.uncollected, []
    tasks.guard.note_change()
    for index, work in enumerate(kept):
        if not work.activity.startswith(ENGINE_ACTIVITY_PREFIX) and not closing:
            continue
        apply = partial(_apply_collected_output, work)
        if not await tasks.collect(state, "an earlier step", work, apply, closing=closing):
            state.uncollected += kept[index + 1 :]
            return


def _apply_collected_output(work: UncollectedActivity, state: RunState, raw: Any) -> None:
    if work.activity == MODEL_ACTIVITY:
        task = ModelInput.model_validate(work.input)
        _apply_model_output(state, CallModel((), work.taken, task.limit), task.revoked, task.resend, raw)
    elif work.activity == COMPACT_ACTIVITY:
        apply_compaction(state, CompactOutput.model_validate(raw))
    elif not work.activity.startswith(ENGINE_ACTIVITY_PREFIX):
        op = work.input["op"]
        for pending in [pending for pending in state.calls if pending.op == op]:
            apply_tool_output(state, pending, raw)
    # Else an ending: it is recorded again, behind what is recorded.


# ---
# Concurrent tool calls of a reply, with calls that are approved or answered meanwhile, and reminders of waiting calls.


async def run_tool_calls(
    state: RunState, calls: Sequence[ToolCallState], tasks: StepTasks, children: BackgroundChildren
) -> None:
    """Run ``calls`` to their end, and the calls that are approved or answered meanwhile."""
    source = _ToolCallSource(state, tasks, children)
    await tasks.run_all(source.build_coroutines(calls), source)


async def send_reminders_while_waiting(state: RunState, tasks: StepTasks, children: BackgroundChildren) -> None:
    """Send the due reminders, and run the calls that are approved or answered meanwhile."""
    await tasks.run_all(send_reminders(state, tasks), _ToolCallSource(state, tasks, children))


class _ToolCallSource:
    """A :class:`~.step_tasks.TaskSource` of tool calls that may begin while others run, and of reminders."""

    def __init__(self, state: RunState, tasks: StepTasks, children: BackgroundChildren) -> None:
        self._state = state
        self._tasks = tasks
        self._children = children
        self._running_ops: set[int] = set()
        """Operation numbers of the calls in flight."""
        self._next_expiry: float | None = None
        """When the next wait for a person expires, as of the last check: seconds since 1970."""

    def build_coroutines(self, calls: Sequence[ToolCallState]) -> list[Coroutine[Any, Any, None]]:
        """Build the coroutines that run ``calls``, which count as in flight from now on."""
        self._running_ops.update(pending.op for pending in calls)
        return [self._run_call(pending) for pending in calls]

    async def _run_call(self, pending: ToolCallState) -> None:
        try:
            await run_tool_call(self._state, pending, self._tasks, self._children)
        finally:
            self._running_ops.discard(pending.op)
            self._tasks.guard.note_change()

    def has_more(self) -> bool:
        """Whether a call may begin, a reminder is due, or the next expiry has changed."""
        joining = select_joining_calls(self._state, self._running_ops)
        return bool(list_calls_to_remind(self._state) or joining) or find_next_expiry(self._state) != self._next_expiry

    def seconds_to_next_check(self) -> float | None:
        """Return the seconds until a reminder is due, or a wait for a person expires."""
        self._next_expiry = find_next_expiry(self._state)
        at = find_next_deadline(self._state)
        return None if at is None else max(at - get_host().now().timestamp(), 0.001)

    def start_more(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines of the reminders and calls that are to start."""
        state, tasks = self._state, self._tasks
        if find_next_deadline(state) is not None:
            tasks.guard.change_or_pause(state, "the wait for a person", update_approval_waits, get_host().now())
        if state.pause is not None and state.pause.fault:
            return []
        reminders = send_reminders(state, tasks) if list_calls_to_remind(state) else []
        return reminders + self.build_coroutines(select_joining_calls(state, self._running_ops))
