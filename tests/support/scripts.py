"""Replies for a ``ScriptedProvider`` that depend on the request alone, so that a retry is answered alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure.ports.model import ModelRequest
from perdure.types.messages import ToolCallPart


def replied(request: ModelRequest) -> int:
    """How often the model has answered in this conversation."""
    return sum(message.role == "assistant" for message in request.messages)


def calls_then(iterations: int, name: str, text: str = "Done.", **arguments: Any) -> Callable[[ModelRequest], Any]:
    """``iterations`` calls of tool ``name``, then ``text``. ``"{n}"`` in an argument is the iteration, from 0."""

    def reply(request: ModelRequest) -> Any:
        n = replied(request)
        if n >= iterations:
            return text
        filled = {k: v.replace("{n}", str(n)) if isinstance(v, str) else v for k, v in arguments.items()}
        return ToolCallPart(id=f"call_{n}", name=name, arguments=filled)

    return reply


class Gate:
    """Holds replies and tools until the test opens it: ``await gate()`` inside, ``gate.open()`` outside.

    Works across event loops and threads: tools run on a loop of their own.
    """

    def __init__(self) -> None:
        self.entered = 0
        self.left = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._open = False

    async def __call__(self) -> None:
        """Wait until it is open."""
        event = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), event))
        self.entered += 1
        try:
            if not self._open:
                await event.wait()
        finally:
            self.left += 1

    def open(self) -> None:
        """Let everything through from now on."""
        self._open = True
        for loop, event in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
