"""The text of a run's replies as it comes, from a start to its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .live import LiveText

if TYPE_CHECKING:
    from ..run import Run


async def text_of(run: Run) -> AsyncIterator[str]:
    """Pieces of text. Raises the run's error, as ``run.result()`` does, when what there was has been given out."""
    live = LiveText()
    async for event in run.events():
        if piece := live.feed(event):
            yield piece
    await run.result()
