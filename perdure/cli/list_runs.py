"""``perdure list``: the runs there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..terminal import escape_line, print_line
from .connection import open_client
from .options import OutputFormat, OutputOptions, StoreOptions, print_json

if TYPE_CHECKING:
    from ..client.visibility import RunSummary


class RunStatus(StrEnum):
    """What a run can be, seen from outside."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    TIMED_OUT = "timed out"


def list_runs(
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.", show_default=False)] = None,
    status: Annotated[RunStatus | None, typer.Option(help="Only runs of this status.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one on a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List runs, the newest first."""

    async def go() -> list[RunSummary]:
        async with open_client(server) as client:
            return await client.list(agent=agent, status=status.value if status else None, limit=limit)

    runs = asyncio.run(go())
    if output is not OutputFormat.TEXT:
        print_json([run.id if quiet else _serialize_run_summary(run) for run in runs], output=output)
    elif quiet:
        for run in runs:
            print_line(run.id)
    elif runs:
        _print_run_table(runs)
    else:
        print_line("no runs", error=True)


def _serialize_run_summary(run: RunSummary) -> dict[str, object]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(run).items()}


def _print_run_table(runs: Sequence[RunSummary]) -> None:
    now = datetime.now(UTC)
    rows = [("ID", "AGENT", "STATUS", "STARTED", "TOOK")]
    for run in runs:
        started = f"{format_duration((now - run.started).total_seconds())} ago" if run.started else ""
        took = format_duration((run.closed - run.started).total_seconds()) if run.started and run.closed else ""
        rows.append((escape_line(run.id), escape_line(run.agent), run.status, started, took))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def format_duration(seconds: float) -> str:
    """A length of time in its largest unit: ``40 s``, ``3 min``, ``5 h``, ``12 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
