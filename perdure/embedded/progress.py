"""What is being done, on stderr, while it takes long: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str], None]
"""Takes what is being done now, in a few words."""

_QUIET_SECONDS = 10.0


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """Show ``title`` and the latest report, with the time it has taken."""
    if sys.stderr.isatty():
        with _live(title) as report:
            yield report
    else:
        yield _plain(title)


@contextmanager
def _live(title: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(title)
        yield lambda text: display.update(task, description=f"{title}: {text}")


def _plain(title: str) -> Report:
    """One line per new stage, and a sign of life every few seconds (for logs, which have no cursor)."""
    begun = shown = time.monotonic()
    stage = ""
    sys.stderr.write(f"{title}\n")

    def report(text: str) -> None:
        nonlocal shown, stage
        now, new_stage = time.monotonic(), text.partition(",")[0]
        if new_stage != stage or now - shown >= _QUIET_SECONDS:
            sys.stderr.write(f"  {text} ({now - begun:.0f} s)\n")
            shown, stage = now, new_stage

    return report
