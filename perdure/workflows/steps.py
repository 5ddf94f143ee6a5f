"""The steps of a run as activities: what is sent, and what their outcomes mean for the state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..loop.answer import used
from ..loop.auth import given
from ..loop.branching import outcomes
from ..loop.elsewhere import arguments_of
from ..loop.ending import PAUSING
from ..loop.limits import calls_left, cost_inherited
from ..loop.overrides import overrides
from ..types.background import AsTell
from ..types.question import AsCallback
from ..types.state import PendingCall, RunState
from ..types.wire import (
    MODEL_ACTIVITY,
    TOOL_ACTIVITY,
    AsActivity,
    AsRemote,
    AsSubagent,
    ModelInput,
    ModelOutput,
    NewResult,
    ToolInput,
    ToolOutput,
)
from . import host
from .background import Children
from .elsewhere import run_callback
from .facts import cause, facts, plain, stopped
from .options import close_options, model_options, tool_options
from .remote import run_remote
from .subagents import run_subagent

TOO_LONG = "ContextLengthError"

Stopping = Callable[[], bool]
"""Whether an activity that comes back cancelled was cancelled by the run itself."""


async def call_model(state: RunState, step: loop.CallModel, stopping: Stopping) -> None:
    """Call the model with what is new."""
    usage, cost_usd = used(state)
    new = given(state, step.new)
    task = ModelInput(
        **facts(state, state.op, calling_model=True),
        head=state.head,
        new=new,
        purpose=step.purpose,
        tighter=(state.compaction.tighter or None) if state.compaction else None,
        behind=state.compaction.behind if state.compaction else None,
        overrides=overrides(state),
        pinned=state.pinned,
        mode=state.mode if state.mode != "run" else None,
        resume=state.resume or None,
        used=usage,
        cost_usd=cost_usd,
        rejected=state.turn.rejected or None if state.turn else None,
        limit=step.limit,
        calls_left=calls_left(state),
        branches=outcomes(state),
        cost_limited=cost_inherited(state),
        revoked=tuple(state.revoked),
    )
    try:
        raw = await host.execute_activity(MODEL_ACTIVITY, plain(task), **model_options())
    except ActivityError as error:
        if stopped(error) and stopping():
            return  # the loop is told before its next decision
        kind, message = cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", host.now().isoformat())
        elif kind != TOO_LONG:
            loop.fail(state, kind, message)
        elif not loop.too_long(state, _ways(error)):
            loop.fail(state, kind, message + loop.tried(state))
    else:
        loop.told_revoked(state, task.revoked)
        loop.apply_model(state, step, ModelOutput.model_validate(raw))


async def compact(state: RunState, step: loop.Compact, stopping: Stopping) -> None:
    """Have the conversation written anew, shorter. What is new since the head waits for the call that follows."""
    task = ModelInput(
        **facts(state, state.op),
        head=state.head,
        purpose="compact",
        tighter=step.tighter or None,
        overrides=overrides(state),
        pinned=state.pinned,
        mode=state.mode if state.mode != "run" else None,
        resume=state.resume or None,
        cost_limited=cost_inherited(state),
    )
    try:
        raw = await host.execute_activity(MODEL_ACTIVITY, plain(task), **model_options())
    except ActivityError as error:
        if stopped(error) and stopping():
            return  # it is compacted before the next call that there is
        kind, message = cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", host.now().isoformat())
        else:
            loop.fail(state, kind, f"the conversation could not be summed up: {message}")
    else:
        loop.apply_compacted(state, ModelOutput.model_validate(raw))


async def run_call(state: RunState, pending: PendingCall, stopping: Stopping, children: Children) -> None:
    """Run one tool call."""
    call, how = pending.call, pending.call.disposition
    if isinstance(how, AsSubagent):
        if how.background is None:
            await run_subagent(state, pending, stopping)
        else:
            await children.start(pending, how)
        return
    if isinstance(how, AsTell):
        await children.tell(pending, how)
        return
    if isinstance(how, AsRemote):
        await run_remote(state, pending, how, stopping)
        return
    if isinstance(how, AsCallback):
        await run_callback(state, pending, stopping)
        return
    if not isinstance(how, AsActivity):
        text = f"this engine cannot run a call as {how.kind}"
        refused = NewResult(call_id=call.id, name=call.name, text=text, is_error=True)
        loop.apply_result(state, pending.op, refused)
        return
    task = ToolInput(
        **facts(state, pending.op),
        call_id=call.id,
        name=call.name,
        arguments=arguments_of(pending),
        head=state.head,
        definition=call.definition,
        toolset=how.toolset,
        idempotent=how.idempotent,
        retries=how.retries,
        approval=pending.decided,
        answers=tuple(pending.answers),
    )
    aborted: str | None = None
    try:
        raw = await host.execute_activity(TOOL_ACTIVITY + call.name, plain(task), **tool_options(how))
        output = ToolOutput.model_validate(raw)
        if output.question is not None:
            loop.ask_person(state, pending.op, output.question, host.now())
            return  # the call is run again when somebody has answered
        result = NewResult(call_id=call.id, name=call.name, key=output.key, is_error=output.is_error)
        aborted = (output.content or "") if output.status == "aborted" else None
    except ActivityError as error:
        if is_cancelled_exception(error) and stopping():
            return  # closed by the loop
        kind, message = cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", host.now().isoformat())
            return  # the call is run when the run is resumed
        result = NewResult(call_id=call.id, name=call.name, text=f"{kind}: {message}", is_error=True)
    if aborted is not None:  # before the result, which may be what ends the turn at a limit
        loop.abort(state, aborted)
    loop.apply_result(state, pending.op, result)


def remind(state: RunState, stopping: Stopping) -> Coroutine[Any, Any, None]:
    """Tell of the calls of which it is time to; to be awaited."""
    return _remind(state, loop.remind(state, host.now()), stopping)


async def _remind(state: RunState, told: loop.Reminding, stopping: Stopping) -> None:
    """A reminder that fails is one less: the run goes on. It is given up when nobody waits any more."""
    task = ModelInput(
        **facts(state, told.op),
        head=state.head,
        purpose="remind",
        reminders=told.reminders,
        overrides=overrides(state),
    )
    telling = asyncio.create_task(host.execute_activity(MODEL_ACTIVITY, plain(task), **model_options()))
    with suppress(asyncio.CancelledError):
        await host.wait_condition(lambda: telling.done() or not told.wanted())
    if not telling.done():
        telling.cancel()
    await host.wait([telling])
    if telling.cancelled():  # before it began
        return
    error = telling.exception()
    if not isinstance(error, ActivityError):
        telling.result()
    elif not stopped(error):
        kind, message = cause(error)
        if kind != "AbortError":
            host.logger().warning("nobody was reminded of calls of run %s: %s: %s", state.context_id, kind, message)
        elif not stopping():
            loop.abort(state, message)


async def record(state: RunState, step: loop.Close, cancelling: Stopping) -> None:
    """Record how the run, or a turn of it, ended."""
    new = given(state, step.new)
    task = ModelInput(
        **facts(state, state.op),
        head=state.head,
        new=new,
        purpose="close",
        closing=step.closing,
        mode=state.mode if state.mode != "run" else None,
        resume=state.resume or None,
        revoked=tuple(state.revoked),
    )
    try:
        raw = await host.execute_activity(MODEL_ACTIVITY, plain(task), **close_options(cancelled=state.cancelled))
        head: str | None = ModelOutput.model_validate(raw).head
    except ActivityError as error:
        if stopped(error) and not state.cancelled and cancelling():
            return  # the ending is another one now
        host.logger().error("the ending could not be recorded: %s", cause(error)[1])
        head = None
    loop.told_revoked(state, task.revoked)  # no other attempt is made of an ending that could not be recorded
    loop.apply_closed(state, step, head)


def _ways(error: BaseException) -> list[str]:
    """By which a conversation that is too long may be made shorter, as the activity says (``Verdict.details``)."""
    cause = error.__cause__
    details = cause.details if isinstance(cause, ApplicationError) else ()
    said = details[0] if details else None
    return [str(way) for way in said.get("compaction", ())] if isinstance(said, dict) else []
