"""The interface of the workflow to its host: Temporal, or a test that drives the same code in its own process.

The methods of :class:`Host` have the names and the meaning of the functions of ``temporalio.workflow``. Everything in
the workflow that needs time, waiting or the outside goes through this module, so that the unit-test kit
(``perdure.testing``) runs the code that production runs. Also ensures that workflow tasks end with a command
(:func:`ensure_commands`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, cast

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from ..types.interface import TURN_MEMO
from ..types.limits import HEARTBEAT_SECONDS
from ..types.state import RunState

HEARTBEAT_SETTING = "perdure.heartbeat_seconds"
"""Name of the external function by which a worker tells its setting."""


def _get_task_number() -> int:
    """Return a number of the present workflow task: the length of history at its start.

    It grows from task to task, also in a replay. Only a task that did nothing but refuse updates, which the server
    drops, has the number of the next one.
    """
    return get_host().info().get_current_history_length()


@dataclass
class TaskProgress:
    """In which workflow tasks the workflow last received something, and made a command, for ``ensure_commands``."""

    received_in: int = -1
    """The task that brought a result that the workflow waited for, or a signal."""
    commanded_in: int = -1
    """The task in which it made a command, and did not cancel it."""

    def record_received(self) -> None:
        """Record that the present workflow task brought something."""
        self.received_in = _get_task_number()

    def record_command(self) -> None:
        """Record a command of the present workflow task."""
        self.commanded_in = _get_task_number()

    def needs_command(self) -> bool:
        """Whether the present workflow task brought something, and has made no command so far."""
        return self.received_in > self.commanded_in


_task_progress: ContextVar[TaskProgress | None] = ContextVar("perdure_task_progress", default=None)


@contextmanager
def _record_wait(*, commands: bool) -> Iterator[None]:
    """Record a wait; ``commands`` says whether it begins with a command."""
    progress = _task_progress.get() or TaskProgress()
    if commands:
        progress.record_command()
    begun, is_collected = progress.commanded_in, False
    try:
        yield
    except GeneratorExit:  # the worker has dropped the run, and collects its coroutines, perhaps within another run
        is_collected = True
        raise
    finally:
        if not is_collected:
            progress.record_received()
            if commands and progress.received_in == begun:  # a command cancelled in its own task leaves no event
                progress.commanded_in = -1


@contextmanager
def outlive_cancellation() -> Iterator[None]:
    """Around a wait of a task that is not the run's own: a cancellation of the run does not end the task.

    With the flag ``PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH``, which Temporal's SDK 1.35 does not set and later
    ones will, each ``wait_condition`` that begins before a cancellation of the run and ends after it raises it.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # the task itself is cancelled
            raise


def record_received() -> None:
    """Record a result that did not come through a wait of this module."""
    if (progress := _task_progress.get()) is not None:
        progress.record_received()


def _record_command() -> None:
    if (progress := _task_progress.get()) is not None:
        progress.record_command()


