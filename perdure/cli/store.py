"""``perdure store``: schema, state, copies and retention of the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .._terminal import escape_line, print_line
from .connection import StoreOptions, call_client
from .options import Commands
from .output import OutputOptions, format_byte_size

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.retention import GarbageReport
    from ..store.status import StoreStatus

StoreUrlOption = Annotated[
    str | None, typer.Option("--store-url", help="URL of the store; PERDURE_STORE_URL, else the embedded engine's.")
]
_REPORT_SECONDS = 1.0
"""Time between two lines of progress."""


def get_store_url(given: str | None) -> str:
    """The URL of the store that a command of this group works on: its option, the environment's, or the embedded
    engine's."""
    from .._config import get_home_store_url, resolve_store_url

    return resolve_store_url(given) or get_home_store_url()


def migrate(
    store_url: StoreUrlOption = None,
    contract: Annotated[
        bool,
        typer.Option("--contract", help="Also take away what only older versions use. Stop their workers first."),
    ] = False,
    *,
    output: OutputOptions,
) -> None:
    """Create the store, or bring its schema to the newest version. Safe while workers run, and to repeat.

    The user of the URL must own the tables. Workers whose user may change the schema do the same when they start, but
    for --contract.
    """
    from ..store.administration import migrate_store

    migration = asyncio.run(migrate_store(get_store_url(store_url), contract=contract))
    lines = [f"{migration.place}: applied {version}" for version in migration.applied]
    output.print_result(asdict(migration), lines or f"{migration.place}: nothing to apply")


def status(store_url: StoreUrlOption = None, *, output: OutputOptions) -> None:
    """Show where the store is, its schema, and how much it holds. Changes nothing. Rows of big tables are
    estimates on PostgreSQL."""
    from .._config import get_blob_url
    from ..store.status import read_store_status

    status = asyncio.run(read_store_status(get_store_url(store_url), blob_url=get_blob_url()))
    output.print_result(asdict(status), _format_status(status))


def _format_status(status: StoreStatus) -> Iterator[str]:
    facts = {
        "store": status.store_id,
        "place": f"{status.place} ({status.server})",
        "made": status.created_at,
        "schema": f"{status.schema}, {status.state} (this perdure knows up to {status.known_schema}; "
        f"code that knows {status.usable_from} or later may use it)",
        "size": format_byte_size(status.bytes),
        "runs": f"from {status.oldest_run} to {status.newest_run}" if status.newest_run else "none",
    }
    if (objects := status.objects) is not None:
        place = objects.used_url or objects.recorded_url
        facts["objects"] = f"{place}{f': {objects.flaw}' if objects.flaw else ''}"
    for key_id, tables in sorted(status.keys.items()):
        facts[f"key {key_id}"] = ", ".join(f"{rows:,} of {table}" for table, rows in tables.items())
    for name, fact in facts.items():
        yield f"{escape_line(name):<9} {escape_line(str(fact))}"
    for name, table in status.tables.items():
        size = "" if table.bytes is None else f"  {format_byte_size(table.bytes)}"
        yield f"{'':<9} {name:<12} {'about ' if table.is_estimate else ''}{table.rows:,} rows{size}"


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of the store: sqlite:///… or postgresql://…")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URL of an empty database, or of a new file.")],
    keep_damaged: Annotated[
        bool, typer.Option("--keep-damaged", help="Copy nodes and blobs whose bytes were altered as they are.")
    ] = False,
    *,
    output: OutputOptions,
) -> None:
    """Copy a store into another database while nothing writes to it, and compare every row.

    The copy has the same store id. If the command was interrupted, the same command continues; until it is complete no
    worker opens TO. Large objects stay where they are.
    """
    from ..store.administration import copy_store

    reported_at = 0.0

    def report(line: str) -> None:
        nonlocal reported_at
        if line.endswith(" copied") and time.monotonic() - reported_at < _REPORT_SECONDS:
            return
        reported_at = time.monotonic()
        print_line(line, error=True)

    result = asyncio.run(copy_store(source, target, report=report, keep_damaged=keep_damaged))
    rows = sum(table.rows for table in result.tables.values())
    lines = [f"store {result.store_id}: {rows:,} rows are the same in {result.source} and {result.target}"]
    if result.objects:
        lines.append(f"{result.objects:,} large blobs are objects, and stay where they are (PERDURE_BLOB_URL)")
    lines += [f"damaged, copied as it is: {name}" for name in result.damaged]
    output.print_result(asdict(result), lines)


def gc(
    older_than: Annotated[str, typer.Option("--older-than", help="Delete what is older: 90d, 12w; at least 2d.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, and say what would go.")] = False,
    lost: Annotated[
        bool, typer.Option("--lost", help="Also runs without a recorded end that Temporal does not know any more.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Rows, and runs, of one transaction.", min=1, max=500)] = 200,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Delete old runs, and what nothing refers to any more. Safe beside live traffic, and to repeat."""

    async def collect(client: Client) -> GarbageReport:
        return await client.collect_garbage(older_than=older_than, dry_run=dry_run, batch=batch, lost=lost)

    report = call_client(server, collect)
    output.print_result(asdict(report), _format_report(report))


def _format_report(report: GarbageReport) -> str:
    """What a collection did, in two or three lines."""
    done = "would be deleted" if report.dry_run else "deleted"
    lines = [
        f"older than {report.before[:16].replace('T', ' ')} UTC, {done}: {report.runs:,} runs; to which nothing "
        f"refers: {report.nodes:,} nodes of transcripts and {report.blobs:,} blobs ({format_byte_size(report.bytes)})"
    ]
    if report.objects:
        lines.append(f"objects: {report.objects:,} ({format_byte_size(report.object_bytes)})")
    if report.open:
        lines.append(f"kept, because they are open: {report.open:,} runs")
    if report.unknown:
        lines.append(
            f"kept, without a recorded end and unknown to Temporal: {report.unknown:,} runs (--lost deletes them)"
        )
    return "\n".join(lines)


app = Commands(help="The store: its schema, state, copies and retention.", no_args_is_help=True)
app.add(migrate, status, copy, gc)
