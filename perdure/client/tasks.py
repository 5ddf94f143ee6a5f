"""A task that runs for the length of a block, and work beside tasks that guard it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


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
