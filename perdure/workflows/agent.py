"""``AgentWorkflow``: carries out what the pure loop decides, and remembers what it answers.

    signals, updates → receive ─┐
                                ├→ RunState → decide → CallModel · RunCalls · Remind · Close · Wait · End · …
    outcomes → apply ───────────┘

The state is all there is: continue-as-new hands it on, a query shows it, an end returns what is in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, assert_never

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from .. import loop
from ..errors import InvalidInputError, PerdureError
from ..loop.subagents import child_used
from ..types.interface import WORKFLOW
from ..types.messages import clean
from ..types.state import NewerStateError, RunState
from . import host, steps
from .background import Children, report
from .branches import run_branch
from .calls import remind, run_calls
from .indexing import indexing
from .work import Work

Answer = TypeVar("Answer")
CARRIED_BYTES = 1_500_000
"""Temporal ends a run that continues as new with more than 2 MB."""


@workflow.defn(name=WORKFLOW, sandboxed=False)
class AgentWorkflow:
    """One conversation. Its id is the ``context_id``; its input and its handlers' arguments are plain JSON."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._early: list[Callable[[RunState], object]] = []
        self._since: str | None = None
        self._step: loop.Next | None = None

    # Handlers and entry take any number of arguments: a wrong number would fail the workflow task for ever.

    @workflow.run
    async def run(self, raw: Any = None, *more: Any) -> dict[str, Any]:
        """Drive the conversation to its end; the result is a ``Response`` without its messages."""
        state = self._open([raw, *more] if more else raw)
        with indexing(state, lambda: self._step):
            return await self._drive(state)

    async def _drive(self, state: RunState) -> dict[str, Any]:
        work = Work(lambda: state.interrupt is not None)
        children = Children(state)
        while True:
            if work.cancelling() and not state.cancelled:
                loop.cancel(state)
            loop.stopped(state)
            now = host.now()
            loop.tick(state, now)
            loop.settle(state)
            loop.ask(state, now)
            loop.gather(state)
            self._step = step = loop.decide(state)
            self._since = now.isoformat()
            if children.due(step, now.timestamp()):
                await work.finish(children.look(now.timestamp()), stop=False)
                continue
            match step:
                case loop.CallModel():
                    await self._continue_as_new_if_long(state)
                    if not work.stopping():
                        await work.through([steps.call_model(state, step, work.stopping)])
                case loop.Compact():
                    await self._continue_as_new_if_long(state)
                    if not work.stopping():
                        await work.through([steps.compact(state, step, work.stopping)])
                case loop.RunCalls(calls=calls):
                    await run_calls(state, calls, work, children)
                case loop.RunBranches(branches=branches):
                    await work.through([run_branch(state, branch, work.stopping) for branch in branches])
                case loop.Remind():
                    await remind(state, work, children)
                case loop.Close():
                    await work.finish(steps.record(state, step, work.cancelling), stop=not state.cancelled)
                case loop.Wait():
                    look = children.next_look(step, now.timestamp())
                    if step.until in ("approval", "child") or look is not None:  # for months, maybe
                        await self._continue_as_new_if_long(state)
                    await self._wait(state, step, look)
                    loop.tick(state, host.now(), working=step.until == "child")
                case loop.StopChildren():
                    await work.finish(children.stop(), stop=False)
                case loop.Report():
                    await work.finish(report(state, step), stop=False)
                case loop.End(status=ended):
                    return self._end(state, ended)
                case _:
                    assert_never(step)

    # --- handlers: they only append to the state, and need no agent code

    @workflow.signal
    def inject_user_message(self, message: Any = None, *_: Any) -> None:
        """A message that joins the conversation at the next iteration: a string, or ``{"content", "id"}``."""
        self._tell(lambda state: loop.receive(state, message))

    @workflow.update
    async def send_message(self, message: Any = None, *_: Any) -> dict[str, Any]:
        """The same from whoever waits for the answer: ``{"task_id"}`` of the turn that the message joins or opens."""
        return {"task_id": await self._answer(lambda state: loop.send(state, message))}

    @send_message.validator
    def _check_message(self, message: Any = None, *_: Any) -> None:
        """A message that is refused here leaves no trace in history."""
        try:
            loop.check_message(self._state, message)
        except PerdureError as error:
            raise _as_failure(error) from None

    @workflow.update
    async def decide_approval(self, decision: Any = None, *_: Any) -> dict[str, Any]:
        """Approve or deny a call that waits: ``{"call_id", "decision", "by", "comment", "always", …}``."""
        decided = await self._answer(lambda state: loop.decide_approval(state, decision, host.now()))
        return decided.model_dump(mode="json", exclude_none=True)

    @decide_approval.validator
    def _check_approval(self, decision: Any = None, *_: Any) -> None:
        """One that comes too late, or fits no call, leaves no trace in history."""
        try:
            loop.check_approval(self._state, decision, host.now())
        except PerdureError as error:
            raise _as_failure(error) from None

    @workflow.update
    async def revoke_approval(self, which: Any = None, *_: Any) -> dict[str, Any]:
        """Nobody approves every call of a tool any more: ``{"tool", "by"}``. What had stood is in ``revoked``."""
        gone = await self._answer(lambda state: loop.revoke(state, which))
        return {"revoked": [one.model_dump(mode="json") for one in gone]}

    @revoke_approval.validator
    def _check_revocation(self, which: Any = None, *_: Any) -> None:
        """One that fits nothing leaves no trace in history."""
        try:
            loop.check_revocation(self._state, which)
        except PerdureError as error:
            raise _as_failure(error) from None

    @workflow.update
    async def answer_call(self, answer: Any = None, *_: Any) -> dict[str, Any]:
        """Answer a call that waits for it: ``{"call_id", "value" or "error", "by", "hash"}``."""
        answered = await self._answer(lambda state: loop.answer_call(state, answer, host.now()))
        return answered.model_dump(mode="json", exclude_none=True)

    @answer_call.validator
    def _check_answer(self, answer: Any = None, *_: Any) -> None:
        """One that comes too late, or is none, leaves no trace in history."""
        try:
            loop.check_answer(self._state, answer, host.now())
        except PerdureError as error:
            raise _as_failure(error) from None

    @workflow.signal
    def interrupt(self, message: Any = None, *_: Any) -> None:
        """Stop what is in flight. With a message the turn goes on with it, without one it ends."""
        self._tell(lambda state: loop.interrupt(state, message))

    @workflow.signal
    def close(self, *_: Any) -> None:
        """End a session after its current turn."""
        self._tell(loop.close)

    @workflow.signal
    def resume(self, how: Any = None, *_: Any) -> None:
        """The cause of a pause is gone: try the same step again. ``{"limits": {"cost_usd": 5}}`` raises limits."""
        self._tell(lambda state: loop.resume(state, how))

    @workflow.signal
    def child_ended(self, ended: Any = None, *_: Any) -> None:
        """A subagent in background has ended: a ``ChildEnded``. Only what it was given to prove itself counts."""
        self._tell(lambda state: loop.child_ended(state, ended))

    @workflow.signal
    def probe(self, *_: Any) -> None:
        """Somebody looks whether the run is still there: to a closed one, no signal is delivered."""

    @workflow.query
    def status(self, *_: Any) -> dict[str, Any]:
        """What the run is at, or waits for: a ``Status``."""
        return loop.status(self._begun(), self._since).model_dump(mode="json")

    @workflow.query
    def turn(self, task_id: Any = None, *_: Any) -> dict[str, Any]:
        """How a turn stands, and its answer: a ``TurnStatus``. Without a ``task_id`` the present or last turn."""
        asked = task_id if isinstance(task_id, str) else None
        return loop.turn_status(self._begun(), asked).model_dump(mode="json", exclude_none=True)

    def _begun(self) -> RunState:
        if self._state is None:
            raise ApplicationError("the run has not begun", type="RunNotFoundError", non_retryable=True)
        return self._state

    async def _answer(self, asked: Callable[[RunState], Answer]) -> Answer:
        """What ``asked`` answers on the state. Raises what it raises, as it crosses Temporal."""
        given: list[Answer] = []
        refused: list[PerdureError] = []

        def take(state: RunState) -> None:
            try:
                given.append(asked(state))
            except PerdureError as error:
                refused.append(error)

        self._tell(take)
        if not given and not refused:  # the input is not read yet; else a run that ends now would end before this
            await host.wait_condition(lambda: bool(given or refused))
        if refused:
            raise _as_failure(refused[0])
        return given[0]

    def _tell(self, told: Callable[[RunState], object]) -> None:
        """They may arrive before the input is read, with signal-with-start for instance."""
        if self._state is None:
            self._early.append(told)
        else:
            told(self._state)

    # --- around the steps

    def _open(self, raw: Any) -> RunState:
        info = host.info()
        scope = info.first_execution_run_id
        if info.cron_schedule and info.continued_run_id:  # every run of a cron has the same first one
            scope += f"/{info.continued_run_id}"
        try:
            state = loop.open_state(raw, info.workflow_id, scope)
        except NewerStateError:
            raise  # fails the task, not the run: Temporal offers it to the other workers
        except InvalidInputError as error:
            raise _as_failure(error) from None
        self._state = state
        for told in self._early:
            told(state)
        self._early.clear()
        return state

    async def _wait(self, state: RunState, step: loop.Wait, look: float | None) -> None:
        idle = state.idle_timeout if step.until == "message" else None
        times = [at for at in (step.deadline, look) if at is not None]
        if times:
            idle = max(min(times) - host.now().timestamp(), 0.001)
        try:
            with suppress(asyncio.CancelledError):  # the loop is told of it before its next decision
                await host.wait_condition(
                    lambda: state.interrupt is not None or loop.decide(state) != step,
                    timeout=idle,
                    timeout_summary=_timer(step) if idle else None,
                )
        except TimeoutError:
            # Unless a message came together with the end of the time.
            if step.until == "message" and loop.decide(state) == step:
                loop.close(state)

    def _end(self, state: RunState, ended: str) -> dict[str, Any]:
        failure = state.turn.failure if state.turn else None
        if ended == "failed" and failure is not None:
            details = [child_used(state)] if state.parent is not None else []
            raise ApplicationError(failure.message, *details, type=failure.type, non_retryable=True)
        if ended == "cancelled":
            raise asyncio.CancelledError("the run was cancelled")
        response = loop.response(state)
        if state.parent is not None:
            response = response.model_copy(update={"tool_calls": state.tool_calls})
        return response.model_dump(mode="json", exclude_none=True)

    async def _continue_as_new_if_long(self, state: RunState) -> None:
        """Nothing is in flight before a model call, so the state is all that a new execution needs."""
        info = host.info()
        most = state.max_history_events
        long = info.is_continue_as_new_suggested() or (most is not None and info.get_current_history_length() > most)
        if not long:
            return
        try:
            await host.wait_condition(host.all_handlers_finished)
        except asyncio.CancelledError:
            return
        carried = loop.carry_over(state)
        if len(json.dumps(carried)) < CARRIED_BYTES:  # else the model calls first take the waiting messages in
            host.continue_as_new(carried)


def _timer(step: loop.Wait) -> str:
    return {"approval": "approval expires", "message": "idle timeout"}.get(step.until, "look after subagents")


def _as_failure(error: PerdureError) -> ApplicationError:
    return ApplicationError(clean(str(error)), type=type(error).__name__, non_retryable=True)
