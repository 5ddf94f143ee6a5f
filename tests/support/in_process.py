"""The engine of tests that need no server: perdure's client, workflow, stages and tools, and a fake Temporal service.

It is used like its base class; the mark ``server`` says which of the two a test gets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client as TemporalClient

from perdure import Agent, Client
from perdure.testing.fake_service import InProcessService
from perdure.worker import Engine as WorkerEngine
from tests.support.engine import Engine, WorkerProcess


class InProcessEngine(Engine):
    """One block serves at a time, and its runs end with it: a test whose run outlives a worker needs a server."""

    def __init__(self, folder: Path) -> None:
        super().__init__("in-process", folder)

    async def temporal(self) -> TemporalClient:
        """See base class."""
        assert self._temporal is not None, "only inside `async with engine.served(…)`; other tests are marked server"
        return self._temporal

    @asynccontextmanager
    async def served(self, *agents: Agent, drain: float = 1.0, **options: Any) -> AsyncIterator[Client]:
        """See base class; ``drain`` has no effect."""
        engine = WorkerEngine(agents, **{"store_url": self.store_url, **options})
        async with engine.serve():
            service = InProcessService(engine)
            self._temporal = TemporalClient(service)
            try:
                yield await self.client()
            finally:
                await service.close()

    def spawn(self, module: str, **env: str) -> WorkerProcess:
        """No process can serve a fake service."""
        raise NotImplementedError(f"a test that starts tests.workers.{module} is marked server")
