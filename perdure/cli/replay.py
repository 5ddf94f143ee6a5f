"""``perdure replay``: checks that this version of perdure can go on with open runs."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from .._terminal import print_line, print_text
from ..errors import LIST_HINT, InvalidInputError
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
    open_runs: Annotated[
        bool, typer.Option("--open", help="All open runs of the namespace, or of --task-queue: before a deploy.")
    ] = False,
    task_queue: Annotated[
        str | None, typer.Option("--task-queue", help="With --open: the runs of this queue; PERDURE_TASK_QUEUE.")
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|MODULE",
            help="With --open: compare the runs with the agents that `perdure worker` would serve of it.",
        ),
    ] = None,
    agents: Annotated[
        Path | None, typer.Option("--agents", metavar="DIR", help="With --worker: its folder of agent files.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Save the histories of the runs as files.")] = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Replay histories with this version of perdure; exit code 1 if one does not replay.

    `perdure replay --open` is the check before a deploy: with the new version, on the live namespace.
    """
    if open_runs:
        if sources or query is not None or save is not None:
            raise typer.BadParameter("--open takes all open runs: leave out files, ids, --query and --save")
        if agents is not None and worker is None:
            raise typer.BadParameter("--agents belongs to --worker")
        _print_report(_replay_open_runs(server, task_queue, worker, agents), output, ok=False)
        return
    if any(option is not None for option in (worker, agents, task_queue)):
        raise typer.BadParameter("--worker, --agents and --task-queue belong to --open")
    if not sources and query is None:
        raise typer.BadParameter("name files, folders or runs, or give --query or --open")
    from ..worker.replay import read_histories, replay_histories

    ids: list[str] = []
    histories: dict[str, WorkflowHistory] = {}
    for source in sources or ():
        if os.path.exists(source):  # noqa: PTH110  # a long id is no file; Path raises
            histories |= read_histories(Path(source))
        else:
            ids.append(source)
    if ids or query is not None:
        report = call_client(server, lambda client: _replay_with_runs(client, histories, ids, query, save))
    else:
        report = asyncio.run(replay_histories(histories))
    _print_report(report, output)


def _print_report(report: ReplayReport, output: OutputOptions, *, ok: bool = True) -> None:
    """Print the report, and end with the exit code. Without ``ok``, the runs without a problem are counted alone."""
    if output.format == "text":
        print_text("\n".join(report.list_lines(ok=ok)))
    else:
        output.print_json([asdict(history) | {"replays": history.error is None} for history in report.histories])
    raise typer.Exit(0 if all(history.is_ok for history in report.histories) else 1)


_PROGRESS_SECONDS = 5.0


def _replay_open_runs(
    server: ServerOptions, task_queue: str | None, worker: str | None, folder: Path | None
) -> ReplayReport:
    from .. import _config as config
    from ..calls.agents import Agents
    from ..types.interface import WORKFLOW_TYPE
    from ..worker.agent_folder import AgentFolder
    from ..worker.replay import build_open_query, replay_open_runs
    from .agent_loader import load_agent_module

    loaded = None if worker is None else load_agent_module(worker, require_agents=folder is None)
    agents = None if loaded is None else Agents(loaded.agents, loaded.tools)
    if loaded is not None and agents is not None and folder is not None:  # read here once, and not followed
        AgentFolder(folder, agents, toolsets=loaded.toolsets, say=lambda line: print_line(line, error=True))
    queue = config.named_task_queue(task_queue)
    next_line = monotonic() + _PROGRESS_SECONDS

    async def replay_runs(client: Client) -> ReplayReport:
        counted = await client.temporal.count_workflows(
            f"WorkflowType = '{WORKFLOW_TYPE}' AND {build_open_query(queue)}"
        )

        def print_progress(done: int) -> None:
            nonlocal next_line
            if monotonic() >= next_line:
                print_line(f"{done} of {counted.count} open runs", error=True)
                next_line = monotonic() + _PROGRESS_SECONDS

        place = f"task queue {queue}" if queue else f"namespace {client.temporal.namespace}"
        print_line(f"replays {counted.count} open runs of {place}", error=True)
        return await replay_open_runs(client, task_queue=queue, agents=agents, report_progress=print_progress)

    return call_client(server, replay_runs)


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
