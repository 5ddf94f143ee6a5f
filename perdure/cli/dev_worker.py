"""The worker process of ``perdure dev``: ``… dev_worker FILE QUEUE ADDRESS NAMESPACE STORE [DIR]``."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.worker import Worker as TemporalWorker

from .._event_loop import run_event_loop
from .._terminal import print_line
from ..embedded.process import call_when_orphaned, report_to_parent
from ..errors import PerdureError
from ..local_engine.engine import build_agent_queue_name
from ..worker import PerdurePlugin
from ..worker.agent_folder import AgentFolder
from .agent_loader import AgentModule, find_author_files, find_failing_files, find_package_root, load_agent_module
from .connection import StoreOptions, open_client
from .worker import install_signal_handlers, log_to_stderr

DRAIN_SECONDS = 5.0
"""Seconds for running tools to end when their code has changed."""


def main(arguments: list[str]) -> int:
    """Load the file and serve it. Reports to the parent the files to watch, with ``serving`` or ``broken``."""
    file, queue, address, namespace, store, *folder = arguments
    log_to_stderr()
    try:
        loaded = load_agent_module(file, require_agents=not folder)
    except PerdureError as error:
        return _report_broken(file, error, error)
    server = StoreOptions(address, namespace, store_url=store)
    try:
        run_event_loop(_serve_queues(loaded, server, queue, file, *map(Path, folder)))
    except PerdureError as error:
        return _report_broken(file, error)
    return 0


def _report_broken(file: str, error: PerdureError, import_error: BaseException | None = None) -> int:
    files = _list_files_to_watch(file, import_error)
    report_to_parent("broken", error=error.message, hint=error.hint, files=files)
    return 1


async def _serve_queues(
    loaded: AgentModule, server: StoreOptions, queue: str, file: str, folder: Path | None = None
) -> None:
    """Serve the queue, and the queues on which the file's own ``agent.call()`` left runs behind."""
    stop = asyncio.Event()
    call_when_orphaned(stop.set)
    install_signal_handlers(stop, quiet=True)
    loaded.warn_of_missing_extras()
    queues = dict.fromkeys([queue, *(build_agent_queue_name(agent.name, Path(file)) for agent in loaded.agents)])
    async with open_client(server, task_queue=queue, warnings=True) as client:
        plugin = PerdurePlugin(loaded.agents, store_url=client.store_url, **loaded.worker_options)
        engine, agents, agent_files = plugin.engine, plugin.engine.agents, None
        if folder:
            record = engine.record_agents
            agent_files = AgentFolder(folder, agents, toolsets=loaded.toolsets, say=print_line, record=record)
        settings: dict[str, Any] = {"plugins": [plugin], "graceful_shutdown_timeout": timedelta(seconds=DRAIN_SECONDS)}
        workers = [TemporalWorker(client.temporal, task_queue=name, **settings) for name in queues]
        async with AsyncExitStack() as stack:
            # Opened here, too, as in Worker: a failing store or lifespan raises its error now.
            await stack.enter_async_context(engine.serve(client.temporal, queue))
            for worker in workers:
                await stack.enter_async_context(worker)
            report_to_parent("serving", agents=[agent.name for agent in agents], files=_list_files_to_watch(file))
            if agent_files is not None:
                await stack.enter_async_context(agent_files)
            await stop.wait()
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def _list_files_to_watch(file: str, error: BaseException | None = None) -> list[str]:
    entry = Path(file).absolute()
    return sorted(map(str, {entry, *find_author_files(find_package_root(entry)), *find_failing_files(error)}))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # as perdure.cli.main: a Temporal client left to the interpreter's exit may abort it
