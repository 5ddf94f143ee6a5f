"""The worker process of ``perdure dev``: ``python -m perdure.cli.dev_worker FILE QUEUE ADDRESS NAMESPACE STORE``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ..errors import DefinitionError, InvalidInputError, PerdureError
from .children import on_orphaned, report
from .connection import Server, connected
from .load import Loaded, author_files, failing_files, load
from .worker import log_to_stderr, serve

DRAIN = 5.0
"""Seconds that running tools are given when their code has changed."""


def main(arguments: list[str]) -> int:
    """Load, serve, and tell the parent: which files to watch, then ``serving`` or ``broken``."""
    file, queue, address, namespace, store = arguments
    log_to_stderr()
    try:
        loaded = load(file)
    except (DefinitionError, InvalidInputError) as error:
        report("broken", error=error.message, hint=error.hint, files=_files(file, error))
        return 1
    try:
        asyncio.run(_serve(loaded, Server(address, namespace, store_url=store), queue, _files(file)))
    except PerdureError as error:
        report("broken", error=error.message, hint=error.hint, files=_files(file))
        return 1
    return 0


async def _serve(loaded: Loaded, server: Server, queue: str, files: list[str]) -> None:
    stop = asyncio.Event()
    on_orphaned(stop.set)
    async with connected(server, task_queue=queue) as client:
        agents = [agent.name for agent in loaded.agents]
        await serve(
            client, loaded, drain=DRAIN, stop=stop, ready=lambda _: report("serving", agents=agents, files=files)
        )


def _files(file: str, error: BaseException | None = None) -> list[str]:
    entry = Path(file).absolute()
    return sorted(str(path) for path in {entry, *author_files(entry.parent), *failing_files(error)})


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # as perdure.cli.main: a Temporal client left to the interpreter's exit may abort it
