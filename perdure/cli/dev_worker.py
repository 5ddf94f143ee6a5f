"""The worker process of ``perdure dev``: ``… dev_worker FILE QUEUE ADDRESS NAMESPACE STORE [DIR]``."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from temporalio.worker import Worker as TemporalWorker

from ..embedded.process import call_when_orphaned, report_to_parent
from ..errors import DefinitionError, InvalidInputError, PerdureError
from ..local_engine import build_agent_queue_name
from ..worker import PerdurePlugin
from ..worker.agent_folder import AgentFolder
from .agent_loader import AgentModule, find_author_files, find_failing_files, find_package_root, load_agent_module
from .connection import ConnectionOptions, open_client
from .worker import install_signal_handlers, log_to_stderr, print_folder_message

DRAIN_SECONDS = 5.0
"""Seconds that running tools are given when their code has changed."""


def main(arguments: list[str]) -> int:
    """Load, serve, and tell the parent: which files to watch, then ``serving`` or ``load_error``."""
    file, queue, address, namespace, store, *folder = arguments
    log_to_stderr()
    try:
        loaded = load_agent_module(file, alone=not folder)
    except (DefinitionError, InvalidInputError) as error:
        report_to_parent("broken", error=error.message, hint=error.hint, files=_list_files_to_watch(file, error))
        return 1
    try:
        asyncio.run(
            _serve_queues(
                loaded, ConnectionOptions(address, namespace, store_url=store), queue, file, *map(Path, folder)
            )
        )
    except PerdureError as error:
        report_to_parent("broken", error=error.message, hint=error.hint, files=_list_files_to_watch(file))
        return 1
    return 0


async def _serve_queues(
    loaded: AgentModule, server: ConnectionOptions, queue: str, file: str, folder: Path | None = None
) -> None:
    """Serve the queue, and those on which the file's own ``agent.call()`` left runs behind."""
    stop = asyncio.Event()
    call_when_orphaned(stop.set)
    install_signal_handlers(stop, talks=False)
    queues = dict.fromkeys([queue, *(build_agent_queue_name(agent.name, Path(file)) for agent in loaded.agents)])
    async with open_client(server, task_queue=queue, warnings=True) as client:
        plugin = PerdurePlugin(
            loaded.agents,
            store_url=client.store_url,
            lifespan=loaded.lifespan,
            tools=loaded.tools,
            resolve_auth=loaded.resolve_auth,
        )
        agents = plugin.engine.agents
        files = AgentFolder(folder, agents, toolsets=loaded.toolsets, say=print_folder_message) if folder else None
        workers = [
            TemporalWorker(
                client.temporal,
                task_queue=name,
                plugins=[plugin],
                graceful_shutdown_timeout=timedelta(seconds=DRAIN_SECONDS),
            )
            for name in queues
        ]
        async with AsyncExitStack() as stack:
            # Opened here too, as in Worker: a store or a lifespan that fails is an error now.
            await stack.enter_async_context(plugin.engine.serve(client.temporal, queue))
            for worker in workers:
                await stack.enter_async_context(worker)
            report_to_parent("serving", agents=[agent.name for agent in agents], files=_list_files_to_watch(file))
            if files is not None:
                await stack.enter_async_context(files)
            await stop.wait()
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def _list_files_to_watch(file: str, error: BaseException | None = None) -> list[str]:
    entry = Path(file).absolute()
    return sorted(
        str(path) for path in {entry, *find_author_files(find_package_root(entry)), *find_failing_files(error)}
    )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # as perdure.cli.main: a Temporal client left to the interpreter's exit may abort it
