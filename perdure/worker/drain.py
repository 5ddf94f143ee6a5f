"""The activities that a worker runs, and its drain: the log of what it waits for, and a bound for that wait."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..types.wire import MODEL_ACTIVITY

logger = logging.getLogger("perdure.worker")

CANCEL_SECONDS = 12.0
"""Seconds after the drain's deadline until the worker stops waiting for activities that were cancelled: an async function
gets ``CANCEL_TIMEOUT`` (10 s) of them."""
CLOSE_SECONDS = 16.0
"""Seconds more for the process of ``perdure worker`` to exit the lifespan and to close the store. The sum of both is less
than 30 s, by which a supervisor is to wait longer than the drain."""
_MAX_NAMED_ACTIVITIES = 20


@dataclass(frozen=True, slots=True)
class RunningActivity:
    """An activity in progress. Times are of ``time.monotonic()``."""

    name: str
    """The tool's name; ``model call`` for a call of a model."""
    run_id: str
    since: float
    timeout: float | None
    """Seconds that the attempt may take."""

    def describe(self, now: float) -> str:
        """Return it as text, with the seconds that it may still take."""
        left = "" if self.timeout is None else f" (at most {max(self.timeout - (now - self.since), 0):.0f} s more)"
        return f"{self.name} of run {self.run_id}{left}"


class RunningActivities(Interceptor):
    """Records the activities of a worker, of its own functions too, while they run."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        """Most activities at once."""
        self._running: dict[object, RunningActivity] = {}

    def __len__(self) -> int:
        return len(self._running)

    def list_activities(self) -> list[RunningActivity]:
        """Return the activities in progress, the oldest first. Callable from any thread."""
        return list(self._running.copy().values())

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _RecordingInterceptor(next, self._running)


class _RecordingInterceptor(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, running: dict[object, RunningActivity]) -> None:
        super().__init__(next)
        self._running = running

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info, key = activity.info(), object()
        name = "model call" if info.activity_type == MODEL_ACTIVITY else info.activity_type
        timeout = info.start_to_close_timeout
        self._running[key] = RunningActivity(
            name, info.workflow_id or "", monotonic(), timeout.total_seconds() if timeout else None
        )
        try:
            return await self.next.execute_activity(input)
        finally:
            del self._running[key]


class Drain:
    """Logs the end of a worker: what runs when it begins to drain, and what is left at the deadline."""

    def __init__(self, running: RunningActivities, seconds: float) -> None:
        self.seconds = seconds
        """Seconds for activities to end by themselves."""
        self.has_begun = False
        self._running = running
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Log what runs. Has no effect if the drain has begun."""
        if self.has_begun:
            return
        self.has_begun = True
        if activities := self._running.list_activities():
            logger.warning(
                "draining: %s may end within %g s: %s",
                _count_activities(activities),
                self.seconds,
                _describe_activities(activities),
            )
        self._deadline = asyncio.get_running_loop().call_later(self.seconds, self._log_cancelled)

    def end(self) -> None:
        """Log the activities that have not ended although they were cancelled."""
        if self._deadline is not None:
            self._deadline.cancel()
        if activities := self._running.list_activities():
            logger.warning(
                "stopped, and %s did not end: %s. Runs go on with another worker.",
                _count_activities(activities),
                _describe_activities(activities),
            )

    def _log_cancelled(self) -> None:
        if activities := self._running.list_activities():
            logger.warning(
                "the drain's %g s are over, and %s cancelled: %s. Runs go on with another worker, where an idempotent "
                "tool is called again; of another tool the model is told that its outcome is unknown.",
                self.seconds,
                f"{_count_activities(activities)} {'is' if len(activities) == 1 else 'are'}",
                _describe_activities(activities),
            )


def _count_activities(activities: Sequence[RunningActivity]) -> str:
    return f"{len(activities)} {'call' if len(activities) == 1 else 'calls'}"


def _describe_activities(activities: Sequence[RunningActivity]) -> str:
    """Describe the first activities by run, and the others by the number of each tool."""
    now = monotonic()
    described = [running.describe(now) for running in activities[:_MAX_NAMED_ACTIVITIES]]
    others = Counter(running.name for running in activities[_MAX_NAMED_ACTIVITIES:])
    return ", ".join([*described, *(f"{count} more of {name}" for name, count in others.items())])
