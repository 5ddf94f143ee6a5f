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

from ..calls.agents import Agents
from ..types.wire import CLOSE_ACTIVITY, COMPACT_ACTIVITY, MODEL_ACTIVITY, REMIND_ACTIVITY, TOOL_ACTIVITY_PREFIX

logger = logging.getLogger("perdure.worker.drain")
"""``perdure worker`` prints what it logs; in a program of the author's own it is of the level INFO."""

CANCEL_SECONDS = 12.0
"""Seconds after the drain's deadline until the worker stops waiting for activities that were cancelled: an async
function gets ``CANCEL_TIMEOUT`` (10 s) of them."""
CLOSE_SECONDS = 16.0
"""Seconds more for the process of ``perdure worker`` to exit the lifespan and to close the store. The sum of both is
less than 30 s, by which a supervisor is to wait longer than the drain."""
_MAX_NAMED_ACTIVITIES = 20


@dataclass(frozen=True, slots=True)
class RunningActivity:
    """An activity in progress. ``since`` is of ``time.monotonic()``."""

    name: str
    """The tool's name; ``model call`` for a call of a model."""
    run_id: str
    since: float
    tool: str | None


class RunningActivities(Interceptor):
    """Records the activities of a worker, of its own functions too, while they run."""

    def __init__(self, slots: int, agents: Agents) -> None:
        self.slots = slots
        """Most activities at once."""
        self._agents = agents
        self._running: dict[object, RunningActivity] = {}

    def __len__(self) -> int:
        return len(self._running)

    def list_activities(self) -> list[RunningActivity]:
        """Return the activities in progress, the oldest first. Callable from any thread."""
        return list(self._running.copy().values())

    def describe(self, running: RunningActivity) -> str:
        """Return it as text; for a tool with the seconds that it may still take by its timeout."""
        found = [self._agents.find_tool(agent.name, running.tool) for agent in self._agents if running.tool]
        timeouts = [tool.timeout for tool in found if tool is not None]
        left = max(max(timeouts) - (monotonic() - running.since), 0) if timeouts else None
        return f"{running.name} of run {running.run_id}" + ("" if left is None else f" (at most {left:.0f} s more)")

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _RecordingInterceptor(next, self._running)


_NAMES = {
    MODEL_ACTIVITY: "model call",
    COMPACT_ACTIVITY: "summary",
    CLOSE_ACTIVITY: "record of the end",
    REMIND_ACTIVITY: "reminder",
}
"""Of activities, for the log."""


class _RecordingInterceptor(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, running: dict[object, RunningActivity]) -> None:
        super().__init__(next)
        self._running = running

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info, key = activity.info(), object()
        kind = info.activity_type
        tool = kind.removeprefix(TOOL_ACTIVITY_PREFIX) if kind.startswith(TOOL_ACTIVITY_PREFIX) else None
        name = _NAMES.get(kind, tool or kind)
        self._running[key] = RunningActivity(name, info.workflow_id or "", monotonic(), tool)
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
            logger.info(
                "draining: %s may end within %g s: %s",
                _count_activities(activities),
                self.seconds,
                self._describe(activities),
            )
        self._deadline = asyncio.get_running_loop().call_later(self.seconds, self._log_cancelled)

    def end(self) -> None:
        """Log the activities that have not ended although they were cancelled."""
        if self._deadline is not None:
            self._deadline.cancel()
        if activities := self._running.list_activities():
            logger.info(
                "stopped, and %s did not end: %s. Runs go on with another worker.",
                _count_activities(activities),
                self._describe(activities),
            )

    def _log_cancelled(self) -> None:
        if activities := self._running.list_activities():
            logger.info(
                "the drain's %g s are over, and %s cancelled: %s. Runs go on with another worker, where an idempotent "
                "tool is called again; of another tool the model is told that its outcome is unknown.",
                self.seconds,
                f"{_count_activities(activities)} {'is' if len(activities) == 1 else 'are'}",
                self._describe(activities),
            )

    def _describe(self, activities: Sequence[RunningActivity]) -> str:
        """Describe the first activities by run, and the others by the number of each tool."""
        described = [self._running.describe(running) for running in activities[:_MAX_NAMED_ACTIVITIES]]
        others = Counter(running.name for running in activities[_MAX_NAMED_ACTIVITIES:])
        return ", ".join([*described, *(f"{count} more of {name}" for name, count in others.items())])


def _count_activities(activities: Sequence[RunningActivity]) -> str:
    return f"{len(activities)} {'call' if len(activities) == 1 else 'calls'}"
