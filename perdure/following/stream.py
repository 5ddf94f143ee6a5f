"""The text of a run's replies as it comes, from a start to its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from .live import LiveText

if TYPE_CHECKING:
    from ..run import Run


async def text_of(run: Run) -> AsyncGenerator[str]:
    """Pieces of text; a reply behind another one begins on a new line.

    Raises the run's error, as ``run.result()`` does, when what there was has been given out.
    """
    live, between = LiveText(), ""
    async with aclosing(run.events(children=False)) as events:
        async for event in events:
            if piece := live.feed(event):
                yield between + piece
                between = ""
            if event.type == "model.completed" and event.text:
                between = "\n"
    await run.result()
