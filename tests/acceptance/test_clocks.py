"""Two workers of a task queue whose clocks are ten minutes apart: every effect once, and deadlines are the server's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support.checks import assert_closed, results
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server

RUNS, ITERATIONS = 4, 5
BEHIND, AHEAD = "-300", "300"


@pytest.mark.slow
@ON_BOTH_STORES
async def test_runs_pass_between_workers_with_other_clocks(engine: Engine) -> None:
    def rule(request: dict[str, Any]) -> Reply:
        name = str(request["messages"][0]["content"])
        n = sum(message["role"] == "assistant" for message in request["messages"])
        if n >= ITERATIONS:
            return Reply(text=f"All done, {name}.")
        return Reply(calls=[Call("look", {"n": f"{name}-{n}"}, id=f"call_{n}")])

    async with OpenAIServer(rule) as model:
        first = await engine.process("counting", TEST_MODEL_URL=model.base_url, TEST_CLOCK_SECONDS=AHEAD)
        client = await engine.client()
        runs = [await client.start("counting", f"run{n}", id=f"{engine.task_queue}-{n}") for n in range(RUNS)]
        await eventually(lambda: len(engine.ledger.entries("look")) >= RUNS)
        await first.kill()  # what it has written has times of the future
        await engine.process("counting", TEST_MODEL_URL=model.base_url, TEST_CLOCK_SECONDS=BEHIND)
        await engine.process("counting", TEST_MODEL_URL=model.base_url, TEST_CLOCK_SECONDS=AHEAD)
        responses = await asyncio.wait_for(asyncio.gather(*[run.result() for run in runs]), 120)
        events = [[event async for event in client.run(run.id).events()] for run in runs]
    for n, response in enumerate(responses):
        assert response.content == f"All done, run{n}."
        assert_closed(response.messages)
        assert results(response.messages) == [f"looked run{n}-{i}" for i in range(ITERATIONS)]
        seqs = [event.seq for event in events[n]]
        assert seqs == sorted(set(seqs))
        completed = [event.call_id for event in events[n] if event.type == "tool.completed"]
        assert sorted(completed) == sorted(set(completed)), "no result is recorded twice"
    listed = {row.id: row.status for row in await client.list(limit=100)}
    assert {listed[run.id] for run in runs} == {"completed"}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [BEHIND, AHEAD])
async def test_an_approval_expires_by_the_clock_of_the_server(engine: Engine, seconds: str) -> None:
    await engine.process("approving", TEST_CLOCK_SECONDS=seconds, TEST_EXPIRES="2")
    client = await engine.client()
    run = await client.start("paying", "bob")
    [pending] = await eventually(lambda: _approvals(run))
    assert pending.expires is not None
    response = await asyncio.wait_for(run.result(), 60)
    assert engine.ledger.entries("pay") == []
    assert "expired" in " ".join(results(response.messages)).lower()


async def _approvals(run: Any) -> Any:
    return (await run.status()).approvals
