"""A task that runs for the length of a block, work beside tasks that guard it, and waits for what is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("perdure.client.tasks")

AWAY_RETRY_SECONDS = 1.0
"""Seconds between two tries to reach what a process that starts waits for."""
_FIRST_LOG_SECONDS, _MAX_LOG_SECONDS = 5.0, 300.0
"""Seconds between the first two lines about a wait, and the most between two."""


@asynccontextmanager
async def background_task(work: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Run ``work`` during the block. If it is not done at the end, it is cancelled; its error is raised only where the
    block awaits the task."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_beside(work: Coroutine[Any, Any, T], *guards: asyncio.Future[Any], grace: float = 0.0) -> T:
    """Return the result of ``work``. Raises what one of ``guards`` raises, unless ``work`` has its result before that,
    or within ``grace`` seconds after it. The guards go on when ``work`` is done."""
    async with background_task(work) as working:
        waiting: set[asyncio.Future[Any]] = {working, *guards}
        while not working.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for guard in done - {working}:
                if not guard.cancelled() and guard.exception() is None:
                    continue
                await asyncio.wait([working], timeout=grace)
                if not working.done() or working.cancelled() or working.exception() is not None:
                    guard.result()
        return await working


class StartWait:
    """What a process that starts waits for, in its log: at once, then at growing intervals, and when it is over."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._begun_at: float | None = None
        self._log_at = 0.0
        self._interval = _FIRST_LOG_SECONDS

    async def wait(self, reason: str) -> None:
        """Wait until the next try; ``reason`` is why the last one has failed."""
        now = asyncio.get_running_loop().time()
        if self._begun_at is None:
            self._begun_at = self._log_at = now
        if now >= self._log_at:
            logger.warning("waiting for the %s (%.0f s so far): %s", self._part, now - self._begun_at, reason)
            self._log_at, self._interval = now + self._interval, min(self._interval * 2, _MAX_LOG_SECONDS)
        await asyncio.sleep(AWAY_RETRY_SECONDS)

    def end(self) -> None:
        """The part answers."""
        if self._begun_at is not None:
            seconds = asyncio.get_running_loop().time() - self._begun_at
            logger.warning("the %s answers, after %.0f s", self._part, seconds)
