"""Calls of remote tools: activities of workers that know nothing of perdure."""

from __future__ import annotations

import itertools
from typing import Any

from temporalio import exceptions as temporal
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..errors import EngineError
from ..loop.elsewhere import arguments_of
from ..loop.remote import remote_failure, remote_result
from ..types.state import PendingCall, RunState
from ..types.wire import TOOL_ACTIVITY, AsRemote
from . import host
from .elsewhere import clear, show
from .options import remote_options
from .work import Work


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
