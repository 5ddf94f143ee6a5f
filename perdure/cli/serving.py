"""A client, and with ``--file`` a worker in this process: what ``run`` and ``chat`` stand on."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .connection import Server, connected

if TYPE_CHECKING:
    from ..agent import Agent
    from ..client import Client


@asynccontextmanager
async def served(
    server: Server, agent: str, *, file: str | None = None, task_queue: str | None = None, actor: str | None = None
) -> AsyncIterator[tuple[Client, str | Agent]]:
    """A client and the agent to start; a server is started if none runs.

    With ``file`` its agents are served from here, on the file's own queue, and the agent is the object, so that what
    it is given is checked at once. Raises ``InvalidInputError`` when the file has no such agent.
    """
    if file is None:
        async with connected(server, start_server=True, task_queue=task_queue, actor=actor) as client:
            yield client, agent
        return
    from ..runtime import DRAIN, entry_queue
    from ..worker import Worker
    from .load import load
    from .worker import log_to_stderr

    log_to_stderr()
    loaded = load(file)
    found = loaded.agent(agent)
    queue = task_queue or os.environ.get("PERDURE_TASK_QUEUE") or entry_queue(Path(file))
    async with (
        connected(server, start_server=True, task_queue=queue, actor=actor) as client,
        Worker(
            client,
            loaded.agents,
            drain=DRAIN,
            lifespan=loaded.lifespan,
            tools=loaded.tools,
            resolve_auth=loaded.resolve_auth,
        ),
    ):
        yield client, found
