"""``AgentWorkflow``: carries out what the pure loop decides, and remembers what it answers.

    signals → receive ─┐
                       ├→ RunState → decide → CallModel · RunCalls · Close · Wait · End
    outcomes → apply ──┘

The state is all there is: continue-as-new hands it on, a query shows it, an end returns what is in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, assert_never

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from .. import loop
from ..errors import InvalidInputError
from ..types.state import NewerStateError, PendingCall, RunState
from ..types.wire import (
    MODEL_ACTIVITY,
    TOOL_ACTIVITY,
    WORKFLOW,
    AsActivity,
    CallFacts,
    ModelInput,
    ModelOutput,
    NewResult,
    ToolInput,
    ToolOutput,
)
from .options import close_options, model_options, tool_options

PAUSING = frozenset({"TranscriptCorruptedError", "StoreVersionError"})
"""Failures that an operator can mend, after which the same step succeeds: the run waits instead of failing."""

CARRIED_BYTES = 1_500_000
"""Temporal ends a run that continues as new with more than 2 MB."""


@workflow.defn(name=WORKFLOW, sandboxed=False)
class AgentWorkflow:
    """One conversation. Its id is the ``context_id``; its input and its handlers' arguments are plain JSON."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._early: list[Callable[[RunState], object]] = []
        self._since: str | None = None
        self._task: asyncio.Task[Any] | None = None

    # Handlers and entry take any number of arguments: a wrong number would fail the workflow task for ever.

    @workflow.run
    async def run(self, raw: Any = None, *more: Any) -> dict[str, Any]:
        """Drive the conversation to its end; the result is a ``Response`` without its messages."""
        self._task = asyncio.current_task()
        state = self._open([raw, *more] if more else raw)
        while True:
            if self._cancelling() and not state.cancelled:
                loop.cancel(state)
            step = loop.decide(state)
            self._since = workflow.now().isoformat()
            match step:
                case loop.CallModel():
                    await self._continue_as_new_if_long(state)
                    if not self._cancelling():
                        await self._through([self._call_model(state, step)])
                case loop.RunCalls(calls=calls):
                    await self._through([self._run_call(state, pending) for pending in calls])
                case loop.Close():
                    await self._through([self._close(state, step)], stop=not state.cancelled)
                case loop.Wait():
                    await self._wait(state, step)
                case loop.End(status=ended):
                    return self._end(state, ended)
                case _:
                    assert_never(step)

    # --- handlers: they only append to the state, and need no agent code

    @workflow.signal
    def inject_user_message(self, message: Any = None, *_: Any) -> None:
        """A message that joins the conversation at the next iteration: a string, or ``{"content", "id"}``."""
        self._tell(lambda state: loop.receive(state, message))

    @workflow.signal
    def close(self, *_: Any) -> None:
        """End a session after its current turn."""
        self._tell(loop.close)

    @workflow.signal
    def resume(self, *_: Any) -> None:
        """The cause of a pause is gone: try the same step again."""
        self._tell(loop.resume)

    @workflow.query
    def status(self, *_: Any) -> dict[str, Any]:
        """What the run is at, or waits for: a ``Status``."""
        if self._state is None:
            raise ApplicationError("the run has not begun", type="RunNotFoundError", non_retryable=True)
        return loop.status(self._state, self._since).model_dump(mode="json")

    def _tell(self, told: Callable[[RunState], object]) -> None:
        """Signals may arrive before the input is read, with signal-with-start for instance."""
        if self._state is None:
            self._early.append(told)
        else:
            told(self._state)

    # --- steps

    def _open(self, raw: Any) -> RunState:
        info = workflow.info()
        scope = info.first_execution_run_id
        if info.cron_schedule and info.continued_run_id:  # every run of a cron has the same first one
            scope += f"/{info.continued_run_id}"
        try:
            state = loop.open_state(raw, info.workflow_id, scope)
        except NewerStateError:
            raise  # fails the task, not the run: Temporal offers it to the other workers
        except InvalidInputError as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
        self._state = state
        for told in self._early:
            told(state)
        self._early.clear()
        return state

    async def _call_model(self, state: RunState, step: loop.CallModel) -> None:
        task = ModelInput(
            **self._facts(state, state.op, calling_model=True),
            head=state.head,
            new=step.new,
            purpose=step.purpose,
            overrides=state.overrides,
        )
        try:
            raw = await workflow.execute_activity(MODEL_ACTIVITY, _plain(task), **model_options())
        except ActivityError as error:
            self._model_failed(state, error)
        else:
            loop.apply_model(state, step, ModelOutput.model_validate(raw))

    def _model_failed(self, state: RunState, error: BaseException) -> None:
        if is_cancelled_exception(error) and self._cancelling():
            return  # the loop is told before its next decision
        kind, message = _cause(error)
        if kind in PAUSING:
            loop.pause(state, f"{kind}: {message}", workflow.now().isoformat())
        else:
            loop.fail(state, kind, message)

    async def _run_call(self, state: RunState, pending: PendingCall) -> None:
        call, how = pending.call, pending.call.disposition
        if not isinstance(how, AsActivity):
            text = f"this engine cannot run a call as {how.kind}"
            refused = NewResult(call_id=call.id, name=call.name, text=text, is_error=True)
            loop.apply_result(state, pending.op, refused)
            return
        task = ToolInput(
            **self._facts(state, pending.op),
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            head=state.head,
            definition=call.definition,
            idempotent=how.idempotent,
            retries=how.retries,
        )
        try:
            raw = await workflow.execute_activity(TOOL_ACTIVITY + call.name, _plain(task), **tool_options(how))
            output = ToolOutput.model_validate(raw)
            result = NewResult(call_id=call.id, name=call.name, key=output.key, is_error=output.is_error)
        except ActivityError as error:
            if is_cancelled_exception(error) and self._cancelling():
                return  # closed by loop.cancel
            kind, message = _cause(error)
            if kind in PAUSING:
                loop.pause(state, f"{kind}: {message}", workflow.now().isoformat())
                return  # the call is run when the run is resumed
            result = NewResult(call_id=call.id, name=call.name, text=f"{kind}: {message}", is_error=True)
        loop.apply_result(state, pending.op, result)

    async def _close(self, state: RunState, step: loop.Close) -> None:
        task = ModelInput(
            **self._facts(state, state.op),
            head=state.head,
            new=step.new,
            purpose="close",
            closing=step.closing,
        )
        try:
            raw = await workflow.execute_activity(
                MODEL_ACTIVITY, _plain(task), **close_options(cancelled=state.cancelled)
            )
            head: str | None = ModelOutput.model_validate(raw).head
        except ActivityError as error:
            if is_cancelled_exception(error) and not state.cancelled and self._cancelling():
                return  # the ending is another one now
            workflow.logger.error("the ending could not be recorded: %s", _cause(error)[1])
            head = None
        loop.apply_closed(state, step, head)

    async def _wait(self, state: RunState, step: loop.Wait) -> None:
        with suppress(asyncio.CancelledError):  # the loop is told of it before its next decision
            await workflow.wait_condition(lambda: loop.decide(state) != step)

    def _end(self, state: RunState, ended: str) -> dict[str, Any]:
        failure = state.turn.failure if state.turn else None
        if ended == "failed" and failure is not None:
            raise ApplicationError(failure.message, type=failure.type, non_retryable=True)
        if ended == "cancelled":
            raise asyncio.CancelledError("the run was cancelled")
        return loop.response(state).model_dump(mode="json", exclude_none=True)

    # --- around the steps

    def _facts(self, state: RunState, op: int, *, calling_model: bool = False) -> dict[str, Any]:
        turn = state.turn
        return CallFacts(
            agent=state.agent,
            context_id=state.context_id,
            task_id=turn.task_id if turn else "",
            scope=state.scope,
            op=op,
            iteration=(turn.iteration if turn else 0) + (1 if calling_model else 0),
            store_id=state.store_id,
            context=state.context,
        ).model_dump()

    def _cancelling(self) -> bool:
        """Whether the run was cancelled. Nothing uncancels the main task, so this stays true."""
        return self._task is not None and self._task.cancelling() > 0

    async def _through(self, work: list[Coroutine[Any, Any, None]], *, stop: bool = True) -> None:
        """Do all of ``work`` to its end. A cancellation of the run is passed on (unless not ``stop``), and what the
        activities then say was finished still counts: awaited directly, a result that comes back together with the
        cancellation would be thrown away, and ``gather`` would not wait for the others.
        """
        tasks = [asyncio.create_task(one) for one in work]
        try:
            await workflow.wait(tasks)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: True)  # met when everything that has arrived is applied
            for task in tasks if stop else []:
                task.cancel()
            await workflow.wait(tasks)
        for task in tasks:
            task.result()

    async def _continue_as_new_if_long(self, state: RunState) -> None:
        """Nothing is in flight before a model call, so the state is all that a new execution needs."""
        info = workflow.info()
        most = state.max_history_events
        long = info.is_continue_as_new_suggested() or (most is not None and info.get_current_history_length() > most)
        if not long:
            return
        try:
            await workflow.wait_condition(workflow.all_handlers_finished)
        except asyncio.CancelledError:
            return
        carried = loop.carry_over(state)
        if len(json.dumps(carried)) < CARRIED_BYTES:  # else the model calls first take the waiting messages in
            workflow.continue_as_new(carried)


def _plain(task: ModelInput | ToolInput) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude_none=True)


def _cause(error: BaseException) -> tuple[str, str]:
    """Class name and message of what an activity failed with in the end."""
    cause = error.__cause__ or error
    if isinstance(cause, ApplicationError):
        return cause.type or type(cause).__name__, cause.message
    return type(cause).__name__, str(cause)
