"""``perdure chat`` without a terminal: one message a line in, answers out."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ...errors import PerdureError
from ...printing import print_line, print_text
from ..answers import text_of
from ..failure import report
from ..options import Output, print_json
from ..progress import follow

if TYPE_CHECKING:
    from ...turn import Turn
    from ...types.interface import Response
    from .talk import Talk


async def lines(talk: Talk, first: str | None, output: Output) -> int:
    """Say ``first`` (``-``: all of stdin, as one message), then each line; the exit code.

    A turn that fails is reported, and the next line goes on; the code is 1 then.
    """
    code = 0
    said: list[dict[str, Any]] = []
    print_line(f"conversation {talk.run.id}", error=True)
    async for text in _messages(first):
        turn, _ = await talk.say(text)
        try:
            response = await _answered(talk, turn)
        except PerdureError as error:
            report(error)
            code = 1
            said.append({"task_id": turn.task_id, "error": {"type": type(error).__name__, "message": error.message}})
        else:
            if output is Output.TEXT:
                print_text(text_of(response))
            said.append(response.model_dump(mode="json", exclude={"messages"}))
        if output is Output.JSONL:
            print_json(said.pop(), output=output)
    if output is Output.JSON:
        print_json(said, output=output)
    return code


async def _answered(talk: Talk, turn: Turn) -> Response:
    """The answer. Ctrl-C while it is awaited interrupts the turn as well."""
    try:
        async with follow(talk.run, announce=False):
            return await talk.answer(turn)
    except asyncio.CancelledError:
        with contextlib.suppress(PerdureError):
            await talk.interrupt()
        raise


async def _messages(first: str | None) -> AsyncIterator[str]:
    """What there is to say, without what is empty."""
    if first is not None:
        text = sys.stdin.read() if first == "-" else first
        if text.strip():
            yield text.strip() if first == "-" else text
        if first == "-":
            return
    async for line in _stdin():
        if line.strip():
            yield line.strip()


async def _stdin() -> AsyncIterator[str]:
    """Lines, read in a daemon thread: stdin may be a file, which no event loop watches, and no read can be stopped."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody wants it any more
            for line in sys.stdin:
                loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line
