"""A test that hangs fails by itself, and names the line where it waits.

An exception thrown into whatever runs at that moment, as pytest-timeout does it, leaves a Temporal worker behind that
is torn down together with the tasks which it needs for its own shutdown: that waits for ever. So the test's task alone
is cancelled, and the rest is put away as ever. pytest-timeout comes a minute later, for tests that block their thread.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest


def be_patient(item: pytest.Item) -> None:
    """Bound the test's time, where it is a coroutine: its ``timeout`` marker's seconds, or those of pyproject.toml."""
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    item.obj = _bounded(item.obj, seconds)
    item.add_marker(pytest.mark.timeout(seconds + 60), append=False)


def _bounded(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        try:
            async with asyncio.timeout(seconds) as limit:
                await test(*args, **kwargs)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"the test did not end within {seconds:g} s") from error
            raise

    return bounded
