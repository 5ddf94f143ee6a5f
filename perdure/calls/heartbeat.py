"""Heartbeats of an activity, the nudges that hasten them, and the values that its attempts pass on in them.

A heartbeat is a billed action of Temporal's, and the only way by which a cancellation reaches an activity. So there are
few of them, and the client that stops a run nudges its workers through the store (``perdure.ports.nudges``): they
heartbeat that run's activities at once. docs/decisions/069-heartbeats.md.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import TypeVar

from pydantic_core import to_jsonable_python
from temporalio import activity

from ..errors import AgentNotFoundError
from ..ports.nudges import Nudges
from ..types.limits import HEARTBEAT_SECONDS, HEARTBEATS_IN_TIMEOUT

NUDGED_HEARTBEATS = (0.1, 0.6, 1.2, 2.0)
"""Seconds after a nudge when the activities of its run heartbeat, until one is cancelled: the workflow has to process
the request first, and the cancellation of a subagent comes after that of its parent. The SDK sends no two within
``HEARTBEAT_THROTTLE`` (worker/plugin.py), which bounds what many nudges cost."""

_AGENT_MISSING_SINCE = "agent missing since"
_KEPT = "perdure.kept"
"""Name of the values in the details of a heartbeat, which no author's details have."""

ValueT = TypeVar("ValueT", int, str)

_current_heartbeat: ContextVar[Heartbeat | None] = ContextVar("perdure_heartbeat", default=None)
_current_values: ContextVar[AttemptValues | None] = ContextVar("perdure_attempt_values", default=None)


