"""Around calls that are run elsewhere, by other workers or by a client: the worker's rules and hooks.

They are activities of their own, and only where there is something to run: the call's own activity, or the wait for its
answer, is the same as without them. What each came to is in the state, so whatever happens in between, a hook is asked
once, and the call is made once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from temporalio import exceptions as temporal
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..errors import EngineError
from ..loop import external_calls
from ..loop.external_calls import arguments_of, remote_failure, remote_result
from ..loop.lifecycle import ENDING, PAUSING
from ..types.state import PendingCall, RunState
from ..types.tool_calls import AsRemote, Side
from ..types.wire import TOOL_ACTIVITY, NewResult, ToolInput, ToolOutput
from . import host
from .activity_options import cause, facts, hook_options, plain, remote_options, stopped
from .step_tasks import Work

BEFORE = "before_tool_call."
"""Prefixes of the activities' types, for whoever looks at a history; the tool's name follows."""
AFTER = "after_tool_call."


async def run_callback(state: RunState, pending: PendingCall, work: Work) -> None:
    """What there is around a call that a client runs."""
    if pending.returned is None:
        await clear(state, pending, work)
    else:
        await show(state, pending, work)


async def clear(state: RunState, pending: PendingCall, work: Work) -> bool:
    """Have the worker look at the call, where it is to; whether it may be handed over now."""
    if external_calls.due_before(pending):
        output = await _look(state, pending, lambda: external_calls.before(pending), work)
        return bool(output and output.cleared) and external_calls.may_begin(state, pending) and not work.stopping()
    return True


async def show(state: RunState, pending: PendingCall, work: Work) -> None:
    """Let hooks see what the call came to, where they are to. One that is stopped before shows nothing of it."""
    if external_calls.due_after(pending) and not work.stopping():
        await _look(state, pending, lambda: external_calls.after(pending), work)


async def _look(state: RunState, pending: PendingCall, side: Callable[[], Side], work: Work) -> ToolOutput | None:
    """What the worker says; a result that it gives is the call's. None where it was stopped or did not come to it."""
    call = pending.call
    task = work.guard.apply(
        state,
        "the input of hooks around a call",
        lambda: plain(
            ToolInput(
                **facts(state, pending.op),
                call_id=call.id,
                name=call.name,
                arguments=external_calls.asked_of(pending),
                head=state.head,
                definition=call.definition,
                approval=pending.decided,
                side=side(),
            )
        ),
    )
    if task is None:
        return None
    prefix = BEFORE if pending.returned is None else AFTER
    try:
        raw = await host.execute_activity(prefix + call.name, task, **hook_options())
    except ActivityError as error:
        if stopped(error) and work.stopping():
            return None  # closed by the loop
        kind, message = cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", host.now().isoformat())
            return None  # it is done when the run is resumed
        if kind in ENDING:
            loop.fail_after_calls(state, kind, message)
        what = external_calls.withheld(pending) or f"\n({call.name} was not run)"
        result = NewResult(call_id=call.id, name=call.name, text=f"{kind}: {message}{what}")
        work.guard.apply(state, "the failure of hooks around a call", lambda: _result(state, pending, result))
        return None
    return work.guard.apply(state, "the outcome of hooks around a call", lambda: _seen(state, pending, raw))


def _seen(state: RunState, pending: PendingCall, raw: Any) -> ToolOutput:
    output, call = ToolOutput.model_validate(raw), pending.call
    if output.cleared is not None:
        loop.clear(state, pending.op, output.cleared, host.now())
        return output
    if output.status == "aborted":  # before the result, which may be what ends the turn at a limit
        loop.abort(state, output.content or "")
    _result(state, pending, NewResult(call_id=call.id, name=call.name, key=output.key, is_error=output.is_error))
    return output


def _result(state: RunState, pending: PendingCall, result: NewResult) -> None:
    by = pending.returned.answered_by if pending.returned is not None else None
    error = result.is_error or result.key is None
    loop.apply_result(state, pending.op, result.model_copy(update={"answered_by": by, "is_error": error}))


# ---
# Calls of remote tools: activities of workers that know nothing of perdure.


async def run_remote(state: RunState, pending: PendingCall, how: AsRemote, work: Work) -> None:
    """Run one call, between what there is around it."""
    if pending.returned is None:
        if not await clear(state, pending, work):
            return
        if not await _send(state, pending, how, work):
            return
    await show(state, pending, work)


async def _send(state: RunState, pending: PendingCall, how: AsRemote, work: Work) -> bool:
    """Have it run, again if it may be where nobody knows what became of it; whether it has come back."""
    call = pending.call
    for attempt in itertools.count(1):
        try:
            value = await host.execute_activity(
                TOOL_ACTIVITY + call.name,
                arguments_of(pending) or {},
                activity_id=f"{state.scope}/{pending.op}",
                **remote_options(how),
            )
        except ActivityError as error:
            if is_cancelled_exception(error) and work.stopping():
                return False  # closed by the loop
            lost = isinstance(error.cause, temporal.TimeoutError)
            if lost and how.idempotent and (how.retries is None or attempt <= how.retries):
                continue
            kind, said = ("OutcomeUnknown", _unknown(how, call.name)) if lost else _said(error)
            _failed(state, pending, work, kind, said)
        else:
            _returned(state, pending, work, value)
        break
    return True


def _returned(state: RunState, pending: PendingCall, work: Work, value: Any) -> None:
    def apply() -> None:
        result = remote_result(state, pending, value)
        loop.apply_returned(state, pending.op, result, "ResultError" if result.is_error else "")

    try:
        work.guard.change(state, "the outcome of a remote call", apply)
    except EngineError as error:  # it has run, and must not run again when the run is resumed
        _failed(state, pending, work, "OutcomeUnknown", f"{error.message}. The call may have succeeded.")


def _failed(state: RunState, pending: PendingCall, work: Work, kind: str, message: str) -> None:
    result = remote_failure(pending, f"{kind}: {message}")
    work.guard.apply(
        state, "the failure of a remote call", lambda: loop.apply_returned(state, pending.op, result, kind)
    )


def _unknown(how: AsRemote, name: str) -> str:
    return f"{name} has not answered within {how.timeout:g} s. It may have happened or not."


def _said(error: ActivityError) -> tuple[str, str]:
    """Class and message of what the activity raised, in whatever language."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "Error", cause.message
    return type(cause or error).__name__, str(cause or error)
