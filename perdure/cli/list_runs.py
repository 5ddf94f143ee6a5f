"""``perdure list``: lists runs (apart because each command has a module)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import truncate_text
from ..errors import InvalidInputError
from ..types.run_states import StateFilter
from .connection import StoreOptions, call_client
from .output import OutputOptions, Row, format_duration, format_held_up

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.run_states import RunSummary

_FIRST_CHARS, _ERROR_CHARS = 50, 60


def list_runs(
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    status: Annotated[
        StateFilter | None,
        typer.Option(help="Only runs of this status; open: any that has not ended."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only runs of this tenant.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None,
    error: Annotated[
        str | None, typer.Option(help="Only runs that failed with this class of error: AuthenticationError.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Only runs with these words in the id, the first message or the error.")
    ] = None,
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
        if error is not None or search is not None:
            if query is not None:
                raise InvalidInputError("--query does not combine with --error and --search", hint="Leave one out.")
            filters: dict[str, Any] = {"agent": agent, "status": status, "roots": roots, **labels}
            return await _find_runs(client, limit, error=error, search=search, **filters)
        return await client.list(agent=agent, status=status, **labels, roots=roots, query=query, limit=limit)

    runs = call_client(server, list_matching)
    headings = ("ID", "AGENT", "STATUS", "STARTED", "TOOK", "FIRST MESSAGE, ERROR")
    output.print_list(runs, headings, _format_row, quiet=quiet, empty="no runs")


async def _find_runs(client: Client, limit: int, **filters: Any) -> list[RunSummary]:
    """Find runs by words or errors, which the store knows."""
    found: list[RunSummary] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await client.list_page(limit=min(limit, 200), cursor=cursor, **filters)
        found += page.runs
        if (cursor := page.cursor) is None:
            break
    return found[:limit]


def _format_row(run: RunSummary) -> Row:
    started = f"{format_duration((datetime.now(UTC) - run.started).total_seconds())} ago" if run.started else ""
    took = format_duration((run.closed - run.started).total_seconds()) if run.started and run.closed else ""
    return run.id, run.agent, run.status.replace("_", " "), started, took, _describe_texts(run)


def _describe_texts(run: RunSummary) -> str:
    """Return the beginning of the first message, and what holds the run up, or the error."""
    first = truncate_text(run.first_message or "", _FIRST_CHARS)
    if run.held_up:
        cause = format_held_up(run.held_up[0], run.id)
        return f"{first} · {cause}" if first else cause
    if run.error_type is None:
        return first
    error = f"{run.error_type}: {truncate_text(run.error or '', _ERROR_CHARS)}"
    return f"{first} · {error}" if first else error
