"""External calls: remote tools (activities of other workers), callbacks (run by a client), and the hooks around them.

The rules and hooks before and after a call are activities of their own, scheduled only if there is something to run;
the call's own activity, or the wait for its answer, is the same as without them. The outcome of each is in the state,
so whatever happens in between, a hook runs once, and the call is made once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.workflow import ActivityCancellationType

from ..errors import EngineError
from ..loop import external_calls
from ..loop.apply import apply_abort, apply_external_result, fail_run_after_calls, finish_call
from ..loop.external_calls import get_final_arguments
from ..loop.lifecycle import RUN_FAILING_ERRORS
from ..loop.questions import apply_clearance, apply_question
from ..loop.results import build_remote_failure, build_remote_result
from ..types.outcome_unknown import OUTCOME_UNKNOWN, describe_missing_answer, describe_refused_answer
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import ActivityCall, ExternalCallPhase, RemoteCall
from ..types.wire import TOOL_ACTIVITY_PREFIX, ToolOutput
from .activity_options import ActivityFailure, build_tool_input, read_activity_failure
from .host import get_host
from .step_tasks import StepTasks

BEFORE_HOOKS_ACTIVITY = "before_tool_call."
"""Prefixes of the activity types, which make a history readable; the tool's name follows."""
AFTER_HOOKS_ACTIVITY = "after_tool_call."


async def run_callback_hooks(state: RunState, pending: ToolCallState, tasks: StepTasks) -> None:
    """Run the activity before a callback, or, once its answer has come, the activity after it."""
    await run_before_hooks(state, pending, tasks)
    await run_after_hooks(state, pending, tasks)


async def run_before_hooks(state: RunState, pending: ToolCallState, tasks: StepTasks) -> bool:
    """Run the activity before the call, if one is needed; return whether the call may be handed over now."""
    if not external_calls.needs_before_activity(pending):
        return True
    await _run_hooks_activity(state, pending, lambda: external_calls.build_before_input(pending), tasks)
    cleared = pending.clearance is not None and external_calls.can_begin_external_call(state, pending)
    return cleared and not tasks.is_stopping()


async def run_after_hooks(state: RunState, pending: ToolCallState, tasks: StepTasks) -> None:
    """Run the activity after the call, if one is needed. If the run is stopped before, the result stays withheld."""
    if external_calls.needs_after_activity(pending) and not tasks.is_stopping():
        await _run_hooks_activity(state, pending, lambda: external_calls.build_after_input(pending), tasks)


async def _run_hooks_activity(
    state: RunState, pending: ToolCallState, build_phase: Callable[[], ExternalCallPhase], tasks: StepTasks
) -> None:
    """Run the activity and apply its output: a clearance, or the call's result."""
    name = pending.call.name
    arguments = external_calls.get_approved_arguments(pending)
    await tasks.run_activity(
        state,
        "hooks around a call",
        (BEFORE_HOOKS_ACTIVITY if pending.external_result is None else AFTER_HOOKS_ACTIVITY) + name,
        lambda state: build_tool_input(state, pending, arguments=arguments, side=build_phase()),
        lambda state, raw: apply_tool_output(state, pending, raw),
        lambda state, failure: apply_tool_failure(
            state, pending, failure, external_calls.describe_withheld_result(pending) or f"\n({name} was not run)"
        ),
    )


def apply_tool_output(state: RunState, pending: ToolCallState, raw: Any) -> None:
    """Apply the output of an activity of the call: a question, a clearance, or the call's result."""
    output = ToolOutput.model_validate(raw)
    if output.question is not None:
        apply_question(state, pending.op, output.question, get_host().now())
    elif output.cleared is not None:
        apply_clearance(state, pending.op, output.cleared, get_host().now())
    else:
        if output.status == "aborted":  # before the result, which may be what ends the turn at a limit
            apply_abort(state, output.content or "")
        _apply_tool_result(state, pending, key=output.key, is_error=output.is_error)


def apply_tool_failure(state: RunState, pending: ToolCallState, failure: ActivityFailure, note: str = "") -> None:
    """Apply the failure of an activity of the call: an error result that ends with ``note``. Errors of
    ``RUN_FAILING_ERRORS`` also fail the run."""
    disposition = pending.call.disposition
    # Workers of another queue may not have the agent.
    own_queue = not (isinstance(disposition, ActivityCall) and disposition.task_queue is not None)
    if failure.type in RUN_FAILING_ERRORS and own_queue:
        fail_run_after_calls(state, failure.type, failure.message)
    _apply_tool_result(state, pending, text=f"{failure}{note}", is_error=True)


def _apply_tool_result(state: RunState, pending: ToolCallState, **fields: Any) -> None:
    answered_by = pending.external_result.answered_by if pending.external_result is not None else None
    finish_call(state, pending, answered_by=answered_by, **fields)


# ---
# Calls of remote tools: activities of workers that need not use perdure.


async def run_remote_call(state: RunState, pending: ToolCallState, remote: RemoteCall, tasks: StepTasks) -> None:
    """Run one remote call, with the activities before and after it."""
    if pending.external_result is None:
        can_begin = await run_before_hooks(state, pending, tasks)
        if not can_begin or not await _run_remote_activity(state, pending, remote, tasks):
            return
    await run_after_hooks(state, pending, tasks)


async def _run_remote_activity(state: RunState, pending: ToolCallState, remote: RemoteCall, tasks: StepTasks) -> bool:
    """Run the activity of the call; retry an idempotent one that timed out. Return False if the run was stopped, True
    once the call has a result or a failure."""
    name = pending.call.name
    for attempt in itertools.count(1):
        try:
            value = await get_host().execute_activity(
                TOOL_ACTIVITY_PREFIX + name,
                get_final_arguments(pending) or {},
                activity_id=f"{state.scope}/{pending.op}",
                task_queue=remote.task_queue,
                start_to_close_timeout=timedelta(seconds=remote.timeout),
                retry_policy=RetryPolicy(maximum_attempts=1),
                # The attempt need not heartbeat, so a run that cancels it cannot wait for its end.
                cancellation_type=ActivityCancellationType.TRY_CANCEL,
            )
        except ActivityError as error:
            if is_cancelled_exception(error) and tasks.is_stopping():
                return False  # closed by the loop
            failure = read_activity_failure(error, untyped="Error")
            if isinstance(error.cause, TemporalTimeoutError):
                if remote.idempotent and (remote.retries is None or attempt <= remote.retries):
                    continue
                failure = ActivityFailure(OUTCOME_UNKNOWN, describe_missing_answer(name, remote.timeout))
            _apply_remote_failure(state, pending, tasks, failure)
        else:
            _apply_remote_value(state, pending, tasks, value)
        break
    return True


def _apply_remote_value(state: RunState, pending: ToolCallState, tasks: StepTasks, value: Any) -> None:
    def apply() -> None:
        result = build_remote_result(state, pending, value)
        apply_external_result(state, pending.op, result, "ResultError" if result.is_error else "")

    try:
        tasks.guard.change_or_raise(state, "the outcome of a remote call", apply)
    except EngineError as error:  # it has run, and must not run again when the run is resumed
        failure = ActivityFailure(OUTCOME_UNKNOWN, describe_refused_answer(error.message))
        _apply_remote_failure(state, pending, tasks, failure)


def _apply_remote_failure(state: RunState, pending: ToolCallState, tasks: StepTasks, failure: ActivityFailure) -> None:
    result = build_remote_failure(pending, str(failure))
    apply, what = apply_external_result, "the failure of a remote call"
    tasks.guard.change_or_pause(state, what, apply, pending.op, result, failure.type)
