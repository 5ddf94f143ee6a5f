"""External calls: remote tools (activities of other workers), callbacks (run by a client), and the hooks around them.

The rules and hooks before and after a call are activities of their own, scheduled only if there is something to run;
the call's own activity, or the wait for its answer, is the same as without them. The outcome of each is in the state,
so whatever happens in between, a hook runs once, and the call is made once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from temporalio import exceptions as temporal
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from ..errors import EngineError
from ..loop import external_calls
from ..loop.apply import apply_abort, apply_external_result, apply_result, fail_run_after_calls
from ..loop.external_calls import build_remote_failure, build_remote_result, get_final_arguments
from ..loop.lifecycle import PAUSING_ERRORS, RUN_FAILING_ERRORS, pause_run
from ..loop.questions import apply_clearance
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import ExternalCallPhase, RemoteCall
from ..types.wire import TOOL_ACTIVITY_PREFIX, NewResult, ToolInput, ToolOutput
from .activity_options import (
    build_call_facts,
    dump_activity_input,
    hook_options,
    is_cancelled_activity,
    read_activity_failure,
    remote_options,
)
from .host import get_host
from .step_tasks import StepTasks

BEFORE_HOOKS_ACTIVITY = "before_tool_call."
"""Prefixes of the activity types, which make a history readable; the tool's name follows."""
AFTER_HOOKS_ACTIVITY = "after_tool_call."


async def run_callback_hooks(state: RunState, pending: ToolCallState, work: StepTasks) -> None:
    """Run the activity before a callback, or, once its answer has come, the activity after it."""
    if pending.returned is None:
        await run_before_hooks(state, pending, work)
    else:
        await run_after_hooks(state, pending, work)


async def run_before_hooks(state: RunState, pending: ToolCallState, work: StepTasks) -> bool:
    """Run the activity before the call, if one is needed; return whether the call may be handed over now."""
    if external_calls.needs_before_activity(pending):
        output = await _run_hooks_activity(state, pending, lambda: external_calls.build_before_input(pending), work)
        return (
            bool(output and output.cleared)
            and external_calls.can_begin_external_call(state, pending)
            and not work.is_stopping()
        )
    return True


async def run_after_hooks(state: RunState, pending: ToolCallState, work: StepTasks) -> None:
    """Run the activity after the call, if one is needed. If the run is stopped before, the result stays withheld."""
    if external_calls.needs_after_activity(pending) and not work.is_stopping():
        await _run_hooks_activity(state, pending, lambda: external_calls.build_after_input(pending), work)


async def _run_hooks_activity(
    state: RunState, pending: ToolCallState, side: Callable[[], ExternalCallPhase], work: StepTasks
) -> ToolOutput | None:
    """Run the activity and apply its output: a clearance, or the call's result. None if it was stopped or failed."""
    call = pending.call
    task = work.guard.change_or_pause(
        state,
        "the input of hooks around a call",
        lambda: dump_activity_input(
            ToolInput(
                **build_call_facts(state, pending.op),
                call_id=call.id,
                name=call.name,
                arguments=external_calls.get_approved_arguments(pending),
                head=state.head,
                definition=call.definition,
                approval=pending.decided,
                side=side(),
            )
        ),
    )
    if task is None:
        return None
    prefix = BEFORE_HOOKS_ACTIVITY if pending.returned is None else AFTER_HOOKS_ACTIVITY
    try:
        raw = await get_host().execute_activity(prefix + call.name, task, **hook_options())
    except ActivityError as error:
        if is_cancelled_activity(error) and work.is_stopping():
            return None  # closed by the loop
        kind, message = read_activity_failure(error)
        if kind in PAUSING_ERRORS:
            pause_run(state, f"{kind}: {message}", get_host().now().isoformat())
            return None  # the hooks run when the run is resumed
        if kind in RUN_FAILING_ERRORS:
            fail_run_after_calls(state, kind, message)
        what = external_calls.describe_withheld_result(pending) or f"\n({call.name} was not run)"
        result = NewResult(call_id=call.id, name=call.name, text=f"{kind}: {message}{what}")
        work.guard.change_or_pause(
            state, "the failure of hooks around a call", lambda: _apply_hooks_result(state, pending, result)
        )
        return None
    return work.guard.change_or_pause(
        state, "the outcome of hooks around a call", lambda: _apply_hooks_output(state, pending, raw)
    )


