"""``perdure replay``: checks that this version of perdure can go on with open runs."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import LIST_HINT, InvalidInputError
from ..terminal import print_text
from .connection import ServerOptions, call_client, find_run
from .output import OutputOptions

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory

    from ..client.client import Client
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
    from ..worker.replay import read_histories, replay_histories

    ids: list[str] = []
    histories: dict[str, WorkflowHistory] = {}
    for source in sources or ():
        if Path(source).exists():
            histories |= read_histories(Path(source))
        else:
            ids.append(source)
    if ids or query is not None:
        report = call_client(server, lambda client: _replay_with_runs(client, histories, ids, query, save))
    else:
        report = asyncio.run(replay_histories(histories))
    if output.format == "text":
        print_text(str(report))
    else:
        output.print_json([asdict(history) | {"replays": history.error is None} for history in report.histories])
    raise typer.Exit(1 if report.failed else 0)


async def _replay_with_runs(
    client: Client, histories: dict[str, WorkflowHistory], prefixes: list[str], query: str | None, save: Path | None
) -> ReplayReport:
    """Replay ``histories`` and those of the runs that ``prefixes`` and ``query`` name."""
    from ..worker.replay import fetch_run_histories, list_run_ids, replay_histories, save_histories

    ids = [(await find_run(client, prefix)).id for prefix in prefixes]
    ids += await list_run_ids(client, query) if query is not None else []
    if not ids:
        raise InvalidInputError(f"no run is found by {query!r}", hint=LIST_HINT)
    for run_id in dict.fromkeys(ids):
        run_histories = await fetch_run_histories(client, run_id)
        if save is not None:
            save_histories(save, run_id, run_histories.values())
        histories |= run_histories
    return await replay_histories(histories, data_converter=client.temporal.data_converter)
