"""Runs are looked at all the time, also while they are in no worker's cache: none may ever be wedged by that."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure import Agent, Client, Run, tool
from perdure.client.inbox import list_pending_calls_of_run
from perdure.errors import ServerUnreachableError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.worker.plugin import TaskBoundRunner
from tests.acceptance.query_reproduction import reproduce
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay a person."""
    return f"paid {to}"


def reply(request: ModelRequest) -> Any:
    said = request.messages[-1]
    return "Done." if said.role == "tool" else call("pay", to=said.text)


class NoQueries(Interceptor):
    """A client that queries fails the test."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _NoQueries(next)


class _NoQueries(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        raise AssertionError(f"run {input.id} was queried")


@pytest.mark.slow
async def test_a_query_is_answered_only_with_what_a_workflow_task_has_brought(engine: Engine) -> None:
    """Without ``TaskBoundRunner`` 2 to 17 of 24 queries see more than that, and up to 8 histories do not replay."""
    found = await reproduce(await engine.temporal(), "query", TaskBoundRunner)
    assert (found.ahead, found.unreplayable) == (0, 0), found.error


async def test_the_client_queries_no_open_run(engine: Engine) -> None:
    agent = Agent("payer", ScriptedProvider(reply), tools=[pay])
    temporal = await TemporalClient.connect(engine.address, interceptors=[NoQueries()])
    async with engine.served(agent), AsyncExitStack() as stack:
        for url in (engine.store_url, None):
            client = Client(temporal, store_url=url, task_queue=engine.task_queue, actor="ana")
            stack.push_async_callback(client.close)
            turn = await client.send("payer", "bob", id=f"session-{url is None}-{engine.task_queue}")
            run = turn.run
            await eventually(lambda run=run: _waits(run))
            assert (await turn.status()).state == "running"
            (pending,) = [one for one in await client.approvals() if one.run_id == run.id]
            await pending.approve()
            assert (await turn.result()).content == "Done."
            assert (await run.status()).doing == "message"
            assert (await run.turn().status()).state == "completed"
            await run.close()
            assert (await run.result()).content == "Done."
            assert (await run.status()).state == "completed"


async def _waits(run: Run) -> bool:
    return bool((await run.status()).approvals)


async def test_a_status_adds_nothing_to_history(engine: Engine) -> None:
    async with engine.served(Agent("payer", ScriptedProvider(reply), tools=[pay])) as client:
        run = await client.start("payer", "bob")
        await eventually(lambda: _waits(run))
        before = (await run.describe()).history_length
        for _ in range(50):
            await run.status()
        assert (await run.describe()).history_length == before


async def test_a_status_without_a_worker_is_what_the_store_and_temporal_know(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.served(Agent("payer", ScriptedProvider(reply), tools=[pay])) as client:
        run = await client.start("payer", "bob")
        await eventually(lambda: _waits(run))
        before = await run.status()
    monkeypatch.setattr("perdure.client.run.ANSWER_TIMEOUT", timedelta(seconds=1))
    status = await run.status()
    assert status.reason == "no worker answers on its task queue"
    assert (status.state, status.agent, status.iteration) == ("waiting", "payer", 1)
    assert (status.head, [one.hash for one in status.approvals]) == (before.head, [before.approvals[0].hash])


async def test_who_looks_at_a_run_without_a_worker_leaves_room_for_decisions(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal keeps ten updates of a run for a worker, however long ago their senders gave up."""
    agent = Agent("payer", ScriptedProvider(reply), tools=[pay])
    async with engine.served(agent) as client:
        run = await client.start("payer", "bob")
        await eventually(lambda: _waits(run))
        (asked,) = (await run.status()).approvals
    monkeypatch.setattr("perdure.client.run.ANSWER_TIMEOUT", timedelta(seconds=1))
    looks = [run.status() for _ in range(12)] + [run.turn().status() for _ in range(12)]
    await asyncio.gather(*looks)
    deciding = asyncio.ensure_future(run.approve(asked.call_id, by="ana"))
    async with engine.served(agent):
        assert (await deciding).by == "ana"
        assert (await run.result()).content == "Done."
    before = len((await run.handle.fetch_history()).events)
    assert before < 60, "a look is at most a workflow task that had to wait"


@pytest.mark.parametrize(("runs", "kills"), [(8, 2), pytest.param(24, 5, marks=pytest.mark.slow)])
async def test_runs_that_are_looked_at_and_decided_on_while_workers_are_killed_replay(
    engine: Engine, runs: int, kills: int
) -> None:
    """Row 22 of the review: 9 of 150 could not, and one stood still. ``engine`` replays what the workers have run."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(10**6)))
    dice = random.Random(seed)
    print(f"seed {seed}")
    client = await engine.client()
    worker = await engine.process("approving")

    async def decide(number: int) -> None:
        await asyncio.sleep(number * 0.5)
        run = await client.start("paying", f"w{number}")
        looking = asyncio.ensure_future(_look(run, dice.random()))
        pending = await eventually(lambda: list_pending_calls_of_run(run), what="a call that waits")
        while True:
            with suppress(ServerUnreachableError):  # no worker took it in time: sent again, it counts once
                await pending[0].approve(by="ana")
                break
        await looking
        await run.result()

    work = asyncio.gather(*(decide(number) for number in range(int(os.environ.get("TEST_RUNS", runs)))))
    for _ in range(kills):
        await asyncio.wait([work], timeout=dice.uniform(1, 3))
        await worker.kill()
        worker = await engine.process("approving")
    await work


async def _look(run: Run, pause: float) -> None:
    """By both ways: as our clients do, and as a plain one may."""
    while (status := await run.status()).state not in ("completed", "failed"):
        with suppress(RPCError, WorkflowQueryFailedError):
            await run.handle.query("status")
        await asyncio.sleep(pause)
    assert status.state == "completed"
