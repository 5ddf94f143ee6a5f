"""A task that runs for the length of a block, and one that guards another."""

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


async def wait_beside(work: Coroutine[Any, Any, T], guard: Coroutine[Any, Any, Any]) -> T:
    """Return the result of ``work``. Raises what ``guard`` raises, if that ends first."""
    async with background_task(work) as working, background_task(guard) as guarding:
        await asyncio.wait([working, guarding], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await guarding
        return await working
