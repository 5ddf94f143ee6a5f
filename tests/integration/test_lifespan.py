"""``lifespan=``: what a worker's tools and instructions share, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, PerdurePlugin, RunContext, ToolContext, Worker, local, tool
from perdure.errors import RuntimeSetupError
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


class Pool:
    """A pool of connections: bound to the event loop in which it was made, as real ones are."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open = True
        self.asked: list[str] = []

    async def ask(self, question: str) -> str:
        assert self.open, "closed"
        assert asyncio.get_running_loop() is self.loop, "another loop"
        self.asked.append(question)
        return f"{question}!"


class Lifespan:
    """Makes a pool for each worker, and remembers them."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []

    def __call__(self) -> AbstractAsyncContextManager[Pool]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Pool]:
        pool = Pool()
        self.pools.append(pool)
        yield pool
        pool.open = False


@tool
async def ask(ctx: ToolContext, question: str) -> str:
    """Ask the pool."""
    answer: str = await ctx.resources.ask(question)
    return answer


@tool(inline=True)
def peek(ctx: ToolContext) -> bool:
    """Look whether it is open."""
    opened: bool = ctx.resources.open
    return opened


async def instructions(ctx: RunContext) -> str:
    return await ctx.resources.ask("instructions")


def asker() -> Agent:
    replies = [[call("ask", question="tool"), call("peek")], "Done."]
    return Agent("asker", ScriptedProvider(replies), instructions=instructions, tools=[ask, peek])


async def test_tools_and_instructions_share_what_it_yields(engine: Engine) -> None:
    lifespan = Lifespan()
    async with engine.served(asker(), lifespan=lifespan) as client:
        (pool,) = lifespan.pools
        assert pool.open
        response = await (await client.start("asker", "Go.")).result()
    assert results(response.messages) == ["tool!", "true"]
    assert pool.asked == ["instructions", "tool", "instructions"]
    assert not pool.open


@pytest.mark.server
async def test_with_the_plugin_on_a_worker_of_ones_own(engine: Engine) -> None:
    lifespan = Lifespan()
    plugin = PerdurePlugin([asker()], store_url=engine.store_url, lifespan=lifespan)
    async with TemporalWorker(await engine.temporal(), task_queue=engine.task_queue, plugins=[plugin]):
        client = await engine.client()
        response = await (await client.start("asker", "Go.")).result()
    assert results(response.messages)[0] == "tool!"
    assert [pool.open for pool in lifespan.pools] == [False]


@pytest.mark.server
async def test_with_local(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    lifespan = Lifespan()
    async with local([asker()], task_queue=engine.task_queue, lifespan=lifespan) as client:
        response = await (await client.start("asker", "Go.")).result()
    assert results(response.messages)[0] == "tool!"
    assert [pool.open for pool in lifespan.pools] == [False]


@pytest.mark.server
async def test_it_is_left_behind_the_last_tool(engine: Engine) -> None:
    """A worker that is told to stop drains first: its tools still need the pool."""
    lifespan, gate = Lifespan(), Gate()

    @tool
    async def late(ctx: ToolContext) -> str:
        """Ask when the worker stops already."""
        await gate()
        answer: str = await ctx.resources.ask("late")
        return answer

    agent = Agent("late", ScriptedProvider([call("late"), "Done."] * 2), tools=[late])
    client = await engine.client()
    async with Worker(client, [agent], drain=20, lifespan=lifespan):
        run = await client.start("late", "Go.")
        await eventually(lambda: gate.entered)
        asyncio.get_running_loop().call_later(0.3, gate.open)
    assert lifespan.pools[0].asked == ["late"]
    async with Worker(client, [agent], lifespan=lifespan):
        response = await run.result()
    assert results(response.messages) == ["late!"]
    assert [pool.open for pool in lifespan.pools] == [False, False]


@asynccontextmanager
async def refusing() -> AsyncIterator[Any]:
    raise ConnectionRefusedError("no database at db:5432")
    yield


@pytest.mark.server
async def test_a_worker_whose_lifespan_fails_does_not_start(engine: Engine) -> None:
    client = await engine.client()
    worker = Worker(client, [asker()], lifespan=refusing)
    for _ in range(2):  # and what it had opened is closed: it may be tried again
        with pytest.raises(RuntimeSetupError, match=r"lifespan refusing failed .*ConnectionRefusedError: no database"):
            async with worker:
                pytest.fail("it must not serve")
    plugin = PerdurePlugin([asker()], store_url=engine.store_url, lifespan=refusing)
    host = TemporalWorker(await engine.temporal(), task_queue=engine.task_queue, plugins=[plugin])
    with pytest.raises(RuntimeSetupError, match="no database"):
        await asyncio.wait_for(host.run(), 30)
