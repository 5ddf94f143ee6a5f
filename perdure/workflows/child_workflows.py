"""Subagents in background: children that the run does not wait for, and that outlive its executions, but not itself.

In the execution that started one, Temporal says when it is closed. A later one hears of its end by a signal alone, so
it looks after those that a call waits for: a signal to a closed run fails. In the same way a run in background looks
whether its parent is still there: one that was terminated could not stop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.common import TypedSearchAttributes
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from .. import loop
from ..loop import background
from ..loop.children import awaited, run_id, running
from ..loop.subagents import CANCELLED, read_used
from ..types.interface import WORKFLOW, Response
from ..types.state import PendingBranch, PendingCall, RunState
from ..types.subagents import AsTell, BackgroundRun, BranchOutcome
from ..types.tool_calls import AsSubagent
from ..types.validation_errors import describe_validation_error
from ..types.wire import NewResult
from . import host
from .activity_options import background_options, child_options
from .guard import Guard
from .search_attributes import of_child
from .step_tasks import Work

# ---
# Calls of other agents: each is a child workflow, which the run waits for, and stops when it is stopped itself.


async def run_subagent(state: RunState, pending: PendingCall, work: Work) -> None:
    """Run the child to its end. An interrupt of the run interrupts the child, which then says what it has used."""
    start = work.guard.apply(state, "the start of a subagent", lambda: loop.child_start(state, pending))
    if isinstance(start, NewResult):
        loop.apply_result(state, pending.op, start)
    if not isinstance(start, dict):
        return
    ended = await run_child(state, loop.child_id(state, pending), start)
    stopping = work.stopping() and loop.was_stopped(ended)
    work.guard.apply(state, "the end of a subagent", lambda: loop.apply_child(state, pending, ended, stopping=stopping))


async def run_child(state: RunState, id: str, start: dict[str, Any]) -> loop.Ended:
    """How the child run ended that ``start`` begins. An interrupt of the run interrupts it."""
    try:
        child = await _started(id, start, of_child(state, start["agent"]))
        await _end(child, lambda: state.interrupt is not None)
        return ended_with(child.result())
    except asyncio.CancelledError:
        return loop.Ended(error=CANCELLED)
    except FailureError as error:
        return failed(error)


async def _started(id: str, start: dict[str, Any], found: TypedSearchAttributes | None) -> asyncio.Task[Any]:
    """The child that has begun. A start that is cancelled would leave one behind that nobody waits for: it is let
    begin, and then stopped like any other. Raises ``FailureError``."""
    given = {"memo": {"agent": start["agent"]}, "search_attributes": found} | child_options()
    starting = asyncio.create_task(host.start_child_workflow(WORKFLOW, start, id=id, **given))
    stopped = False
    while not starting.done():
        try:
            await host.wait([starting])
        except asyncio.CancelledError:
            stopped = True
    child = starting.result()
    if stopped:
        child.cancel()
    return child


async def _end(child: asyncio.Task[Any], interrupted: Callable[[], bool]) -> None:
    """Until ``child`` has ended, however it does."""
    while not child.done():
        try:
            await host.wait([child])
        except asyncio.CancelledError:
            if interrupted() and not child.done():
                await _interrupt(child)
            else:
                child.cancel()


async def _interrupt(child: asyncio.Task[Any]) -> None:
    try:
        await host.signal_child(child, "interrupt")
    except (FailureError, asyncio.CancelledError):  # it has ended meanwhile, or is to end: waiting goes on
        child.cancel()


def ended_with(result: Any) -> loop.Ended:
    """How a child ended that gave a result. One that is not of this engine's form is an error of the child."""
    try:
        return loop.Ended(Response.model_validate(result))
    except ValidationError as error:
        why = describe_validation_error(error, "the result")
        return loop.Ended(error=f"RunError: the subagent's result cannot be read: {why}")


def failed(error: FailureError) -> loop.Ended:
    """How a child ended that did not end well."""
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    if isinstance(cause, ApplicationError):
        return loop.Ended(error=f"{cause.type}: {cause.message}", used=read_used(cause.details))
    if is_cancelled_exception(error):
        return loop.Ended(error=CANCELLED)
    if isinstance(cause, TerminatedError):
        return loop.Ended(error="the subagent was terminated before it had an answer")
    return loop.Ended(error=f"{type(cause).__name__}: {cause}")


