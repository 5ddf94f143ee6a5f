"""The steps of a run as activities: what is sent, and what their outcomes mean for the state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..loop.children import outcomes
from ..loop.external_calls import arguments_of
from ..loop.finish import used
from ..loop.lifecycle import ENDING, PAUSING
from ..loop.limits import calls_left, cost_inherited
from ..loop.messages import given
from ..loop.turns import overrides
from ..types.approvals import Revoked
from ..types.state import PendingCall, RunState
from ..types.subagents import AsTell
from ..types.tool_calls import AsActivity, AsCallback, AsRemote, AsSubagent
from ..types.wire import MODEL_ACTIVITY, TOOL_ACTIVITY, ModelInput, ModelOutput, NewResult, ToolInput, ToolOutput
from . import host
from .activity_options import cause, close_options, facts, model_options, plain, stopped, tool_options
from .child_workflows import Children, run_subagent
from .external_calls import run_callback, run_remote
from .step_tasks import Work

TOO_LONG = "ContextLengthError"


async def call_model(state: RunState, step: loop.CallModel, work: Work) -> None:
    """Call the model with what is new."""
    task = work.guard.apply(state, "the input of a model call", lambda: _model_input(state, step))
    if task is None:
        return
    revoked, resend = tuple(state.revoked), state.resend
    try:
        raw = await host.execute_activity(MODEL_ACTIVITY, task, **model_options())
    except ActivityError as error:
        if stopped(error) and work.stopping():
            return  # the loop is told before its next decision
        failure = error
        work.guard.apply(state, "the failure of a model call", lambda: _model_failed(state, failure))
    else:
        work.guard.apply(
            state, "the outcome of a model call", lambda: _model_answered(state, step, revoked, resend, raw)
        )


def _model_input(state: RunState, step: loop.CallModel) -> dict[str, Any]:
    usage, cost_usd = used(state)
    new = given(state, step.new)
    return plain(
        ModelInput(
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
            resend=state.resend,
            used=usage,
            cost_usd=cost_usd,
            rejected=state.turn.rejected or None if state.turn else None,
            limit=step.limit,
            calls_left=calls_left(state),
            branches=outcomes(state),
            cost_limited=cost_inherited(state),
            revoked=tuple(state.revoked),
        )
    )


def _model_failed(state: RunState, error: ActivityError) -> None:
    kind, message = cause(error)
    if kind in PAUSING:
        loop.pause(state, f"{kind}: {message}", host.now().isoformat())
    elif kind != TOO_LONG:
        loop.fail(state, kind, message)
    elif not loop.too_long(state, _ways(error)):
        loop.fail(state, kind, message + loop.tried(state))


def _model_answered(state: RunState, step: loop.CallModel, revoked: Sequence[Revoked], resend: bool, raw: Any) -> None:
    loop.told_revoked(state, revoked)
    output = ModelOutput.model_validate(raw)
    if resend and not output.branches:  # a resume that came meanwhile is for the next call
        state.resend = False
    loop.apply_model(state, step, output)


async def compact(state: RunState, step: loop.Compact, work: Work) -> None:
    """Have the conversation written anew, shorter. What is new since the head waits for the call that follows."""
    task = work.guard.apply(
        state,
        "the input of a compaction",
        lambda: plain(
            ModelInput(
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
        ),
    )
    if task is None:
        return
    try:
        raw = await host.execute_activity(MODEL_ACTIVITY, task, **model_options())
    except ActivityError as error:
        if stopped(error) and work.stopping():
            return  # it is compacted before the next call that there is
        kind, message = cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", host.now().isoformat())
        else:
            loop.fail(state, kind, f"the conversation could not be summed up: {message}")
    else:
        work.guard.apply(
            state, "the outcome of a compaction", lambda: loop.apply_compacted(state, ModelOutput.model_validate(raw))
        )


async def run_call(state: RunState, pending: PendingCall, work: Work, children: Children) -> None:
    """Run one tool call."""
    call, how = pending.call, pending.call.disposition
    match how:
        case AsSubagent(background=None):
            await run_subagent(state, pending, work)
        case AsSubagent():
            await children.start(pending, how)
        case AsTell():
            await children.tell(pending, how)
        case AsRemote():
            await run_remote(state, pending, how, work)
        case AsCallback():
            await run_callback(state, pending, work)
        case AsActivity():
            await _run_tool(state, pending, how, work)
        case _:
            text = f"this engine cannot run a call as {how.kind}"
            refused = NewResult(call_id=call.id, name=call.name, text=text, is_error=True)
            loop.apply_result(state, pending.op, refused)


async def _run_tool(state: RunState, pending: PendingCall, how: AsActivity, work: Work) -> None:
    call = pending.call
    task = work.guard.apply(
        state,
        "the input of a tool call",
        lambda: plain(
            ToolInput(
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
        ),
    )
    if task is None:
        return
    try:
        raw = await host.execute_activity(TOOL_ACTIVITY + call.name, task, **tool_options(how))
    except ActivityError as error:
        if is_cancelled_exception(error) and work.stopping():
            return  # closed by the loop
        kind, message = cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", host.now().isoformat())
            return  # the call is run when the run is resumed
        if kind in ENDING and how.task_queue is None:  # workers of another queue may not have the agent
            loop.fail_after_calls(state, kind, message)
        result = NewResult(call_id=call.id, name=call.name, text=f"{kind}: {message}", is_error=True)
        work.guard.apply(state, "the failure of a tool call", lambda: loop.apply_result(state, pending.op, result))
    else:
        work.guard.apply(state, "the outcome of a tool call", lambda: _tool_returned(state, pending, raw))


def _tool_returned(state: RunState, pending: PendingCall, raw: Any) -> None:
    output = ToolOutput.model_validate(raw)
    if output.question is not None:
        loop.ask_person(state, pending.op, output.question, host.now())
        return  # the call is run again when the question is answered
    if output.status == "aborted":  # before the result, which may be what ends the turn at a limit
        loop.abort(state, output.content or "")
    call = pending.call
    result = NewResult(call_id=call.id, name=call.name, key=output.key, is_error=output.is_error)
    loop.apply_result(state, pending.op, result)


def send_reminders(state: RunState, work: Work) -> Coroutine[Any, Any, None]:
    """Send the reminders that are due; to be awaited."""
    return _remind(state, work.guard.apply(state, "a reminder", lambda: _reminder(state)), work)


def _reminder(state: RunState) -> tuple[loop.Reminding, dict[str, Any]]:
    due = loop.remind(state, host.now())
    task = ModelInput(
        **facts(state, due.op),
        head=state.head,
        purpose="remind",
        reminders=due.reminders,
        overrides=overrides(state),
    )
    return due, plain(task)


async def _remind(state: RunState, reminder: tuple[loop.Reminding, dict[str, Any]] | None, work: Work) -> None:
    """A reminder that fails is dropped: the run goes on. It is cancelled when its calls wait no longer."""
    if reminder is None:
        return
    told, task = reminder
    telling = asyncio.create_task(host.execute_activity(MODEL_ACTIVITY, task, **model_options()))
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
        elif not work.stopping():
            loop.abort(state, message)


async def record(state: RunState, step: loop.Close, work: Work) -> None:
    """Record how the run, or a turn of it, ended."""
    task = work.guard.apply(state, "the input of an ending", lambda: _closing_input(state, step))
    if task is None:
        return
    revoked = tuple(state.revoked)
    try:
        raw = await host.execute_activity(MODEL_ACTIVITY, task, **close_options(cancelled=state.cancelled))
    except ActivityError as error:
        if stopped(error) and not state.cancelled and work.cancelling():
            return  # the ending is another one now
        host.logger().error("the ending could not be recorded: %s", cause(error)[1])
        raw = {}
    work.guard.apply(state, "the record of an ending", lambda: _closed(state, step, revoked, raw))


def _closing_input(state: RunState, step: loop.Close) -> dict[str, Any]:
    new = given(state, step.new)
    return plain(
        ModelInput(
            **facts(state, state.op),
            head=state.head,
            new=new,
            purpose="close",
            closing=step.closing,
            mode=state.mode if state.mode != "run" else None,
            resume=state.resume or None,
            revoked=tuple(state.revoked),
        )
    )


def _closed(state: RunState, step: loop.Close, revoked: Sequence[Revoked], raw: Any) -> None:
    # Also where it could not be recorded: no other attempt is made of such an ending.
    loop.told_revoked(state, revoked)
    loop.apply_closed(state, step, ModelOutput.model_validate(raw).head)


def _ways(error: BaseException) -> list[str]:
    """By which a conversation that is too long may be made shorter, as the activity says (``Verdict.details``)."""
    cause = error.__cause__
    details = cause.details if isinstance(cause, ApplicationError) else ()
    said = details[0] if details else None
    return [str(way) for way in said.get("compaction", ())] if isinstance(said, dict) else []


# ---
# The tool calls of a reply, under way: all at once, and those that a person decides on meanwhile beside them; and the
# reminders of those that wait.


async def run_calls(state: RunState, calls: Iterable[PendingCall], work: Work, children: Children) -> None:
    """Run ``calls`` to their end, and those that are decided on by then."""
    beside = _Calls(state, work, children)
    await work.through(beside.of(calls), beside)


async def remind_while_running(state: RunState, work: Work, children: Children) -> None:
    """Tell of the calls that still wait, while those begin that are decided on."""
    await work.through([send_reminders(state, work)], _Calls(state, work, children))


class _Calls:
    """See :class:`~.work.More`."""

    def __init__(self, state: RunState, work: Work, children: Children) -> None:
        self._state = state
        self._work = work
        self._children = children
        self._flying: set[int] = set()
        """Operations of the calls that are under way."""
        self._due: float | None = None
        """When a call expires that waits for a person, as far as that is known here."""

    def of(self, calls: Iterable[PendingCall]) -> list[Coroutine[Any, Any, None]]:
        """``calls``, to be awaited."""
        return [self._run(pending) for pending in calls]

    def there(self) -> bool:
        """See base."""
        joining = loop.joining(self._state, self._flying)
        return bool(loop.due(self._state) or joining) or loop.expiry(self._state) != self._due

    def timeout(self) -> float | None:
        """See base: when a reminder is due, or the wait for a person ends."""
        self._due = loop.expiry(self._state)
        at = self._next()
        return None if at is None else max(at - host.now().timestamp(), 0.001)

    def _next(self) -> float | None:
        ends = [loop.beside(self._state), self._due]
        return min((at for at in ends if at is not None), default=None)

    def begin(self) -> list[Coroutine[Any, Any, None]]:
        """See base."""
        begun: list[Coroutine[Any, Any, None]] = []
        if self._next() is not None:
            self._work.guard.apply(self._state, "the wait for a person", lambda: loop.ask(self._state, host.now()))
        if self._state.pause is not None and self._state.pause.fault:
            return begun
        if loop.due(self._state):
            begun.append(send_reminders(self._state, self._work))
        return begun + self.of(loop.joining(self._state, self._flying))

    def _run(self, pending: PendingCall) -> Coroutine[Any, Any, None]:
        self._flying.add(pending.op)

        async def run() -> None:
            try:
                await run_call(self._state, pending, self._work, self._children)
            finally:
                self._flying.discard(pending.op)

        return run()
