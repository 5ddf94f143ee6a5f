"""``perdure store``: schema, state, copies and retention of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .connection import StoreOptions, call_client
from .options import Commands
from .output import OutputOptions

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.retention import GarbageReport

StoreUrlOption = Annotated[
    str | None, typer.Option("--store-url", help="URL of the store; PERDURE_STORE_URL, else the embedded engine's.")
]


def get_store_url(given: str | None) -> str:
    """The URL of the store that a command of this group works on: its option, the environment's, or the embedded
    engine's."""
    from ..config import get_home_store_url, resolve_store_url

    return resolve_store_url(given) or get_home_store_url()


def migrate(store_url: StoreUrlOption = None, *, output: OutputOptions) -> None:
    """Bring the store's schema to the newest version. Safe while workers run, and to repeat."""
    import asyncio

    from ..store import open_store

    store = open_store(get_store_url(store_url))

    async def open_and_close() -> None:
        await store.open()
        await store.close()

    asyncio.run(open_and_close())
    output.print_result({"place": store.place}, f"{store.place}: the schema is current")


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
    from dataclasses import asdict

    async def collect(client: Client) -> GarbageReport:
        return await client.collect_garbage(older_than=older_than, dry_run=dry_run, batch=batch, lost=lost)

    report = call_client(server, collect)
    output.print_result(asdict(report), _format_report(report))


def _format_report(report: GarbageReport) -> str:
    """What a collection did, in two or three lines."""
    size = f"{report.bytes / 1_000_000:,.1f} MB"
    done = "would be deleted" if report.dry_run else "deleted"
    lines = [
        f"older than {report.before[:16].replace('T', ' ')} UTC, {done}: {report.runs:,} runs; to which nothing "
        f"refers: {report.nodes:,} nodes of transcripts and {report.blobs:,} blobs ({size})"
    ]
    if report.objects:
        lines.append(f"objects: {report.objects:,} ({report.object_bytes / 1_000_000:,.1f} MB)")
    if report.open:
        lines.append(f"kept, because they are open: {report.open:,} runs")
    if report.unknown:
        lines.append(
            f"kept, without a recorded end and unknown to Temporal: {report.unknown:,} runs (--lost deletes them)"
        )
    return "\n".join(lines)


app = Commands(help="The store: its schema, state, copies and retention.", no_args_is_help=True)
app.add(migrate, gc)
