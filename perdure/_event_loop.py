"""The event loop that perdure's own programs run on: uvloop where it is installed (extra ``uvloop``), else asyncio's.

A library does not choose its program's loop: only ``perdure worker``, the other commands that go on until they are
stopped, and ``agent.call_sync()`` use this. A worker of your own does the same with ``uvloop.run(main())``.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from . import _config as config

T = TypeVar("T")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``main``, as ``asyncio.run`` does, on the loop that :func:`find_loop_factory` gives."""
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        return runner.run(main)


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop; None for asyncio's own, which ``PERDURE_EVENT_LOOP=asyncio`` asks for.

    Raises ``RuntimeSetupError`` if ``PERDURE_EVENT_LOOP`` is ``uvloop`` and it is not installed.
    """
    if not config.is_uvloop_wanted(is_installed=importlib.util.find_spec("uvloop") is not None):
        return None
    import uvloop  # 10 ms, which a command that asks one question does not spend

    return uvloop.new_event_loop
