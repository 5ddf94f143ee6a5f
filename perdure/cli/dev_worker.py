"""The worker process of ``perdure dev``: ``… dev_worker FILE QUEUE ADDRESS NAMESPACE STORE [DIR]``."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from temporalio.worker import Worker as TemporalWorker

from ..embedded.process import on_orphaned, report
from ..errors import DefinitionError, InvalidInputError, PerdureError
from ..local_engine import agent_queue
from ..worker import PerdurePlugin
from ..worker.agent_folder import AgentFolder
from .agent_loader import Loaded, author_files, failing_files, load, package_root
from .connection import Server, connected
from .worker import log_to_stderr, on_signals, say

DRAIN = 5.0
"""Seconds that running tools are given when their code has changed."""


def main(arguments: list[str]) -> int:
    """Load, serve, and tell the parent: which files to watch, then ``serving`` or ``broken``."""
    file, queue, address, namespace, store, *folder = arguments
    log_to_stderr()
    try:
        loaded = load(file, alone=not folder)
    except (DefinitionError, InvalidInputError) as error:
        report("broken", error=error.message, hint=error.hint, files=_files(file, error))
        return 1
    try:
        asyncio.run(_serve(loaded, Server(address, namespace, store_url=store), queue, file, *map(Path, folder)))
    except PerdureError as error:
        report("broken", error=error.message, hint=error.hint, files=_files(file))
        return 1
    return 0


async def _serve(loaded: Loaded, server: Server, queue: str, file: str, folder: Path | None = None) -> None:
    """Serve the queue, and those on which the file's own ``agent.call()`` left runs behind."""
    stop = asyncio.Event()
    on_orphaned(stop.set)
    on_signals(stop, talks=False)
    queues = dict.fromkeys([queue, *(agent_queue(agent.name, Path(file)) for agent in loaded.agents)])
    async with connected(server, task_queue=queue, warnings=True) as client:
        plugin = PerdurePlugin(
            loaded.agents,
            store_url=client.store_url,
            lifespan=loaded.lifespan,
            tools=loaded.tools,
            resolve_auth=loaded.resolve_auth,
        )
        agents = plugin.engine.agents
        files = AgentFolder(folder, agents, toolsets=loaded.toolsets, say=say) if folder else None
        workers = [
            TemporalWorker(
                client.temporal,
                task_queue=name,
                plugins=[plugin],
                graceful_shutdown_timeout=timedelta(seconds=DRAIN),
            )
            for name in queues
        ]
        async with AsyncExitStack() as stack:
            # Opened here too, as in Worker: a store or a lifespan that fails is an error now.
            await stack.enter_async_context(plugin.engine.running(client.temporal, queue))
            for worker in workers:
                await stack.enter_async_context(worker)
            report("serving", agents=[agent.name for agent in agents], files=_files(file))
            if files is not None:
                await stack.enter_async_context(files)
            await stop.wait()
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def _files(file: str, error: BaseException | None = None) -> list[str]:
    entry = Path(file).absolute()
    return sorted(str(path) for path in {entry, *author_files(package_root(entry)), *failing_files(error)})


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # as perdure.cli.main: a Temporal client left to the interpreter's exit may abort it
