"""``AgentWorkflow``: carries out what the pure loop decides, and remembers what it answers.

    signals, updates → receive ─┐
                                ├→ RunState → decide → CallModel · RunCalls · Remind · Close · Wait · End · …
    outcomes → apply ───────────┘

The state is all there is: continue-as-new hands it on, a query shows it, an end returns what is in it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, assert_never

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from .. import loop
from ..errors import InvalidInputError
from ..loop.payload_limits import CARRIED_BYTES
from ..loop.subagents import child_used
from ..types.interface import WORKFLOW
from ..types.plain_json import size
from ..types.state import RunState
from . import host, steps
from .child_workflows import Children, report, run_branch
from .handlers import Handlers, as_failure, decoded, raw_argument
from .host import ensure_commands
from .search_attributes import indexing
from .step_tasks import Work
from .steps import remind_while_running, run_calls


@workflow.defn(name=WORKFLOW, sandboxed=False)
class AgentWorkflow(Handlers):
    """One conversation. Its id is the ``context_id``; its input and its handlers' arguments are plain JSON."""

    def __init__(self) -> None:
        super().__init__()
        self._step: loop.Next | None = None
        self._too_large = False
        """The state was too large to be continued as new with, when that was last due."""

    @workflow.run
    @raw_argument
    async def run(self, raw: Any = None, *more: Any) -> dict[str, Any]:
        """Drive the conversation to its end; the result is a ``Response`` without its messages."""
        state = self._open(raw, *more)
        with ensure_commands(state) as self._progress, indexing(state, lambda: self._step):
            return await self._drive(state)

    async def _drive(self, state: RunState) -> dict[str, Any]:
        work = Work(lambda: state.interrupt is not None, self._guard)
        children = Children(state, self._guard)
        while True:
            if work.cancelling() and not state.cancelled:
                loop.cancel(state)
            now = host.now()
            planned = self._guard.apply(state, "the next step", partial(_plan, state, now))
            self._step = step = planned or loop.Wait("resumed")
            self._since = now.isoformat()
            if children.due(step, now.timestamp()):
                await work.finish(children.look(now.timestamp()), stop=False)
                continue
            match step:
                case loop.CallModel():
                    await self._continue_as_new_if_long(state)
                    if not work.stopping():
                        await work.through([steps.call_model(state, step, work)])
                case loop.Compact():
                    await self._continue_as_new_if_long(state)
                    if not work.stopping():
                        await work.through([steps.compact(state, step, work)])
                case loop.RunCalls(calls=calls):
                    await run_calls(state, calls, work, children)
                case loop.RunBranches(branches=branches):
                    await work.through([run_branch(state, branch, work) for branch in branches])
                case loop.Remind():
                    await remind_while_running(state, work, children)
                case loop.Close():
                    await work.finish(steps.record(state, step, work), stop=not state.cancelled)
                case loop.Wait():
                    await self._continue_as_new_if_long(state)  # it may wait for months
                    await self._wait(state, step, children.next_look(step, now.timestamp()))
                    loop.tick(state, host.now(), working=step.until == "child")
                case loop.StopChildren():
                    await work.finish(children.stop(), stop=False)
                case loop.Report():
                    await work.finish(report(state, step, self._guard), stop=False)
                case loop.End(status=ended):
                    result = self._guard.apply(state, "the result", lambda: _result(state, ended))
                    if result is not None:
                        return _end(ended, result)
                case _:
                    assert_never(step)

    # --- around the steps

    def _open(self, *arguments: Any) -> RunState:
        info = host.info()
        scope = info.first_execution_run_id
        if info.cron_schedule and info.continued_run_id:  # every run of a cron has the same first one
            scope += f"/{info.continued_run_id}"
        try:
            values = [decoded(argument) for argument in arguments]
            raw: Any = values[0] if len(values) == 1 else values
            carried = loop.continues(raw, info.continued_run_id)
            parent = info.parent.workflow_id if info.parent else None
            state = None if carried else loop.open_state(raw, info.workflow_id, scope, parent)
        except InvalidInputError as error:
            raise as_failure(error) from None
        except Exception as error:
            why = InvalidInputError(f"the input cannot be read: {type(error).__name__}: {error}")
            raise as_failure(why) from None
        if state is None:  # what is wrong here fails the task, not the run: another worker may be able to go on
            state = loop.continue_state(raw, info.workflow_id)
        self._begin(state)
        return state

    async def _wait(self, state: RunState, step: loop.Wait, look: float | None) -> None:
        idle = state.idle_timeout if step.until == "message" else None
        times = [at for at in (step.deadline, look) if at is not None]
        if times:
            idle = max(min(times) - host.now().timestamp(), 0.001)
        try:
            with suppress(asyncio.CancelledError):  # the loop is told of it before its next decision
                await host.wait_condition(
                    lambda: state.interrupt is not None or _is_past(state, step) or self._is_long(state),
                    timeout=idle,
                    timeout_summary=_timer(step) if idle else None,
                )
        except TimeoutError:
            # Unless a message came together with the end of the time.
            if step.until == "message" and not _is_past(state, step):
                loop.close(state)

    async def _continue_as_new_if_long(self, state: RunState) -> None:
        """Nothing is in flight before a model call and in a wait, so the state is all that a new execution needs."""
        self._too_large = False
        if not self._is_long(state):
            return
        try:
            await host.wait_condition(host.all_handlers_finished)
        except asyncio.CancelledError:
            return
        carried = self._guard.apply(state, "the next execution", lambda: loop.carry_over(state, host.info().run_id))
        # Where it is too large, the model calls first take the waiting messages in.
        self._too_large = carried is None or size(carried) > CARRIED_BYTES
        if carried is not None and not self._too_large:
            host.continue_as_new(carried)

    def _is_long(self, state: RunState) -> bool:
        """Whether the history is so long that the run is continued as new, where it can be."""
        if self._too_large:
            return False
        info, most = host.info(), state.max_history_events
        return info.is_continue_as_new_suggested() or (most is not None and info.get_current_history_length() > most)


def _plan(state: RunState, now: datetime) -> loop.Next:
    loop.stopped(state)
    loop.tick(state, now)
    loop.settle(state)
    loop.ask(state, now)
    loop.gather(state)
    return loop.decide(state)


def _is_past(state: RunState, step: loop.Wait) -> bool:
    """Whether something else comes next than ``step``."""
    try:
        return loop.decide(state) != step
    except Exception:  # it is for the next step to fail, where that pauses the run
        return state.pause is None


def _result(state: RunState, ended: str) -> dict[str, Any] | ApplicationError:
    """A ``Response`` without its messages, or what the run failed with."""
    failure = state.turn.failure if state.turn else None
    if ended == "failed" and failure is not None:
        details = [child_used(state)] if state.parent is not None else []
        return ApplicationError(failure.message, *details, type=failure.type, non_retryable=True)
    response = loop.response(state)
    if state.parent is not None:
        response = response.model_copy(update={"tool_calls": state.tool_calls})
    return response.model_dump(mode="json", exclude_none=True)


def _end(ended: str, result: dict[str, Any] | ApplicationError) -> dict[str, Any]:
    if ended == "cancelled":
        raise asyncio.CancelledError("the run was cancelled")
    if isinstance(result, ApplicationError):
        raise result
    return result


def _timer(step: loop.Wait) -> str:
    return {"approval": "approval expires", "message": "idle timeout"}.get(step.until, "look after subagents")
