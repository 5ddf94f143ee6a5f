"""What the author's ``lifespan`` yields: pools, clients. It is entered and left where the author's code runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..activities import AuthorLoop
from ..errors import DefinitionError, RuntimeSetupError
from ..tools import error_text

logger = logging.getLogger("perdure.worker")

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""``@asynccontextmanager async def resources(): yield …``"""

LEAVE = 10.0
"""Seconds that leaving a lifespan may take before the worker stops without it."""
SLOW = 10.0
"""Seconds after which a worker says that it still waits for its lifespan to be entered."""
_CANCELLED = 2.0


class Resources:
    """Holds a lifespan open: ``async with``. ``value`` is what it yields, None without one.

    One task of the author's loop enters and leaves it, as task groups and cancel scopes inside need it.
    """

    def __init__(self, lifespan: Lifespan | None, author: AuthorLoop) -> None:
        """Raises ``DefinitionError`` for what cannot be a lifespan."""
        self._lifespan = lifespan
        self._author = author
        self._name = _checked(lifespan)
        self.value: Any = None

    async def __aenter__(self) -> Resources:
        if self._lifespan is not None:
            await self._enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lifespan is not None:
            await self._leave()

    async def _enter(self) -> None:
        """Raises ``RuntimeSetupError`` when it cannot be entered."""
        entered: Future[Any] = Future()
        self._leaving: Future[None] = Future()
        self._task = asyncio.create_task(self._author.run(self._name, self._hold, entered, self._leaving))
        ready = asyncio.wrap_future(entered)
        try:
            while not (await asyncio.wait([self._task, ready], timeout=SLOW, return_when=asyncio.FIRST_COMPLETED))[0]:
                logger.warning("%s is not entered yet; the worker waits for it", self._name)
        except asyncio.CancelledError:
            await self._give_up()
            raise
        if ready.done():
            self.value = ready.result()
            self._task.add_done_callback(self._ended)
            return
        ready.cancel()
        error = self._task.exception()
        raise RuntimeSetupError(
            f"{self._name} failed when it was entered: {error_text(error) if error else 'it yielded nothing'}",
            hint="The worker serves nothing without it: mend it, or what it connects to.",
        ) from error

    async def _hold(self, entered: Future[Any], leaving: Future[None]) -> None:
        """On the author's loop: enter, say so, and leave when told to."""
        assert self._lifespan is not None, "only called with one"
        manager = self._lifespan()
        if not hasattr(manager, "__aenter__"):
            if inspect.iscoroutine(manager):
                manager.close()
            raise TypeError(
                f"it gave a {type(manager).__name__} and no async context manager: put "
                "@asynccontextmanager above an async function that yields"
            )
        async with manager as value:
            entered.set_result(value)
            await asyncio.wrap_future(leaving)

    async def _leave(self) -> None:
        """Never raises and never hangs: the worker has to stop."""
        self._task.remove_done_callback(self._ended)
        if not self._leaving.done():
            self._leaving.set_result(None)
        self.value = None
        try:
            await asyncio.wait([self._task], timeout=LEAVE)
        finally:
            if not self._task.done():
                logger.warning("%s was not left within %g s; the worker stops without it", self._name, LEAVE)
                await self._give_up()
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.error("%s failed when it was left", self._name, exc_info=error)

    async def _give_up(self) -> None:
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody asks for it any more
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_CANCELLED)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """It is over while the worker serves: a task group in it that failed, for instance."""
        error = None if task.cancelled() else task.exception()
        logger.error("%s ended while the worker serves; its resources are gone", self._name, exc_info=error)


def _checked(lifespan: Any) -> str:
    """What it is called in messages. Raises ``DefinitionError``."""
    if lifespan is None:
        return ""
    name = f"the lifespan {getattr(lifespan, '__name__', type(lifespan).__name__)}"
    if not callable(lifespan) or hasattr(lifespan, "__aenter__"):  # what @asynccontextmanager gives is callable too
        raise DefinitionError(
            f"the lifespan must be a function that gives an async context manager, not {lifespan!r:.100}",
            hint="Pass the function itself, without calling it: lifespan=resources.",
        )
    if inspect.isasyncgenfunction(lifespan):
        raise DefinitionError(f"{name} is no context manager yet", hint="Put @asynccontextmanager above it.")
    try:
        inspect.signature(lifespan).bind()
    except TypeError as error:
        raise DefinitionError(f"{name} is called with nothing: {error}", hint="Take its parameters out.") from None
    except ValueError:  # a callable without a signature
        pass
    return name
