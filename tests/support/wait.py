"""Waiting for what another process or task does, without guessing how long it takes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, deadline: float = 60.0, every: float = 0.02, what: str = ""
) -> T:
    """The first truthy value of ``condition``. Raises ``TimeoutError`` with the last value after ``deadline`` s."""
    until = time.monotonic() + deadline
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > until:
            raise TimeoutError(f"{what or 'the condition'} did not hold within {deadline:g} s; last: {value!r}")
        await asyncio.sleep(every)
