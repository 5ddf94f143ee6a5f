"""``perdure list``: lists runs (apart because each command has a module)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..types.run_states import StateFilter
from .connection import StoreOptions, call_client
from .output import OutputOptions, Row, format_duration, format_held_up

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.run_states import RunSummary


def list_runs(
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    status: Annotated[
        StateFilter | None,
        typer.Option(help="Only runs of this status; open: any that has not ended."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only runs of this tenant.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None,
    roots: Annotated[bool, typer.Option("--roots", help="Only runs that no other run has started.")] = False,
    query: Annotated[
        str | None,
        typer.Option(help="Only runs of this filter of Temporal's: \"StartTime > '2026-01-31T00:00:00Z'\"."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest first.")] = 50,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List runs, the newest first."""

    async def list_matching(client: Client) -> list[RunSummary]:
        labels = {"tenant": tenant, "user": user}
        return await client.list(agent=agent, status=status, **labels, roots=roots, query=query, limit=limit)

    runs = call_client(server, list_matching)
    output.print_list(runs, ("ID", "AGENT", "STATUS", "STARTED", "TOOK", ""), _format_row, quiet=quiet, empty="no runs")


def _format_row(run: RunSummary) -> Row:
    started = f"{format_duration((datetime.now(UTC) - run.started).total_seconds())} ago" if run.started else ""
    took = format_duration((run.closed - run.started).total_seconds()) if run.started and run.closed else ""
    cause = format_held_up(run.held_up[0], run.id) if run.held_up else ""
    return run.id, run.agent, run.status.replace("_", " "), started, took, cause
