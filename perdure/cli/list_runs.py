"""``perdure list``: lists runs (apart because each command has a module)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .connection import StoreOptions, call_client
from .output import OutputOptions, Row

if TYPE_CHECKING:
    from ..client.visibility import RunSummary

RunStatus = Literal["running", "waiting", "paused", "completed", "failed", "cancelled", "terminated", "timed out"]


def list_runs(
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    status: Annotated[RunStatus | None, typer.Option(help="Only runs of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest first.")] = 50,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List runs, the newest first."""
    runs = call_client(server, lambda client: client.list(agent=agent, status=status, limit=limit))
    output.print_list(runs, ("ID", "AGENT", "STATUS", "STARTED", "TOOK"), _format_row, quiet=quiet, empty="no runs")


def _format_row(run: RunSummary) -> Row:
    started = f"{format_duration((datetime.now(UTC) - run.started).total_seconds())} ago" if run.started else ""
    took = format_duration((run.closed - run.started).total_seconds()) if run.started and run.closed else ""
    return run.id, run.agent, run.status, started, took


def format_duration(seconds: float) -> str:
    """A length of time in its largest unit: ``40 s``, ``3 min``, ``5 h``, ``12 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
