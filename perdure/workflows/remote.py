"""Calls of remote tools: activities of workers that know nothing of perdure."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from temporalio import exceptions as temporal
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..loop.elsewhere import arguments_of
from ..loop.remote import remote_failure, remote_result
from ..types.state import PendingCall, RunState
from ..types.wire import TOOL_ACTIVITY, AsRemote
from . import host
from .elsewhere import clear, show
from .options import remote_options


async def run_remote(state: RunState, pending: PendingCall, how: AsRemote, stopping: Callable[[], bool]) -> None:
    """Run one call, between what there is around it."""
    if pending.returned is None:
        if not await clear(state, pending, stopping):
            return
        if not await _send(state, pending, how, stopping):
            return
    await show(state, pending, stopping)


async def _send(state: RunState, pending: PendingCall, how: AsRemote, stopping: Callable[[], bool]) -> bool:
    """Have it run, again if it may be where nobody knows what became of it; whether it has come back."""
    call = pending.call
    result, kind = None, ""
    for attempt in itertools.count(1):
        try:
            value = await host.execute_activity(
                TOOL_ACTIVITY + call.name,
                arguments_of(pending) or {},
                activity_id=f"{state.scope}/{pending.op}",
                **remote_options(how),
            )
            result = remote_result(state, pending, value)
            kind = "ResultError" if result.is_error else ""
        except ActivityError as error:
            if is_cancelled_exception(error) and stopping():
                return False  # closed by the loop
            lost = isinstance(error.cause, temporal.TimeoutError)
            if lost and how.idempotent and (how.retries is None or attempt <= how.retries):
                continue
            kind, said = ("OutcomeUnknown", _unknown(how, call.name)) if lost else _said(error)
            result = remote_failure(pending, f"{kind}: {said}")
        break
    assert result is not None, "counting does not end"
    loop.apply_returned(state, pending.op, result, kind)
    return True


def _unknown(how: AsRemote, name: str) -> str:
    return f"{name} has not answered within {how.timeout:g} s. It may have happened or not."


def _said(error: ActivityError) -> tuple[str, str]:
    """Class and message of what the activity raised, in whatever language."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "Error", cause.message
    return type(cause or error).__name__, str(cause or error)
