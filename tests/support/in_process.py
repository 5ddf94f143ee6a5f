"""The engine of tests that need no server: perdure's client, workflow, stages and tools, and a fake Temporal service.

It has the interface of :class:`tests.support.engine.Engine`; the mark ``server`` says which of the two a test gets.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client as TemporalClient

from perdure import Agent, Client
from perdure.testing.service import InProcessService
from perdure.worker import Engine as WorkerEngine
from tests.support.ledger import Ledger


class InProcessEngine:
    """A fresh store. One block serves at a time, and the runs end with it: one that is to go on afterwards needs a
    server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task_queue = f"test-{uuid.uuid4().hex[:8]}"
        self.store_path = folder / "store.db"
        self.store_url: str | None = f"sqlite:///{self.store_path}"
        self.ledger = Ledger(folder / "ledger.jsonl")
        self._temporal: TemporalClient | None = None
        self._clients: list[Client] = []

    async def temporal(self) -> TemporalClient:
        """A plain Temporal client of the engine that serves."""
        assert self._temporal is not None, "inside of `async with engine.served(…)` alone"
        return self._temporal

    async def client(self, *, store: bool = True, **options: Any) -> Client:
        """A client of the engine that serves, closed at the end of the test."""
        url = self.store_url if store else None
        client = Client(await self.temporal(), store_url=url, task_queue=self.task_queue, actor="tests", **options)
        self._clients.append(client)
        return client

    @asynccontextmanager
    async def served(self, *agents: Agent, drain: float = 1.0, **options: Any) -> AsyncIterator[Client]:
        """Serve agents for the length of the block; yields a client."""
        engine = WorkerEngine(agents, **{"store_url": self.store_url, **options})
        async with engine.running():
            service = InProcessService(engine)
            self._temporal = TemporalClient(service)
            try:
                yield await self.client()
            finally:
                await service.close()

    async def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            await client.close()
