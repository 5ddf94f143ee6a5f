"""The worker process of the demo: ``python -m perdure.cli.demo.worker FOLDER MODEL QUEUE ADDRESS NAMESPACE STORE``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from ...errors import PerdureError
from ..children import on_orphaned, report
from ..connection import Server, connected
from ..load import Loaded
from ..worker import serve
from .agent import reader


async def main(folder: str, model: str, queue: str, address: str, namespace: str, store: str) -> None:
    """Serve until told to stop, or until the demo is gone."""
    stop = asyncio.Event()
    on_orphaned(stop.set)
    loaded = Loaded(folder, (reader(Path(folder), model),))
    async with connected(Server(address, namespace, store_url=store), task_queue=queue) as client:
        await serve(client, loaded, drain=1.0, stop=stop, ready=lambda _: report("serving"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # what matters of it is in the run's status, which the demo shows
    try:
        asyncio.run(main(*sys.argv[1:]))
    except PerdureError as error:
        report("broken", error=error.message, hint=error.hint)
    sys.stdout.flush()
    os._exit(0)  # as perdure.cli.main
