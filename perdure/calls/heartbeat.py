"""Heartbeats of an activity, and the values that its attempts pass on in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import TypeVar

from pydantic_core import to_jsonable_python
from temporalio import activity

from ..errors import AgentNotFoundError

HEARTBEAT_INTERVAL = 0.5
"""Seconds between heartbeats: a cancellation arrives with the response to one, and an interrupt is to stop a call
within a second. A tenth of the timeout (activity_options.py), and what the SDK lets through (worker/plugin.py)."""

_AGENT_MISSING_SINCE = "agent missing since"

ValueT = TypeVar("ValueT", int, str)

_current_heartbeat: ContextVar[Heartbeat | None] = ContextVar("perdure_heartbeat", default=None)


class Heartbeat:
    """``async with Heartbeat():`` heartbeats until the end of the block; its details say why the activity waits."""

    def __init__(self) -> None:
        self._details: tuple[object, ...] = ()
        self._values: dict[str, int | str] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Heartbeat:
        self._token = _current_heartbeat.set(self)
        self._heartbeat = activity.heartbeat
        for (
            details
        ) in activity.info().heartbeat_details:  # of the previous attempt, which includes the values of earlier ones
            if isinstance(details, dict) and isinstance(kept := details.get("kept"), dict):
                self._values = {name: value for name, value in kept.items() if isinstance(value, int | str)}
        self._context = copy_context()  # the activity's: heartbeat() finds its activity there
        self._schedule_tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _current_heartbeat.reset(self._token)

    def set_details(self, *details: object) -> None:
        """Set the details of the next heartbeats; shown as the reason of a stuck run."""
        self._details = details

    def get_value(self, name: str, default: ValueT) -> ValueT:
        """Return what :meth:`set_value` stored in this attempt or an earlier one, if it has the type of ``default``."""
        value = self._values.get(name, default)
        return value if isinstance(value, type(default)) else default

    def set_value(self, name: str, value: int | str) -> None:
        """Store ``value`` for this attempt and the next ones."""
        if self._values.get(name) != value:
            self._values[name] = value
            self._context.run(self._send)

    def build_reporter(self) -> Callable[..., None]:
        """Return a function that sets the author's details and heartbeats at once; callable from any thread."""
        loop = asyncio.get_running_loop()

        def report(*details: object) -> None:
            # Encode here, where the author's code sees the error: a heartbeat that cannot be encoded cancels its
            # activity.
            plain = tuple(to_jsonable_python(detail) for detail in details)
            loop.call_soon_threadsafe(self._send_details, plain, context=self._context)

        return report

    def _send_details(self, details: tuple[object, ...]) -> None:
        self._details = details
        self._send()

    def _schedule_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_INTERVAL, self._tick, context=self._context)

    def _tick(self) -> None:
        self._send()
        self._schedule_tick()

    def _send(self) -> None:
        self._heartbeat(*self._details, *([{"kept": self._values}] if self._values else []))


def report_waiting(reason: str) -> None:
    """Report why the current activity, if there is one, waits, in its heartbeats; "" when it no longer does."""
    if (current := _current_heartbeat.get()) is not None:
        current.set_details(*([{"waiting": reason}] if reason else []))


def get_attempt_value(name: str, default: ValueT) -> ValueT | None:
    """Return the value that the attempts of the current activity stored under ``name``; None outside an activity."""
    current = _current_heartbeat.get()
    return None if current is None else current.get_value(name, default)


def set_attempt_value(name: str, value: int | str) -> bool:
    """Store ``value`` for the current activity's next attempts. Return whether there is an activity."""
    if (current := _current_heartbeat.get()) is not None:
        current.set_value(name, value)
    return current is not None


def measure_agent_missing(error: Exception) -> float:
    """Return the seconds since the first of the activity's attempts that did not find its agent; this one has failed
    with ``error``. Uses the server's clock: each attempt may run on another machine."""
    if (current := _current_heartbeat.get()) is None:
        return 0.0
    now, since = activity.info().started_time.timestamp(), 0
    if isinstance(error, AgentNotFoundError):
        since = current.get_value(_AGENT_MISSING_SINCE, 0) or int(now)
    current.set_value(_AGENT_MISSING_SINCE, since)
    return now - since if since else 0.0


def build_heartbeat_reporter() -> Callable[..., None]:
    """Return the function behind a tool's ``ctx.heartbeat``; outside an activity it does nothing."""
    current = _current_heartbeat.get()
    return current.build_reporter() if current is not None else lambda *_: None