def _apply_hooks_output(state: RunState, pending: ToolCallState, raw: Any) -> ToolOutput:
    output, call = ToolOutput.model_validate(raw), pending.call
    if output.cleared is not None:
        apply_clearance(state, pending.op, output.cleared, get_host().now())
        return output
    if output.status == "aborted":  # before the result, which may be what ends the turn at a limit
        apply_abort(state, output.content or "")
    _apply_hooks_result(
        state, pending, NewResult(call_id=call.id, name=call.name, key=output.key, is_error=output.is_error)
    )
    return output


def _apply_hooks_result(state: RunState, pending: ToolCallState, result: NewResult) -> None:
    by = pending.returned.answered_by if pending.returned is not None else None
    error = result.is_error or result.key is None
    apply_result(state, pending.op, result.model_copy(update={"answered_by": by, "is_error": error}))


# ---
# Calls of remote tools: activities of workers that need not use perdure.


async def run_remote_call(state: RunState, pending: ToolCallState, how: RemoteCall, work: StepTasks) -> None:
    """Run one remote call, with the activities before and after it."""
    if pending.returned is None:
        if not await run_before_hooks(state, pending, work):
            return
        if not await _run_remote_activity(state, pending, how, work):
            return
    await run_after_hooks(state, pending, work)


async def _run_remote_activity(state: RunState, pending: ToolCallState, how: RemoteCall, work: StepTasks) -> bool:
    """Run the activity of the call; retry an idempotent one that timed out. Return False if the run was stopped, True
    once the call has a result or a failure."""
    call = pending.call
    for attempt in itertools.count(1):
        try:
            value = await get_host().execute_activity(
                TOOL_ACTIVITY_PREFIX + call.name,
                get_final_arguments(pending) or {},
                activity_id=f"{state.scope}/{pending.op}",
                **remote_options(how),
            )
        except ActivityError as error:
            if is_cancelled_exception(error) and work.is_stopping():
                return False  # closed by the loop
            lost = isinstance(error.cause, temporal.TimeoutError)
            if lost and how.idempotent and (how.retries is None or attempt <= how.retries):
                continue
            kind, said = (
                ("OutcomeUnknown", _describe_lost_call(how, call.name)) if lost else _read_remote_failure(error)
            )
            _apply_remote_failure(state, pending, work, kind, said)
        else:
            _apply_remote_value(state, pending, work, value)
        break
    return True


def _apply_remote_value(state: RunState, pending: ToolCallState, work: StepTasks, value: Any) -> None:
    def apply() -> None:
        result = build_remote_result(state, pending, value)
        apply_external_result(state, pending.op, result, "ResultError" if result.is_error else "")

    try:
        work.guard.change_or_raise(state, "the outcome of a remote call", apply)
    except EngineError as error:  # it has run, and must not run again when the run is resumed
        _apply_remote_failure(state, pending, work, "OutcomeUnknown", f"{error.message}. The call may have succeeded.")


def _apply_remote_failure(state: RunState, pending: ToolCallState, work: StepTasks, kind: str, message: str) -> None:
    result = build_remote_failure(pending, f"{kind}: {message}")
    work.guard.change_or_pause(
        state, "the failure of a remote call", lambda: apply_external_result(state, pending.op, result, kind)
    )


def _describe_lost_call(how: RemoteCall, name: str) -> str:
    return f"{name} has not answered within {how.timeout:g} s. It may have happened or not."


def _read_remote_failure(error: ActivityError) -> tuple[str, str]:
    """Return type and message of the error that the activity raised, in whatever language it is written."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "Error", cause.message
    return type(cause or error).__name__, str(cause or error)
