"""What an execution waits for: conditions, looked at whenever something has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..workflows.host import hosted

if TYPE_CHECKING:
    from .execution import Execution

_TURNS = 20
"""Turns of the event loop after which everything that followed from an event has happened; it takes about five."""


class Conditions:
    """Those of one execution. To be used on its event loop."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def met(self, condition: Callable[[], bool], seconds: float | None) -> None:
        """Until ``condition()`` holds. Raises ``TimeoutError``."""
        if condition():  # to be met when everything that has arrived is applied
            for _turn in range(_TURNS):
                await asyncio.sleep(0)
            return
        met: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((condition, met))
        try:
            async with asyncio.timeout(seconds):
                await met
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not met]

    def look(self) -> None:
        """Look at them now and in the next turns of the loop, in which the rest of what follows happens."""
        self._loop.call_soon(self._look, _TURNS)

    def _look(self, turns: int) -> None:
        with hosted(self._execution):  # a condition may ask it too
            for condition, met in self._waiting:
                if not met.done() and condition():
                    met.set_result(None)
        if turns and self._waiting:
            self._loop.call_soon(self._look, turns - 1)
