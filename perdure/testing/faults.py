"""What goes wrong, on purpose: replies that fail, hang or are cut, and workers that die at a named point."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..ports import points
from ..ports.points import POINTS, Point


@dataclass(frozen=True, slots=True)
class Fault:
    """A scripted reply that never is complete. Made by :func:`fail`, :func:`hang` and :func:`cut`."""

    reply: Any = None
    """What is streamed of it first, ``after`` bytes; all without."""
    after: int | None = None
    error: Exception | None = None
    hangs: bool = False

    async def happens(self) -> None:
        """Raise the error, hang, or return: then the stream is at its end, without a whole reply."""
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()


def fail(error: Exception, reply: Any = None, *, after: int | None = None) -> Fault:
    """The call ends with ``error``; of ``reply`` it streams the first ``after`` bytes before that.

    The engine tries a retryable ``ProviderError`` again, and the next attempt gets the next reply of the script.
    """
    return Fault(reply, after, error)


def hang(reply: Any = None, *, after: int | None = None) -> Fault:
    """The model falls silent, having streamed the first ``after`` bytes of ``reply``, until the call is cancelled."""
    return Fault(reply, after, hangs=True)


def cut(reply: Any, *, after: int) -> Fault:
    """The connection breaks after ``after`` bytes of ``reply`` (texts and arguments, in UTF-8): the stream just ends.

    The engine takes nothing of it and tries again, which gets the next reply of the script.
    """
    return Fault(reply, after)


class At:
    """Calls ``fn`` when a named point is reached, until the end of the block, or for good without one."""

    def __init__(self, point: Point, fn: Callable[[], object]) -> None:
        if point not in POINTS:
            raise ValueError(f"there is no point {point!r}; there are: {', '.join(POINTS)}")
        self._point = point
        self._fn = fn
        points.listeners[point] = (*points.listeners.get(point, ()), fn)

    def remove(self) -> None:
        """Listen no longer."""
        left = tuple(fn for fn in points.listeners.get(self._point, ()) if fn is not self._fn)
        if left:
            points.listeners[self._point] = left
        else:
            points.listeners.pop(self._point, None)

    def __enter__(self) -> At:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def at(point: Point, fn: Callable[[], object]) -> At:
    """Call ``fn`` each time a worker of this process reaches ``point`` (see ``perdure.ports.points``).

    What it raises comes out there: ``at("tool.acted", fn)`` with an ``fn`` that raises ``StoreError`` is a store that
    fails between the act and its record. Stays until ``remove()``, or until the end of a ``with`` block.
    """
    return At(point, fn)


def kill_at(point: Point, *, count: int = 1, once: Path | str | None = None) -> At:
    """SIGKILL this process when it reaches ``point`` for the ``count``-th time: no handler, no ``finally``, no drain.

    ``once`` names a file that is made right before: a process that finds it there lives, so that a worker that is
    started again goes on. Of several processes only the first to make it dies. For the file that starts a worker:

        kill_at("tool.acted", once="/tmp/killed")
    """
    left = [count]

    def die() -> None:
        left[0] -= 1
        if left[0] == 0 and _first_to_make(once):
            os.kill(os.getpid(), signal.SIGKILL)

    return At(point, die)


def _first_to_make(file: Path | str | None) -> bool:
    if file is None:
        return True
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        return True
    return False
