"""Calls of remote tools: activities of workers that know nothing of perdure."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from temporalio import exceptions as temporal
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..loop.remote import remote_failure, remote_result
from ..types.state import PendingCall, RunState
from ..types.wire import TOOL_ACTIVITY, AsRemote, NewResult
from . import host
from .options import remote_options


async def run_remote(state: RunState, pending: PendingCall, how: AsRemote, stopping: Callable[[], bool]) -> None:
    """Run one call, again if it may be where nobody knows what became of it."""
    call = pending.call
    result: NewResult | None = None
    for attempt in itertools.count(1):
        try:
            value = await host.execute_activity(
                TOOL_ACTIVITY + call.name,
                call.arguments or {},
                activity_id=f"{state.scope}/{pending.op}",
                **remote_options(how),
            )
            result = remote_result(state, pending, value)
        except ActivityError as error:
            if is_cancelled_exception(error) and stopping():
                return  # closed by the loop
            lost = isinstance(error.cause, temporal.TimeoutError)
            if lost and how.idempotent and (how.retries is None or attempt <= how.retries):
                continue
            result = remote_failure(pending, _unknown(how, call.name) if lost else _said(error))
        break
    assert result is not None, "counting does not end"
    loop.apply_result(state, pending.op, result)


def _unknown(how: AsRemote, name: str) -> str:
    return f"OutcomeUnknown: {name} has not answered within {how.timeout:g} s. It may have happened or not."


def _said(error: ActivityError) -> str:
    """Class and message of what the activity raised, in whatever language."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.type or 'Error'}: {cause.message}"
    return f"{type(cause or error).__name__}: {cause or error}"
