"""``perdure replay``: checks that this version of perdure can go on with open runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import LIST_HINT, InvalidInputError
from ..terminal import print_text
from .connection import ServerOptions, find_run, open_client
from .output import OutputFormat, OutputOptions

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory
    from temporalio.converter import DataConverter

    from ..worker.replay import ReplayReport


def replay(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|DIR|ID", help="History files, folders of them, or ids of runs (or unique beginnings of ids)."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Runs that match a Temporal query: \"ExecutionStatus = 'Running'\".")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Save the histories of the runs as files.")] = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Replay histories with this version of perdure; exit code 1 if one does not replay."""
    if not sources and query is None:
        raise typer.BadParameter("name files, folders or runs, or give --query")
    files = [Path(source) for source in sources or () if Path(source).exists()]
    ids = [source for source in sources or () if not Path(source).exists()]
    report = asyncio.run(_replay_histories(files, ids, query, save, server))
    if output.format is OutputFormat.TEXT:
        print_text(str(report))
    else:
        output.print_json(
            [
                {
                    "name": history.name,
                    "events": history.events,
                    "replays": history.error is None,
                    "error": history.error,
                }
                for history in report.histories
            ]
        )
    raise typer.Exit(1 if report.failed else 0)


async def _replay_histories(
    files: list[Path], ids: list[str], query: str | None, save: Path | None, server: ServerOptions
) -> ReplayReport:
    from temporalio.converter import DataConverter

    from ..worker.replay import read_histories, replay_histories

    histories: dict[str, WorkflowHistory] = {}
    for file in files:
        histories |= read_histories(file)
    converter: DataConverter = DataConverter.default
    if ids or query is not None:
        live, converter = await _fetch_live_histories(ids, query, save, server)
        histories |= live
    return await replay_histories(histories, data_converter=converter)


async def _fetch_live_histories(
    prefixes: list[str], query: str | None, save: Path | None, server: ServerOptions
) -> tuple[dict[str, WorkflowHistory], DataConverter]:
    from ..worker.replay import fetch_run_histories, list_run_ids, save_histories

    histories: dict[str, WorkflowHistory] = {}
    async with open_client(server) as client:
        ids = [(await find_run(client, prefix)).id for prefix in prefixes]
        ids += await list_run_ids(client, query) if query is not None else []
        if not ids:
            raise InvalidInputError(f"no run is found by {query!r}", hint=LIST_HINT)
        for run_id in dict.fromkeys(ids):
            run_histories = await fetch_run_histories(client, run_id)
            if save is not None:
                save_histories(save, run_id, run_histories.values())
            histories |= run_histories
        return histories, client.temporal.data_converter
