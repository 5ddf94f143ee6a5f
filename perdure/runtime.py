"""``local()``: the whole engine on this machine: the embedded server, a worker in this process, and a client."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from . import config
from .agent import Agent
from .client import Client
from .worker import Worker

T = TypeVar("T")

DRAIN = 5.0
"""Seconds that running tools are given at the end of the block; runs go on when they are served again."""


@asynccontextmanager
async def local(agents: Iterable[Agent], *, task_queue: str | None = None) -> AsyncIterator[Client]:
    """Serve ``agents`` for the length of the block; yields a client.

    Uses the server that ``TEMPORAL_*`` names, else the embedded one, which it starts if none runs. The task queue is
    ``PERDURE_TASK_QUEUE``, else this program's own, so that two programs on one machine do not take each other's runs.
    All that serve a queue at once must have the same agents: open one block for them all, or give each a queue.
    """
    queue = task_queue or os.environ.get("PERDURE_TASK_QUEUE") or entry_queue()
    client = await Client.connect(start_server=True, task_queue=queue)
    if client.store_url is None:
        client.store_url = config.home_store_url()
    try:
        async with Worker(client, agents, task_queue=queue, drain=DRAIN):
            yield client
    finally:
        await client.close()


def agent_queue(name: str) -> str:
    """The task queue on which this program calls agent ``name``: calls of several do not take each other's runs."""
    return os.environ.get("PERDURE_TASK_QUEUE") or f"{entry_queue()}-{name}"


def entry_queue(file: Path | None = None) -> str:
    """The task queue of ``file``, by default the one that this process was started with."""
    started = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else Path.cwd()
    entry = Path(file or started).absolute()
    return f"{config.TASK_QUEUE}-{entry.stem or 'python'}-{hashlib.sha256(str(entry).encode()).hexdigest()[:8]}"


def run_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end from code without an event loop. Raises ``RuntimeError`` inside a running one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    raise RuntimeError("call_sync() was called inside a running event loop: use `await agent.call(...)` there")
