"""Around calls that are run elsewhere, by other workers or by a client: the worker's rules and hooks.

They are activities of their own, and only where there is something to run: the call's own activity, or the wait for its
answer, is the same as without them. What each came to is in the state, so whatever happens in between, a hook is asked
once, and the call is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio.exceptions import ActivityError

from .. import loop
from ..loop import elsewhere
from ..loop.ending import ENDING, PAUSING
from ..types.elsewhere import Side
from ..types.state import PendingCall, RunState
from ..types.wire import NewResult, ToolInput, ToolOutput
from . import host
from .facts import cause, facts, plain, stopped
from .options import hook_options
from .work import Work

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
    if elsewhere.due_before(pending):
        output = await _look(state, pending, lambda: elsewhere.before(pending), work)
        return bool(output and output.cleared) and elsewhere.may_begin(state, pending) and not work.stopping()
    return True


async def show(state: RunState, pending: PendingCall, work: Work) -> None:
    """Let hooks see what the call came to, where they are to. One that is stopped before shows nothing of it."""
    if elsewhere.due_after(pending) and not work.stopping():
        await _look(state, pending, lambda: elsewhere.after(pending), work)


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
                arguments=elsewhere.asked_of(pending),
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
        what = elsewhere.withheld(pending) or f"\n({call.name} was not run)"
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
