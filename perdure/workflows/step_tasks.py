"""Run the activities of a step, and its work to the end, also if the run is cancelled or interrupted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from temporalio.exceptions import ActivityError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from ..loop.lifecycle import PAUSING_ERRORS, pause_run
from ..types.schema_version import check_schema_version
from ..types.state import RunState, UncollectedActivity
from ..types.wire import COLLECT_ACTIVITY, get_collected_field
from .activity_options import (
    ActivityFailure,
    engine_options,
    is_cancelled_activity,
    may_have_recorded,
    read_activity_failure,
)
from .guard import Guard
from .host import get_host, get_logger

T = TypeVar("T")

COLLECT_TIMEOUT = timedelta(minutes=5)
"""How long a cancelled run waits for the store and a worker to tell what an activity has recorded."""


class TaskSource(Protocol):
    """Work that may become possible while other work is under way."""

    def has_more(self) -> bool:
        """Whether there is more work to start. Evaluated after each change of the state; must change nothing."""
        ...

    def start_more(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines of the work that is to start."""
        ...

    def seconds_to_next_check(self) -> float | None:
        """Return the seconds after which to check even if nothing has happened; None for no such check."""
        ...


class StepTasks:
    """Runs the work of the steps of ``state``. Created in the workflow's main task."""

    def __init__(self, state: RunState, guard: Guard) -> None:
        self.guard = guard
        self._main_task = asyncio.current_task()
        self._state = state

    def is_cancelling(self) -> bool:
        """Whether the run was cancelled. Nothing uncancels the main task, so this stays true."""
        return self._main_task is not None and self._main_task.cancelling() > 0

    def is_stopping(self) -> bool:
        """Whether the run is cancelled or interrupted, so that an activity that ends cancelled was cancelled by it."""
        return self.is_cancelling() or self._state.interrupt is not None

    async def run_activity(
        self,
        state: RunState,
        what: str,
        name: str,
        build_input: Callable[[RunState], dict[str, Any]],
        apply_output: Callable[[RunState, Any], object],
        apply_failure: Callable[[RunState, ActivityFailure], object],
        *,
        options: dict[str, Any] | None = None,
        taken: int = 0,
    ) -> None:
        """Run activity ``name`` for ``what``, and apply its output or failure to ``state``, all through the guard.

        If it ends without an output, what it has recorded is applied first. Nothing else is applied if it was stopped
        with the run: the loop closes an open call. An error of ``PAUSING_ERRORS`` pauses the run; when it is resumed,
        the step is due again. ``taken``: how many messages of the inbox the input has. Raises ``NewerStateError`` for
        an output of a newer engine.
        """
        task = self.guard.change_or_pause(state, f"the input of {what}", build_input)
        if task is None:
            return
        work = UncollectedActivity(activity=name, input=task, taken=taken)
        try:
            raw = await get_host().execute_activity(name, task, **(options or engine_options()))
        except ActivityError as error:
            failure = read_activity_failure(error)
            is_stopped = is_cancelled_activity(error) and self.is_stopping()
            if failure.type in PAUSING_ERRORS and not is_stopped:
                self._pause(state, str(failure), work if may_have_recorded(error) else None)
                return
            if may_have_recorded(error) and not await self.collect(state, what, work, apply_output, closing=True):
                return
            if not is_stopped:
                self.guard.change_or_pause(state, f"the failure of {what}", apply_failure, failure)
        else:
            self._apply_output(state, what, work, apply_output, raw)

    async def collect(
        self,
        state: RunState,
        what: str,
        work: UncollectedActivity,
        apply_output: Callable[[RunState, Any], object],
        *,
        closing: bool,
    ) -> bool:
        """Apply what the activity of ``work`` had recorded. ``closing``: its open tool calls are not run any more.

        Waits for the store and for a worker, also through an interrupt: without that the run would go on as if nothing
        had been paid or done. A cancelled run, which must end, does so after ``COLLECT_TIMEOUT``. If it cannot be read
        or applied, the run pauses, an interrupt is taken back, and it is collected when the run is resumed or stopped;
        returns False.
        """
        kind = get_collected_field(work.activity)
        task = {kind: work.input, **({"closing": True} if closing else {})}
        options = engine_options(max_retry_seconds=10, schedule_to_close_timeout=COLLECT_TIMEOUT)
        while True:
            try:
                raw = await run_shielded(get_host().execute_activity(COLLECT_ACTIVITY, task, **options))
                break
            except ActivityError as error:
                reason = f"what {what} has recorded could not be read: {read_activity_failure(error)}"
                get_logger().error("run %s: %s", state.context_id, reason)
                if self.is_cancelling():
                    return True
                if not isinstance(error.cause, TemporalTimeoutError):
                    self._pause(state, reason, work)
                    return False
        check_schema_version(raw, f"what {what} has recorded")
        output = raw.get(kind)
        return output is None or self._apply_output(state, what, work, apply_output, output)

    def _apply_output(
        self,
        state: RunState,
        what: str,
        work: UncollectedActivity,
        apply_output: Callable[[RunState, Any], object],
        raw: Any,
    ) -> bool:
        """Apply the output ``raw``. If a fault of the engine prevents it, and the run need not end, keep ``work`` and
        return False."""
        check_schema_version(raw, f"the outcome of {what}")  # fails the workflow task: a newer worker takes it
        self.guard.change_or_pause(state, f"the outcome of {what}", apply_output, raw)
        if state.pause is None or not state.pause.fault or self.is_cancelling():
            return True
        self._keep_uncollected(state, work)
        return False

    def _pause(self, state: RunState, reason: str, work: UncollectedActivity | None) -> None:
        pause_run(state, reason, get_host().now().isoformat())
        if work is not None:
            self._keep_uncollected(state, work)
        self.guard.note_change()

    def _keep_uncollected(self, state: RunState, work: UncollectedActivity) -> None:
        state.uncollected.append(work)
        state.interrupt = None
        self.guard.note_change()

    async def run_all(self, work: list[Coroutine[Any, Any, None]], source: TaskSource | None = None) -> None:
        """Run all of ``work`` to its end, and the work that ``source`` starts meanwhile.

        A cancellation of the run and an interrupt are passed on; results that the activities then return still count:
        awaited directly, a result that arrives together with the cancellation would be lost, and
        :func:`asyncio.gather` would not wait for the others.
        """
        tasks, state = [asyncio.create_task(coroutine) for coroutine in work], self._state

        def is_over() -> bool:  # evaluated again and again: without a frame for each task
            return state.interrupt is not None or all(map(asyncio.Task.done, tasks))

        with suppress(asyncio.CancelledError):
            if source is None:
                await get_host().wait_condition(is_over)
            else:
                await self._wait_for_more(is_over, source)
                while not is_over():
                    tasks += [asyncio.create_task(coroutine) for coroutine in source.start_more()]
                    await self._wait_for_more(is_over, source)
        stopped = [] if all(map(asyncio.Task.done, tasks)) else await _wait_for_tasks(tasks, stop=True)
        for task in tasks:
            _raise_task_error(task, stopped)

    async def _wait_for_more(self, is_over: Callable[[], bool], source: TaskSource) -> None:
        """Wait until the work is over, or ``source`` has more."""
        has_more = self.guard.once_per_change(source.has_more)
        with suppress(TimeoutError):
            await get_host().wait_condition(lambda: is_over() or has_more(), timeout=source.seconds_to_next_check())

    async def run_to_end(self, work: Coroutine[Any, Any, None], *, stop: bool) -> None:
        """Run ``work`` to its end, also through an interrupt. A cancellation of the run is passed on if ``stop``."""
        task, stopped = asyncio.create_task(work), []
        try:
            await get_host().wait([task])
        except asyncio.CancelledError:
            stopped = await _wait_for_tasks([task], stop=stop)
        _raise_task_error(task, stopped)