class AttemptValues:
    """What the attempts of a call pass on, each to the next ones. Temporal keeps it: the last heartbeat of an attempt
    that ended without one of its own, or with its worker, is that of the attempt before."""

    def __init__(
        self, kept: dict[str, int | str] | None = None, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """``kept`` is what earlier attempts passed on, and is changed."""
        self.kept = {} if kept is None else kept
        self._on_change = on_change
        self._counted: set[str] = set()

    def get(self, name: str, default: ValueT) -> ValueT:
        """Return what :meth:`set` stored in this attempt or an earlier one, if it has the type of ``default``."""
        value = self.kept.get(name, default)
        return value if isinstance(value, type(default)) else default

    def set(self, name: str, value: int | str) -> None:
        """Store ``value`` for this attempt and the next ones."""
        if self.kept.get(name) != value:
            self.kept[name] = value
            self._on_change()

    def count(self, name: str) -> int:
        """Count this attempt under ``name``, once; return how many attempts are counted."""
        counted = self.get(name, 0)
        if name in self._counted:
            return counted
        self._counted.add(name)
        self.set(name, counted + 1)
        return counted + 1


@contextmanager
def passing_on(values: AttemptValues) -> Iterator[None]:
    """Within the block, an attempt has and changes ``values``."""
    token = _current_values.set(values)
    try:
        yield
    finally:
        _current_values.reset(token)


class RunningHeartbeats:
    """The heartbeats of a worker's activities in progress. While there are some, it watches the nudges of its store."""

    def __init__(self, nudges: Nudges) -> None:
        self._nudges = nudges
        self._by_run: defaultdict[str, set[Heartbeat]] = defaultdict(set)
        self._unwatch: Callable[[], None] | None = None

    def add(self, run_id: str, heartbeat: Heartbeat) -> None:
        """Hasten ``heartbeat`` when the run ``run_id``, or one above it, is nudged."""
        self._by_run[run_id].add(heartbeat)
        if self._unwatch is None:
            self._unwatch = self._nudges.watch_nudges(self._on_nudge)

    def remove(self, run_id: str, heartbeat: Heartbeat) -> None:
        """The activity of ``heartbeat`` has ended."""
        self._by_run[run_id].discard(heartbeat)
        if not self._by_run[run_id]:
            del self._by_run[run_id]
        if not self._by_run and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _on_nudge(self, run_id: str) -> None:
        for own_id, heartbeats in self._by_run.items():
            if own_id == run_id or own_id.startswith(f"{run_id}/"):  # the id of a subagent begins so (types/run_ids.py)
                for heartbeat in heartbeats:
                    heartbeat.hasten()


class Heartbeat:
    """``async with Heartbeat():`` heartbeats until the end of the block; its details say why the activity waits.

    The interval follows from the activity's heartbeat timeout, which the worker that scheduled it has chosen.
    """

    def __init__(self, running: RunningHeartbeats | None = None) -> None:
        """``running``: where it is found by nudges."""
        self._running = running
        self._details: tuple[object, ...] = ()
        self._values = AttemptValues(on_change=lambda: self._context.run(self._send))
        self._timer: asyncio.TimerHandle | None = None
        self._hastened: list[asyncio.TimerHandle] = []
        self._sent_at = -math.inf
        self._is_unsent = False

    async def __aenter__(self) -> Heartbeat:
        self._token = _current_heartbeat.set(self)
        self._heartbeat = activity.heartbeat
        info = activity.info()
        timeout = info.heartbeat_timeout
        self._interval = HEARTBEAT_SECONDS if timeout is None else timeout.total_seconds() / HEARTBEATS_IN_TIMEOUT
        for details in info.heartbeat_details:  # of the previous attempt, which includes the values of earlier ones
            if isinstance(details, dict) and isinstance(kept := details.get(_KEPT), dict):
                self._values.kept = {name: value for name, value in kept.items() if isinstance(value, int | str)}
        self._values_token = _current_values.set(self._values)
        self._context = copy_context()  # the activity's: heartbeat() finds its activity there
        self._run_id = info.workflow_id or ""
        if self._running is not None:
            self._running.add(self._run_id, self)
        self._schedule_tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in (self._timer, *self._hastened):
            if timer is not None:
                timer.cancel()
        if self._running is not None:
            self._running.remove(self._run_id, self)
        if self._is_unsent and error is not None:  # Temporal keeps the last details of a failed attempt
            self._heartbeat(*self._build_details())
        _current_values.reset(self._values_token)
        _current_heartbeat.reset(self._token)

    def hasten(self) -> None:
        """Heartbeat soon, and a few times after: the activity may have been cancelled. What is due soon stays: nudges
        that follow each other closely would postpone it each time."""
        loop = asyncio.get_running_loop()
        first, now = NUDGED_HEARTBEATS[0], loop.time()
        due_soon = [timer for timer in self._hastened if now < timer.when() <= now + first][:1]
        for timer in self._hastened:
            if timer not in due_soon:
                timer.cancel()
        delays = NUDGED_HEARTBEATS[len(due_soon) :]
        self._hastened = due_soon + [
            loop.call_later(delay, self._send_hastened, context=self._context) for delay in delays
        ]

    def _send_hastened(self) -> None:
        if not activity.is_cancelled():
            self._send()

    def set_details(self, *details: object) -> None:
        """Set the details of the next heartbeats; shown as the reason of a stuck run."""
        self._details = details

    def build_reporter(self) -> Callable[..., None]:
        """Return a function that sets the author's details, and heartbeats if the last one is an interval ago; callable
        from any thread."""
        loop = asyncio.get_running_loop()

        def report(*details: object) -> None:
            # Encode here, where the author's code sees the error: a heartbeat that cannot be encoded cancels its
            # activity.
            plain = tuple(to_jsonable_python(detail) for detail in details)
            loop.call_soon_threadsafe(self._send_details, plain, context=self._context)

        return report

    def _send_details(self, details: tuple[object, ...]) -> None:
        self._details = details
        if asyncio.get_running_loop().time() - self._sent_at >= self._interval:
            self._send()
        else:
            self._is_unsent = True

    def _schedule_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._send, context=self._context)

    def _send(self) -> None:
        self._heartbeat(*self._build_details())
        self._is_unsent, self._sent_at = False, asyncio.get_running_loop().time()
        self._schedule_tick()

    def _build_details(self) -> tuple[object, ...]:
        return (*self._details, *([{_KEPT: self._values.kept}] if self._values.kept else []))


def report_waiting(reason: str) -> None:
    """Report why the current activity, if there is one, waits, in its heartbeats; "" when it no longer does."""
    if (current := _current_heartbeat.get()) is not None:
        current.set_details(*([{"waiting": reason}] if reason else []))


def get_attempt_values() -> AttemptValues:
    """Return the values of the current attempt; outside an attempt, empty ones that nothing keeps."""
    return _current_values.get() or AttemptValues()


def measure_agent_missing(error: Exception) -> float:
    """Return the seconds since the first of the activity's attempts that did not find its agent; this one has failed
    with ``error``. Uses the server's clock: each attempt may run on another machine."""
    if _current_heartbeat.get() is None:
        return 0.0
    values = get_attempt_values()
    now, since = activity.info().started_time.timestamp(), 0
    if isinstance(error, AgentNotFoundError):
        since = values.get(_AGENT_MISSING_SINCE, 0) or int(now)
    values.set(_AGENT_MISSING_SINCE, since)
    return now - since if since else 0.0


def build_heartbeat_reporter() -> Callable[..., None]:
    """Return the function behind a tool's ``ctx.heartbeat``; outside an activity it does nothing."""
    current = _current_heartbeat.get()
    return current.build_reporter() if current is not None else lambda *_: None
