"""Heartbeats of an activity, from a task of its own, so that no call has to think of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import TracebackType

from pydantic_core import to_jsonable_python
from temporalio import activity

from ..errors import AgentNotFoundError

INTERVAL = 0.5
"""Seconds between heartbeats: a cancellation arrives with the answer to one, and an interrupt is to stop a call within
a second. A tenth of the timeout (workflows/options.py), and what the SDK lets through (worker/plugin.py)."""

_AGENT_MISSING = "agent missing since"

_current: ContextVar[Heartbeat | None] = ContextVar("perdure_heartbeat", default=None)


class Heartbeat:
    """``async with Heartbeat():`` heartbeats until the end of the block; its details say what is waited for."""

    def __init__(self) -> None:
        self._details: tuple[object, ...] = ()
        self._kept: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Heartbeat:
        self._token = _current.set(self)
        self._beat = activity.heartbeat
        for details in activity.info().heartbeat_details:  # of the attempt before, or what that one kept of its own
            if isinstance(details, dict) and isinstance(kept := details.get("kept"), dict):
                self._kept = {name: value for name, value in kept.items() if isinstance(value, int)}
        self._context = copy_context()  # the activity's: heartbeat() finds its activity there
        self._later()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _current.reset(self._token)

    def note(self, *details: object) -> None:
        """What the next heartbeats say; shown as the reason of a stuck run."""
        self._details = details

    def kept(self, name: str) -> int:
        """What :meth:`keep` kept in an earlier attempt or in this one; 0 for nothing."""
        return self._kept.get(name, 0)

    def keep(self, name: str, value: int) -> None:
        """Have the next attempt know ``value``."""
        if self._kept.get(name, 0) != value:
            self._kept[name] = value
            self._context.run(self._send)

    def reporter(self) -> Callable[..., None]:
        """A function that heartbeats at once with details of the author's, and again with them; from any thread."""
        loop = asyncio.get_running_loop()

        def report(*details: object) -> None:
            # Here, where the author's code sees the error: a heartbeat that cannot be encoded cancels its activity.
            plain = tuple(to_jsonable_python(detail) for detail in details)
            loop.call_soon_threadsafe(self._report, plain, context=self._context)

        return report

    def _report(self, details: tuple[object, ...]) -> None:
        self._details = details
        self._send()

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick, context=self._context)

    def _tick(self) -> None:
        self._send()
        self._later()

    def _send(self) -> None:
        self._beat(*self._details, *([{"kept": self._kept}] if self._kept else []))


def note(reason: str) -> None:
    """Say in the heartbeats of the current activity, if there is one, why it waits; "" when it no longer does."""
    if (current := _current.get()) is not None:
        current.note(*([{"waiting": reason}] if reason else []))


def remembered(name: str) -> int | None:
    """What the attempts of the current activity have remembered under ``name``; None where there is no activity."""
    current = _current.get()
    return None if current is None else current.kept(name)


def remember(name: str, value: int) -> bool:
    """Have the activity's next attempt know ``value``. Whether there is an activity."""
    if (current := _current.get()) is not None:
        current.keep(name, value)
    return current is not None


def agent_missing(error: Exception) -> float:
    """Seconds since the first of the activity's attempts that did not find its agent, this one having failed with
    ``error``. By the server's clock: each attempt may run on another machine."""
    if (current := _current.get()) is None:
        return 0.0
    now, since = activity.info().started_time.timestamp(), 0
    if isinstance(error, AgentNotFoundError):
        since = current.kept(_AGENT_MISSING) or int(now)
    current.keep(_AGENT_MISSING, since)
    return now - since if since else 0.0


def reporter() -> Callable[..., None]:
    """What a tool's ``ctx.heartbeat`` does in the current activity: nothing where there is none."""
    current = _current.get()
    return current.reporter() if current is not None else _nothing


def _nothing(*details: object) -> None:
    """No activity, no heartbeat."""
