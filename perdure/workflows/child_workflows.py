"""Child workflows: subagents, branches, and subagents in background.

A run does not wait for its background runs; they outlive its executions, but not the run. Temporal notifies the
execution that started one of its close. A later execution learns of its end only by a signal, so it probes the runs
that a call waits for: a signal to a closed run fails. In the same way a background run probes its parent: a terminated
parent could not stop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from ..loop import background, subagents
from ..loop.apply import fail_call, finish_call
from ..loop.children import build_child_run_id, list_active_background_runs, list_awaited_background_runs
from ..loop.decide import CallModel, NextStep, ReportToParent, Wait
from ..loop.lifecycle import fail_run
from ..loop.waits import list_requesters
from ..types.interface import WORKFLOW_TYPE, Response, build_run_memo
from ..types.state import PendingBranch, RunState, ToolCallState
from ..types.subagents import BackgroundRun, BranchOutcome, TellCall
from ..types.tool_calls import SubagentCall
from ..types.validation_errors import describe_validation_error
from .guard import Guard
from .host import get_host, record_received
from .search_attributes import build_child_search_attributes
from .step_tasks import StepTasks, run_shielded

T = TypeVar("T")

# ---
# Subagent calls: each is a child workflow, which the run waits for, and stops when it is stopped itself.


async def run_subagent(state: RunState, pending: ToolCallState, tasks: StepTasks) -> None:
    """Run the child to its end. An interrupt of the run interrupts the child, which then reports its usage."""
    start = tasks.guard.change_or_pause(state, "the start of a subagent", subagents.build_child_start, pending)
    if isinstance(start, str):
        fail_call(state, pending, start)
    if not isinstance(start, dict):
        return
    ended = await run_child(state, build_child_run_id(state, pending), start)
    apply, stopping = subagents.apply_child_outcome, tasks.is_stopping()
    tasks.guard.change_or_pause(state, "the end of a subagent", apply, pending, ended, stopping=stopping)


async def run_child(state: RunState, id: str, start: dict[str, Any]) -> subagents.ChildOutcome:
    """Run the child with the input ``start``, and return its outcome. An interrupt of the run interrupts the child."""
    this_task = asyncio.current_task()
    assert this_task is not None, "a coroutine that runs"
    try:
        # It is cancelled with its parent, which waits while it closes its transcript; if the parent closes first,
        # Temporal cancels it.
        child = await _start_child_workflow(
            state,
            id,
            start,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
        )
        if this_task.cancelling():  # the run was stopped while the child started
            child.cancel()
        await _wait_for_child(state, child)
        return parse_child_result(child.result())
    except asyncio.CancelledError:
        return subagents.ChildOutcome(error=subagents.CHILD_CANCELLED)
    except FailureError as error:
        return parse_child_failure(error)


async def _start_child_workflow(state: RunState, id: str, start: dict[str, Any], **options: Any) -> asyncio.Task[Any]:
    """Start a child run, also through a cancellation, which would leave a child that nothing waits for. Raises
    ``FailureError``."""
    attributes = build_child_search_attributes(state, start["agent"])
    options |= {"memo": build_run_memo(start), "search_attributes": attributes}
    starting = get_host().start_child_workflow(WORKFLOW_TYPE, start, id=id, task_timeout=CHILD_TASK_TIMEOUT, **options)
    return await run_shielded(starting)


async def _wait_for_child(state: RunState, child: asyncio.Task[Any]) -> None:
    """Wait until ``child`` has ended. A cancellation cancels it, an interrupt of the run interrupts it."""
    while not child.done():
        try:
            await get_host().wait([child])
        except asyncio.CancelledError:
            if state.interrupt is None or child.done():
                child.cancel()
                continue
            try:
                await get_host().signal_child(child, "interrupt")
            except (FailureError, asyncio.CancelledError):  # it has ended, or the run is cancelled too
                child.cancel()


def parse_child_result(result: Any) -> subagents.ChildOutcome:
    """Parse the result of a child into its outcome; an error outcome if it is not a ``Response``."""
    try:
        return subagents.ChildOutcome(Response.model_validate(result))
    except ValidationError as error:
        problem = describe_validation_error(error, "the result")
        return subagents.ChildOutcome(error=f"RunError: the subagent's result cannot be read: {problem}")


def parse_child_failure(error: FailureError) -> subagents.ChildOutcome:
    """Build the outcome of a child that failed, was cancelled or was terminated."""
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    if isinstance(cause, ApplicationError):
        return subagents.ChildOutcome(
            error=f"{cause.type}: {cause.message}", used=subagents.parse_usage_details(cause.details)
        )
    if is_cancelled_exception(error):
        return subagents.ChildOutcome(error=subagents.CHILD_CANCELLED)
    text = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, TerminatedError):
        text = "the subagent was terminated before it had an answer"
    return subagents.ChildOutcome(error=text, lost=isinstance(cause, TerminatedError | TemporalTimeoutError))


CHILD_TASK_TIMEOUT = timedelta(seconds=5)
"""Timeout of one workflow task of a child, the same as for runs that clients start."""
STOP_CHILDREN_TIMEOUT = timedelta(seconds=60)
"""How long a run that ends waits for the background runs that it has stopped."""
LOST = subagents.ChildOutcome(lost=True)
"""Outcome of a run that has closed without a report."""
EXTERNAL_RUN_GONE = "ExternalWorkflowExecutionNotFound"


class BackgroundChildren:
    """Starts, signals, probes and stops the background runs of a run; in a background run, probes its parent."""

    def __init__(self, state: RunState, guard: Guard) -> None:
        self._state = state
        self._guard = guard
        self._child_tasks: dict[str, asyncio.Task[Any]] = {}
        """Tasks of the children that this execution has started, by handle."""

    # --- calls

    async def start_child(self, pending: ToolCallState, request: SubagentCall) -> None:
        """Start the background run that the call asks for; the call has its result as soon as the run has begun."""
        state = self._state
        if len(list_active_background_runs(state)) >= (request.background or 0):
            await self._probe_children(list_active_background_runs(state))  # lost runs free their places
        prepare = background.prepare_background_run
        prepared = self._guard.change_or_pause(state, "the start of a subagent", prepare, pending)
        if prepared is None:
            return
        row, start = prepared
        try:
            # It runs on when its parent continues as new; a parent that ends stops it itself.
            run_id = build_child_run_id(state, row)
            child = await _start_child_workflow(state, run_id, start, parent_close_policy=ParentClosePolicy.ABANDON)
        except FailureError as error:
            background.fail_background_start(state, pending, row, f"{type(error).__name__}: {error}")
            return
        self._child_tasks[row.handle] = child
        child.add_done_callback(lambda task: self._apply_child_closed(row, task))
        mark_started = background.mark_background_started
        self._guard.change_or_pause(state, "the start of a subagent", mark_started, pending, row)

    async def send_message(self, pending: ToolCallState, request: TellCall) -> None:
        """Send the message to the background run. Its id makes a repeated delivery count once."""
        state = self._state
        row = background.find_tell_target(state, pending, request.handle)
        if row is not None and row.state == "starting":  # by a parallel call: the run cannot receive signals yet
            starting_row = row
            await run_shielded(get_host().wait_condition(lambda: starting_row.state != "starting"))
            row = background.find_tell_target(state, pending, request.handle)
        if row is None:
            return
        message: dict[str, Any] = {"content": request.message, "id": f"{state.scope}/{pending.op}", "by": state.agent}
        message["on_behalf_of"] = state.caller or ""
        if requesters := list_requesters(state):
            message["asked_by"] = requesters
        if request.blob is not None:
            message |= {"content": request.blob.model_dump(mode="json"), "store_id": state.store_id}
        error = await self._signal_child(row, "inject_user_message", message)
        if error is None:
            finish_call(state, pending, "delivered")
        else:
            fail_call(state, pending, f"not delivered: {error}")

    def _apply_child_closed(self, row: BackgroundRun, task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # the worker evicts the run
            return
        try:
            ended = parse_child_result(task.result())
        except FailureError as error:
            ended = parse_child_failure(error)
        record_received()
        apply = background.apply_background_outcome
        self._guard.change_or_pause(self._state, "the end of a subagent", apply, row, ended)

    # --- probes

    def compute_next_probe(self, step: NextStep, now: float) -> float | None:
        """Return when the next probe is due, before ``step`` or while it waits: seconds since 1970; None if none is."""
        state = self._state
        if not isinstance(step, Wait | CallModel) or step == Wait("message"):
            return None
        awaited = list_awaited_background_runs(state) if isinstance(step, Wait) else []
        times = [background.compute_child_probe_time(row) for row in self._select_unwatched(awaited)]
        if state.parent is not None and state.parent.background:
            if state.parent_seen_at is None:
                state.parent_seen_at = now
            times.append(background.compute_parent_probe_time(state))
        return min(times, default=None)

    async def send_due_probes(self, now: float) -> None:
        """Probe the awaited background runs and the parent that are due; fails the run if its parent has ended."""
        state, parent = self._state, self._state.parent
        awaited = list_awaited_background_runs(state)
        await self._probe_children([row for row in awaited if background.compute_child_probe_time(row) <= now])
        if parent is None or not parent.background or background.compute_parent_probe_time(state) > now:
            return
        state.parent_seen_at = now
        state.parent_checks += 1
        try:
            await run_shielded(get_host().signal_external(parent.context_id, "probe", []))
        except FailureError as error:
            if _is_workflow_not_found(error):
                text = f"run {parent.context_id!r}, which had started this one in background, has ended"
                fail_run(state, "RunClosedError", text)

    async def _probe_children(self, rows: Iterable[BackgroundRun]) -> None:
        await _run_all_shielded(self._probe_child(row) for row in self._select_unwatched(rows))

    async def _probe_child(self, row: BackgroundRun) -> None:
        row.looks, row.looked = row.looks + 1, round(get_host().now().timestamp(), 3)
        await self._signal_child(row, "probe")

    def _select_unwatched(self, rows: Iterable[BackgroundRun]) -> list[BackgroundRun]:
        return [row for row in rows if row.state == "running" and row.handle not in self._child_tasks]

    async def _signal_child(self, row: BackgroundRun, signal: str, *arguments: Any) -> str | None:
        """Signal the run; return why it could not be delivered, None if it was. A run that is gone counts as lost: it
        would have reported its end before it closed."""
        try:
            await run_shielded(get_host().signal_external(build_child_run_id(self._state, row), signal, arguments))
        except FailureError as error:
            if not _is_workflow_not_found(error):
                return str(error)
            background.apply_background_outcome(self._state, row, LOST)
            return f"{row.handle} ({row.agent}) has ended: collect its answer"
        return None

    # --- the end

    async def stop_children(self) -> None:
        """Cancel the active background runs, and wait up to ``STOP_CHILDREN_TIMEOUT`` until they have closed."""
        state, rows = self._state, list_active_background_runs(self._state)
        await _run_all_shielded(self._stop_child(row) for row in rows)
        watched = [self._child_tasks[row.handle] for row in rows if row.handle in self._child_tasks]
        try:
            await get_host().wait_condition(
                lambda: not list_active_background_runs(state) and all(task.done() for task in watched),
                timeout=STOP_CHILDREN_TIMEOUT,
                timeout_summary="subagents are stopped",
            )
        except TimeoutError:
            background.abandon_background_runs(state)

    async def _stop_child(self, row: BackgroundRun) -> None:
        row.stopped = True
        if row.handle not in self._child_tasks:
            await self._signal_child(row, "probe")
        if not row.is_running:
            return
        try:
            await run_shielded(get_host().cancel_external(build_child_run_id(self._state, row)))
        except FailureError as error:
            if _is_workflow_not_found(error):
                background.apply_background_outcome(self._state, row, LOST)


async def report_to_parent(state: RunState, step: ReportToParent, guard: Guard) -> None:
    """Report the end of this background run to its parent by signal; ignore a failure, as the parent has ended then."""
    assert state.parent is not None, "a run that reports has a parent"
    op, parent = state.op, state.parent.context_id
    ending = guard.change_or_pause(
        state,
        "the report to the parent",
        lambda state: background.build_child_ended(state, step.status).model_dump(mode="json", exclude_defaults=True),
    )
    if ending is None:
        return
    with suppress(FailureError):
        await run_shielded(get_host().signal_external(parent, "child_ended", [ending]))
    state.reported = op


async def _run_all_shielded(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    if tasks:
        await run_shielded(get_host().wait(tasks))
    for task in tasks:
        task.result()


def _is_workflow_not_found(error: FailureError) -> bool:
    return isinstance(error, ApplicationError) and error.type == EXTERNAL_RUN_GONE


# ---
# Branches of a step: each is a child workflow, which is stopped with the run as a subagent is.


async def run_branch(state: RunState, branch: PendingBranch, tasks: StepTasks) -> None:
    """Run the branch to its end. An interrupt of the run interrupts the branch, which then reports its usage."""
    start = tasks.guard.change_or_pause(state, "the start of a branch", subagents.build_branch_start, branch)
    if isinstance(start, BranchOutcome):
        subagents.set_branch_outcome(branch, start)
    if not isinstance(start, dict):
        return
    ended = await run_child(state, build_child_run_id(state, branch), start)
    apply, stopping = subagents.apply_branch_outcome, tasks.is_stopping()
    tasks.guard.change_or_pause(state, "the end of a branch", apply, branch, ended, stopping=stopping)
