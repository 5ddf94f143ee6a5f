"""Replicas of the web service as processes that a test kills: ``perdure serve``."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cli import Cli, Command
from tests.support.engine import Engine


class Replicas:
    """Processes of ``perdure serve``, one at a time."""

    def __init__(self, engine: Engine) -> None:
        env = {
            "TEMPORAL_ADDRESS": engine.address,
            "PERDURE_HOME": str(engine.folder / "home"),
            "PERDURE_STORE_URL": str(engine.store_url),
            "PERDURE_TASK_QUEUE": engine.task_queue,
        }
        self._cli = Cli(engine.folder, env)
        self._process: Command | None = None

    async def start(self) -> str:
        """Start one; its address."""
        self._process = await self._cli.spawn("serve", "--dev", "--port", "0")
        found = re.search(r"http://[\d.]+:\d+", await self._process.until("/v1"))
        assert found is not None
        return found[0]

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.send(signal.SIGKILL)
        await self._process.ended()

    async def close(self) -> None:
        """End all."""
        await self._cli.close()


@asynccontextmanager
async def replicas_of(engine: Engine) -> AsyncIterator[Replicas]:
    replicas = Replicas(engine)
    try:
        yield replicas
    finally:
        await replicas.close()
