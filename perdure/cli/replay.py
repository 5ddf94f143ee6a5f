"""``perdure replay``: whether this version goes on with runs that are under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import LIST_HINT
from ..terminal import print_text
from .connection import ConnectionOptions, open_client
from .options import OutputFormat, OutputOptions, ServerOptions, print_json

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory
    from temporalio.converter import DataConverter

    from ..worker.replay import ReplayReport


def replay(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|DIR|ID",
            help="History files, folders of them, or ids of runs (as much of an id as is unique).",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(help="Runs that a Temporal query finds: \"ExecutionStatus = 'Running'\".", show_default=False),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the histories of the runs as files.", show_default=False)
    ] = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Replay histories with this version of perdure; exit code 1 if one does not replay."""
    if not sources and query is None:
        raise typer.BadParameter("name files, folders or runs, or give --query")
    files = [Path(source) for source in sources or [] if Path(source).exists()]
    ids = [source for source in sources or [] if not Path(source).exists()]

    report = asyncio.run(_replay_histories(files, ids, query, save, server))
    if output is OutputFormat.TEXT:
        print_text(str(report))
    else:
        print_json(
            [_serialize_replayed_history(report, place) for place in range(len(report.histories))], output=output
        )
    raise typer.Exit(1 if report.failed else 0)


def _serialize_replayed_history(report: ReplayReport, place: int) -> dict[str, object]:
    one = report.histories[place]
    return {"name": one.name, "events": one.events, "replays": one.error is None, "error": one.error}


async def _replay_histories(
    files: list[Path], ids: list[str], query: str | None, save: Path | None, server: ConnectionOptions
) -> ReplayReport:
    from temporalio.converter import DataConverter

    from ..worker.replay import read_histories, replay_histories

    found: dict[str, WorkflowHistory] = {}
    for file in files:
        found |= read_histories(file)
    converter: DataConverter = DataConverter.default
    if ids or query is not None:
        live, converter = await _fetch_live_histories(ids, query, save, server)
        found |= live
    return await replay_histories(found, data_converter=converter)


async def _fetch_live_histories(
    prefixes: list[str], query: str | None, save: Path | None, server: ConnectionOptions
) -> tuple[dict[str, WorkflowHistory], DataConverter]:
    from ..errors import InvalidInputError
    from ..worker.replay import fetch_run_histories, list_run_ids, save_histories
    from .connection import find_run

    found: dict[str, WorkflowHistory] = {}
    async with open_client(server) as client:
        wanted = [(await find_run(client, prefix)).id for prefix in prefixes]
        wanted += await list_run_ids(client, query) if query is not None else []
        if not wanted:
            raise InvalidInputError(f"no run is found by {query!r}", hint=LIST_HINT)
        for run in dict.fromkeys(wanted):
            histories = await fetch_run_histories(client, run)
            if save is not None:
                save_histories(save, run, histories.values())
            found |= histories
        return found, client.temporal.data_converter
