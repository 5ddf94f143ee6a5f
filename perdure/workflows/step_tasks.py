"""Run the activities of a step, and its work to the end, also if the run is cancelled or interrupted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from temporalio.exceptions import ActivityError

from ..loop.lifecycle import PAUSING_ERRORS, pause_run
from ..types.schema_version import check_schema_version
from ..types.state import RunState
from .activity_options import ActivityFailure, engine_options, is_cancelled_activity, read_activity_failure
from .guard import Guard
from .host import get_host


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
        is_stopped: Callable[[ActivityError], bool] = is_cancelled_activity,
    ) -> None:
        """Run activity ``name`` for ``what``, and apply its output or failure to ``state``, all through the guard.

        Nothing is applied if it was stopped with the run (``is_stopped``): the loop closes an open call. An error of
        ``PAUSING_ERRORS`` pauses the run; when it is resumed, the step is due again. Raises ``NewerStateError`` for an
        output of a newer engine.
        """
        task = self.guard.change_or_pause(state, f"the input of {what}", build_input)
        if task is None:
            return
        try:
            raw = await get_host().execute_activity(name, task, **(options or engine_options()))
        except ActivityError as error:
            failure = read_activity_failure(error)
            if is_stopped(error) and self.is_stopping():
                return
            if failure.type in PAUSING_ERRORS:
                pause_run(state, str(failure), get_host().now().isoformat())
                self.guard.note_change()
                return
            self.guard.change_or_pause(state, f"the failure of {what}", apply_failure, failure)
        else:
            check_schema_version(raw, f"the outcome of {what}")  # fails the workflow task: a newer worker takes it
            self.guard.change_or_pause(state, f"the outcome of {what}", apply_output, raw)

    async def run_all(self, work: list[Coroutine[Any, Any, None]], source: TaskSource | None = None) -> None:
        """Run all of ``work`` to its end, and the work that ``source`` starts meanwhile.

        A cancellation of the run and an interrupt are passed on; results that the activities then return still count:
        awaited directly, a result that arrives together with the cancellation would be lost, and ``gather`` would not
        wait for the others.
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