def was_lost(error: BaseException) -> bool:
    """Whether the child could neither say anything at its end, nor close its transcript."""
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    return isinstance(cause, TerminatedError | TemporalTimeoutError)


FIRST_LOOK, LONGEST_LOOK = 30.0, 600.0
"""Seconds until a run that a call waits for is looked after again: at first, and in the end."""
LOOK_FOR_PARENT, LONGEST_FOR_PARENT = 3600.0, 24 * 3600.0
"""Seconds until a run in background looks again whether its parent is there: at first, and in the end. A look costs an
idle parent four events of history, for each of its subagents."""
STOPPING = timedelta(seconds=60)
"""How long a run that ends waits for those that it has stopped."""
EXTERNAL_RUN_GONE = "ExternalWorkflowExecutionNotFound"


class Children:
    """Those of one execution of a run; and, for a run in background, its parent."""

    def __init__(self, state: RunState, guard: Guard) -> None:
        self._state = state
        self._guard = guard
        self._watched: dict[str, asyncio.Task[Any]] = {}
        """By handle: those that this execution has started."""

    # --- calls

    async def start(self, pending: PendingCall, how: AsSubagent) -> None:
        """Start what the call asks for; the call ends as soon as that has begun."""
        state = self._state
        if len(running(state)) >= (how.background or 0):
            await self._look_at(running(state))  # one that is lost holds no place
        prepared = self._guard.apply(state, "the start of a subagent", lambda: background.prepare(state, pending))
        if prepared is None:
            return
        row, start = prepared
        try:
            given = {"memo": {"agent": row.agent}, "search_attributes": of_child(state, row.agent)}
            options = given | background_options()
            child = await _whole(host.start_child_workflow(WORKFLOW, start, id=run_id(state, row), **options))
        except FailureError as error:
            background.not_started(state, row, f"{type(error).__name__}: {error}")
            return
        self._watched[row.handle] = child
        child.add_done_callback(lambda task: self._closed(row, task))
        self._guard.apply(state, "the start of a subagent", lambda: background.started(state, row))

    async def tell(self, pending: PendingCall, how: AsTell) -> None:
        """Send the message. Sent twice, it counts once."""
        state = self._state
        row = background.to_tell(state, pending, how.handle)
        if row is not None and row.state == "starting":  # by a call beside this one: nobody is there yet to hear it
            began = row
            await _whole(host.wait_condition(lambda: began.state != "starting"))
            row = background.to_tell(state, pending, how.handle)
        if row is None:
            return
        message: dict[str, Any] = {"content": how.message, "id": f"{state.scope}/{pending.op}", "by": state.agent}
        if how.blob is not None:
            message |= {"content": how.blob.model_dump(mode="json"), "store_id": state.store_id}
        error = await self._signal(row, "inject_user_message", message)
        background.told(state, pending, None if error is None else f"not delivered: {error}")

    def _closed(self, row: BackgroundRun, task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # this worker lets go of the run
            return
        error = task.exception()
        if error is None:
            ended = ended_with(task.result())
        elif isinstance(error, FailureError):
            ended = failed(error)
        else:
            raise error
        lost = error is not None and was_lost(error)
        host.record_received()
        self._guard.apply(
            self._state,
            "the end of a subagent",
            lambda: background.child_closed(self._state, row, ended, lost=lost),
        )

    # --- looking after them

    def due(self, step: loop.Next, now: float) -> bool:
        """Whether somebody is to be looked after before ``step``."""
        at = self.next_look(step, now)
        return at is not None and at <= now

    def next_look(self, step: loop.Next, now: float) -> float | None:
        """When: seconds since 1970; None where nobody is."""
        state = self._state
        if not isinstance(step, loop.Wait | loop.CallModel) or step == loop.Wait("message"):
            return None
        times = [_next(row) for row in self._unwatched(awaited(state))] if isinstance(step, loop.Wait) else []
        if state.parent is not None and state.parent.background:
            if state.heard is None:
                state.heard = now
            times.append(_next_for_parent(state))
        return min(times, default=None)

    async def look(self, now: float) -> None:
        """Look after those who are due."""
        state, parent = self._state, self._state.parent
        await self._look_at([row for row in awaited(state) if _next(row) <= now])
        if parent is None or not parent.background or _next_for_parent(state) > now:
            return
        state.heard = now
        state.sought += 1
        try:
            await _whole(host.signal_external(parent.context_id, "probe"))
        except FailureError as error:
            if _is_gone(error):
                why = f"run {parent.context_id!r}, which had started this one in background, has ended"
                loop.fail(state, "RunClosedError", why)

    async def _look_at(self, rows: Iterable[BackgroundRun]) -> None:
        await _all(self._look_after(row) for row in self._unwatched(rows))

    async def _look_after(self, row: BackgroundRun) -> None:
        row.looks, row.looked = row.looks + 1, round(host.now().timestamp(), 3)
        await self._signal(row, "probe")

    def _unwatched(self, rows: Iterable[BackgroundRun]) -> list[BackgroundRun]:
        return [row for row in rows if row.state == "running" and row.handle not in self._watched]

    async def _signal(self, row: BackgroundRun, signal: str, *arguments: Any) -> str | None:
        """Why it could not be delivered, if so. What the run had to say of its end was said before it closed."""
        try:
            await _whole(host.signal_external(run_id(self._state, row), signal, *arguments))
        except FailureError as error:
            if not _is_gone(error):
                return str(error)
            background.child_closed(self._state, row, loop.Ended(), lost=True)
            return f"{row.handle} ({row.agent}) has ended: collect its answer"
        return None

    # --- the end

    async def stop(self) -> None:
        """Cancel those that run, and wait until they have closed their transcripts; not for ever."""
        state, rows = self._state, running(self._state)
        await _all(self._stop(row) for row in rows)
        watched = [self._watched[row.handle] for row in rows if row.handle in self._watched]
        try:
            await host.wait_condition(
                lambda: not running(state) and all(task.done() for task in watched),
                timeout=STOPPING,
                timeout_summary="subagents are stopped",
            )
        except TimeoutError:
            background.given_up(state)

    async def _stop(self, row: BackgroundRun) -> None:
        row.stopped = True
        if row.handle not in self._watched:
            await self._signal(row, "probe")
        if not row.runs:
            return
        try:
            await _whole(host.cancel_external(run_id(self._state, row)))
        except FailureError as error:
            if _is_gone(error):
                background.child_closed(self._state, row, loop.Ended(), lost=True)


async def report(state: RunState, step: loop.Report, guard: Guard) -> None:
    """Tell the parent how this run ends. One that has ended itself need not know."""
    assert state.parent is not None, "somebody started it"
    op, parent = state.op, state.parent.context_id
    ended = guard.apply(
        state,
        "the report to the parent",
        lambda: background.report(state, step.status).model_dump(mode="json", exclude_defaults=True),
    )
    if ended is None:
        return
    with suppress(FailureError):
        await _whole(host.signal_external(parent, "child_ended", ended))
    state.reported = op


async def _whole(work: Coroutine[Any, Any, Any]) -> Any:
    """What ``work`` comes to, also when somebody stops it meanwhile: it is quick, and half of it is worse. Raises what
    it raises."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await host.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(one) for one in work]
    if tasks:
        await _whole(host.wait(tasks))
    for task in tasks:
        task.result()


def _next(row: BackgroundRun) -> float:
    if row.looked is None:
        return 0.0
    return row.looked + min(LONGEST_LOOK, FIRST_LOOK * 2.0 ** min(row.looks - 1, 10))


def _next_for_parent(state: RunState) -> float:
    return (state.heard or 0.0) + min(LONGEST_FOR_PARENT, LOOK_FOR_PARENT * 2.0 ** min(state.sought, 10))


def _is_gone(error: FailureError) -> bool:
    return isinstance(error, ApplicationError) and error.type == EXTERNAL_RUN_GONE


# ---
# Branches of a step: each is a child workflow, which lives and dies with the run as a subagent does.


async def run_branch(state: RunState, branch: PendingBranch, work: Work) -> None:
    """Run the branch to its end. An interrupt of the run interrupts it, and it says what it has used."""
    start = work.guard.apply(state, "the start of a branch", lambda: loop.branch_start(state, branch))
    if isinstance(start, BranchOutcome):
        loop.settle_branch(branch, start)
    if not isinstance(start, dict):
        return
    ended = await run_child(state, loop.branch_id(state, branch), start)
    stopping = work.stopping() and loop.was_stopped(ended)
    work.guard.apply(state, "the end of a branch", lambda: loop.apply_branch(state, branch, ended, stopping=stopping))