async def run_shielded(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end, through cancellations: it must not be left half done. Returns its result; raises
    what it raises."""
    task = asyncio.create_task(coroutine)
    while not task.done():
        try:
            await get_host().wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def _wait_for_tasks(tasks: list[asyncio.Task[None]], *, stop: bool) -> list[asyncio.Task[None]]:
    """Wait until all tasks have ended; with ``stop``, cancel them first. Returns those that were cancelled."""
    # First apply the results that arrived with the cancellation. Later ones still count: a cancelled activity is waited
    # for, and returns the result that it had.
    await _wait_through_cancellation(lambda: get_host().wait_condition(lambda: True))
    stopped = [task for task in tasks if stop and task.cancel()]
    await _wait_through_cancellation(lambda: get_host().wait(tasks))
    return stopped


def _raise_task_error(task: asyncio.Task[None], stopped: list[asyncio.Task[None]]) -> None:
    """Raise what ``task`` raised, except the cancellation of a stopped task, which may end cancelled between two waits.
    Raised here, it would end the run with its transcript open.
    """
    if not (task.cancelled() and task in stopped):
        task.result()


async def _wait_through_cancellation(wait: Callable[[], Awaitable[None]]) -> None:
    """Wait, and wait again after a cancellation: a run may be cancelled while an interrupt settles, at most once."""
    try:
        await wait()
    except asyncio.CancelledError:
        await wait()
