"""What requests ask of Temporal and of the store: counted, since times are the machine's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import httpx

from perdure import Agent, Client
from perdure.testing import ScriptedProvider
from tests.support.engine import Engine
from tests.support.following import Slow
from tests.support.wait import eventually
from tests.support.web import read_frames, serve

STREAM = {"accept": "text/event-stream"}
DESCRIBE, UPDATE, END = "describe_workflow_execution", "update_workflow_execution", "get_workflow_execution_history"


class Costs:
    """Counts the requests of one client to Temporal, by method, and its reads of the store."""

    def __init__(self, client: Client) -> None:
        self.temporal: Counter[str] = Counter()
        self.store: Counter[str] = Counter()
        self._client = client

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.temporal.clear()
        self.store.clear()
        yield

    async def attach(self) -> None:
        service: Any = self._client.temporal.service_client
        call, store = service._rpc_call, await self._client.store()

        async def count_call(rpc: str, *arguments: Any, **options: Any) -> Any:
            self.temporal[rpc] += 1
            return await call(rpc, *arguments, **options)

        service._rpc_call = count_call
        for name in ("get_run", "get_turn", "read_events", "wait_for_event", "list_runs", "record_audit"):
            self._count_reads(store, name)

    def _count_reads(self, store: Any, name: str) -> None:
        read = getattr(store, name)

        async def count(*arguments: Any, **options: Any) -> Any:
            self.store[name] += 1
            return await read(*arguments, **options)

        setattr(store, name, count)


def answering() -> Agent:
    return Agent("echo", ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))


@asynccontextmanager
async def web(engine: Engine, agent: Agent) -> AsyncIterator[tuple[Client, httpx.AsyncClient, Costs]]:
    """A service whose client is not the one that the tests work with."""
    async with engine.served(agent) as client:
        own = await engine.client()
        costs = Costs(own)
        await costs.attach()
        async with serve(own) as service, service.connect() as http:
            yield client, http, costs


async def test_x(engine: Engine) -> None:
    async with web(engine, answering()) as (client, http, costs):
        first = await client.send("echo", "one", id="s")
        await first.result()
        for _ in range(2):
            with costs.counted():
                sent = (await http.post("/sessions/s/events", json={"type": "message", "content": "two"})).json()
                print("POST", costs.temporal, costs.store)
                turn = (await http.get(f"/sessions/s/turns/{sent['task_id']}", params={"wait": 30})).json()
                assert turn["state"] == "completed"
                print("HTTP", costs.temporal, costs.store)
        for _ in range(2):
            with costs.counted():
                await http.get(f"/sessions/s/turns/{sent['task_id']}")
                print("TURN", costs.temporal, costs.store)
        with costs.counted():
            await http.get("/sessions/s/events?limit=2")
            print("PAGE", costs.temporal, costs.store)
        with costs.counted():
            await http.get("/sessions/s/events")
            print("TAIL", costs.temporal, costs.store)
        with costs.counted():
            await http.get("/sessions/s")
            print("SESSION", costs.temporal, costs.store)
        with costs.counted():
            await http.get("/sessions")
            print("LIST", costs.temporal, costs.store)
        own = await engine.client()
        pc = Costs(own)
        await pc.attach()
        with pc.counted():
            await (await own.send("echo", "three", id="s")).result()
            print("PYTHON", pc.temporal, pc.store)
        with pc.counted():
            await (await own.send("echo", "three", id="s")).result()
            print("PYTHON", pc.temporal, pc.store)
        await client.run("s").close()
        await client.run("s").result()
        for _ in range(2):
            with costs.counted():
                await http.get("/sessions/s")
                print("CLOSED", costs.temporal, costs.store)
