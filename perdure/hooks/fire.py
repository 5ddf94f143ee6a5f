"""Running hooks: in the order in which they were given, on the author's side, each with what it asks for."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ..errors import HookError, PerdureError
from .hook import Event, Hook

logger = logging.getLogger("perdure.worker")

Run = Callable[..., Awaitable[Any]]
"""``run(name, fn, **kwargs)``: calls an author's function, sync or async, away from the worker's loop."""


class HookSet:
    """Hooks by event, in order."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self.all = tuple(hooks)
        by_event: dict[Event, list[Hook]] = defaultdict(list)
        for one in self.all:
            by_event[one.event].append(one)
        self._by_event = {event: tuple(hooks) for event, hooks in by_event.items()}

    def __bool__(self) -> bool:
        return bool(self.all)

    def on(self, event: Event) -> tuple[Hook, ...]:
        """Those of ``event``."""
        return self._by_event.get(event, ())

    def __add__(self, other: HookSet) -> HookSet:
        if not other.all:
            return self
        return HookSet((*self.all, *other.all)) if self.all else other


async def fire(run: Run, hook: Hook, given: Mapping[str, Any]) -> Any:
    """What ``hook`` returns; None where it failed and only logs that.

    Raises ``HookError`` that names it; a ``PerdureError`` that it raises on purpose (``Abort``) as it is.
    """
    try:
        async with asyncio.timeout(hook.timeout) as limit:
            return await run(f"hook {hook.name}", hook.fn, **{name: given[name] for name in hook.takes})
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, TimeoutError) and limit.expired():
            why = f"it did not return within {hook.timeout:g} s"
        if hook.on_error == "log":
            logger.warning("the hook %s (%s) failed, and the call goes on: %s", hook.name, hook.event, why)
            return None
        if isinstance(error, PerdureError):
            raise
        raise HookError(f"the hook {hook.name} ({hook.event}) failed: {why}") from error
