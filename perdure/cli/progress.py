"""What a run is at, on stderr: a live line on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from ..errors import PerdureError
from ..printing import print_line, printable
from .show import activity

if TYPE_CHECKING:
    from ..run import Run

LOOK = 0.5
"""Seconds between two looks: each is a query that a worker answers."""


@asynccontextmanager
async def follow(run: Run, *, announce: bool = True) -> AsyncIterator[None]:
    """Show what ``run`` is at for the length of the block. ``announce``: its id too, where there is no live line."""
    with _display(run.id, announce=announce) as show:
        looking = asyncio.ensure_future(_look(run, show))
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking


async def _look(run: Run, show: Callable[[str], None]) -> None:
    shown = ""
    while True:
        with contextlib.suppress(PerdureError):  # the run's own end says what there is to say
            status = await run.status()
            now = activity(status)
            if now and now != shown:
                show(now)
                shown = now
        await asyncio.sleep(LOOK)


@contextmanager
def _display(id: str, *, announce: bool) -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        if announce:
            print_line(f"run {id}", error=True)
        yield lambda text: print_line(f"  {text}", error=True)
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    label = f"[bold]{escape(printable(id))}[/]"
    with console.status(label) as live:
        yield lambda text: live.update(f"{label}  {escape(printable(text))}")