class Host:
    """Runs a workflow: Temporal, unless :func:`use_host` sets a subclass, which overrides every method but
    ``signal_child``."""

    def info(self) -> workflow.Info:
        """Return the ids and sizes of this execution."""
        return workflow.info()

    def now(self) -> datetime:
        """Return the time of the present workflow task."""
        return workflow.now()

    def patched(self, name: str) -> bool:
        """Whether this execution began, or begins now, with the change ``name``; history has a marker that says so."""
        _record_command()
        return workflow.patched(name)

    def all_handlers_finished(self) -> bool:
        """Whether no signal or update is being handled."""
        return workflow.all_handlers_finished()

    def search_attributes(self) -> Mapping[str, object]:
        """Return the search attributes of this execution: those of its start, with its own changes."""
        return {pair.key.name: pair.value for pair in workflow.info().typed_search_attributes}

    def upsert_search_attributes(self, values: Mapping[str, str | int]) -> None:
        """Change search attributes; texts are keywords. One that the namespace does not have blocks the run."""
        _record_command()
        workflow.upsert_search_attributes(
            [
                SearchAttributeKey.for_int(name).value_set(value)
                if isinstance(value, int)
                else SearchAttributeKey.for_keyword(name).value_set(value)
                for name, value in values.items()
            ]
        )

    def upsert_memo(self, values: Mapping[str, Any]) -> None:
        """Change the memo; None removes a value. Continue-as-new does not carry it over, unlike search attributes."""
        _record_command()
        workflow.upsert_memo(values)

    def continue_as_new(self, carried: dict[str, Any]) -> NoReturn:
        """End this execution and start the next with ``carried`` as its input."""
        workflow.continue_as_new(carried)

    def heartbeat_seconds(self) -> float:
        """Return the seconds between two heartbeats, a setting of the worker. Replay does not compare the options of
        activities, so workers may differ."""
        get_setting = workflow.extern_functions().get(HEARTBEAT_SETTING)
        return HEARTBEAT_SECONDS if get_setting is None else float(get_setting())

    async def execute_activity(self, name: str, argument: dict[str, Any], **options: Any) -> Any:
        """Run an activity to its end. Raises ``ActivityError``."""
        with _record_wait(commands=True):
            return await workflow.execute_activity(name, argument, **options)

    async def start_child_workflow(self, name: str, argument: dict[str, Any], **options: Any) -> asyncio.Task[Any]:
        """Start a child; returns a task whose cancellation cancels it, and waits. Raises ``ChildWorkflowError``."""
        with _record_wait(commands=True):
            return await workflow.start_child_workflow(name, argument, **options)

    async def signal_child(self, child: asyncio.Task[Any], signal: str) -> None:
        """Send a signal without an argument to a started child. Raises ``FailureError`` if it has ended."""
        with _record_wait(commands=True):
            await cast("workflow.ChildWorkflowHandle[Any, Any]", child).signal(signal)

    async def signal_external(self, id: str, signal: str, arguments: Sequence[Any]) -> None:
        """Send a signal to another run, by its id. Raises ``FailureError`` if it has ended, or there is none."""
        with _record_wait(commands=True):
            await workflow.get_external_workflow_handle(id).signal(signal, args=arguments)

    async def cancel_external(self, id: str) -> None:
        """Cancel another run, by its id; idempotent. Raises ``FailureError`` if it has ended."""
        with _record_wait(commands=True):
            await workflow.get_external_workflow_handle(id).cancel()

    async def wait_condition(self, condition: Callable[[], bool], **options: Any) -> None:
        """Wait until ``condition`` holds. Raises ``TimeoutError`` after the option ``timeout`` (seconds)."""
        with _record_wait(commands=options.get("timeout") is not None):
            await workflow.wait_condition(condition, **options)

    async def wait(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until all ``tasks`` are done."""
        with _record_wait(commands=False):
            await workflow.wait(tasks)


_TEMPORAL = Host()
_current_host: ContextVar[Host] = ContextVar("perdure_host", default=_TEMPORAL)


@contextmanager
def use_host(host: Host) -> Iterator[None]:
    """Have ``host`` run the tasks and handlers that are started within the block."""
    token = _current_host.set(host)
    try:
        yield
    finally:
        _current_host.reset(token)


def get_host() -> Host:
    """Return the host of the present task or handler."""
    return _current_host.get()


def is_hosted() -> bool:
    """Whether a host of tests, not Temporal, runs the workflow."""
    return _current_host.get() is not _TEMPORAL


def is_replaying() -> bool:
    """Whether the workflow is being replayed from history."""
    return _current_host.get() is _TEMPORAL and workflow.unsafe.is_replaying()


def has_marker(mark: str) -> bool:
    """Whether history has ``mark`` here. Call it once for each mark, and before :func:`record_marker`."""
    return is_replaying() and workflow.patched(mark)


def record_marker(mark: str) -> None:
    """Write ``mark``, which occurs once, into history."""
    if not is_hosted():
        workflow.patched(mark)


OBSERVE_STATE = "perdure.observe_state"
"""Name of the external function by which a worker gets the state of a run (:func:`expose_state`)."""


def expose_state(state: RunState) -> None:
    """Show the worker the state of this execution, if it wants it. It reads the state after each workflow task, and
    changes nothing in it."""
    observe = None if is_hosted() else workflow.extern_functions().get(OBSERVE_STATE)
    if observe is not None:
        observe(state)


def get_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """Return the logger for operators; Temporal's logs nothing during replay."""
    return logging.getLogger("perdure.worker") if is_hosted() else workflow.logger


# ---
# Ensures that each workflow task that received something ends with a command.
#
# When a worker loads a run from history, Temporal's SDK (1.35) merges a workflow task without a command with the next
# one. Updates of the second task then run before the results of the first are applied; once such an update is in
# history, the next replay splits the tasks: TMPRL1100, or a different state. See
# docs/decisions/028-commands-of-a-task.md.


YIELD_ROUNDS = 3
"""How many times the other coroutines run first: one that wakes up may wake another, which makes a command."""


@contextmanager
def ensure_commands(state: RunState) -> Iterator[TaskProgress]:
    """Within the block, each workflow task that brings a result or a signal ends with a command.

    Signal handlers run outside of the block and call ``record_received`` themselves.
    """
    progress = TaskProgress()
    if is_hosted():
        yield progress
        return
    _task_progress.set(progress)  # never reset: the caller is the workflow's main coroutine
    progress.record_received()  # the run has begun
    task = asyncio.create_task(_add_missing_commands(state, progress))
    try:
        yield progress
    finally:
        task.cancel()


async def _add_missing_commands(state: RunState, progress: TaskProgress) -> None:
    # Uses Temporal's own waits, which are not recorded.
    while True:
        with outlive_cancellation():
            await workflow.wait_condition(progress.needs_command)
        rounds = 0
        while progress.needs_command() and rounds < YIELD_ROUNDS:
            with outlive_cancellation():
                await workflow.wait_condition(lambda: True)
            rounds += 1
        if progress.needs_command():
            workflow.upsert_memo({TURN_MEMO: state.turn.task_id if state.turn else ""})
            progress.record_command()
