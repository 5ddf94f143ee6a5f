"""Runs go on while their PostgreSQL server is stopped as by a crash, and started again: every effect once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from perdure import Client
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.postgres import build_pooled_url, run_pgbouncer, run_server
from tests.support.wait import eventually

pytestmark = [pytest.mark.server, pytest.mark.postgres]

RUNS, ITERATIONS, STOPS = 5, 8, 3


@pytest.mark.parametrize("through", ["no proxy", "pgbouncer"])
async def test_runs_whose_store_stops_three_times(engine: Engine, through: str) -> None:
    asked: Counter[str] = Counter()

    def rule(request: dict[str, Any]) -> Reply:
        name = str(request["messages"][0]["content"])
        n = sum(message["role"] == "assistant" for message in request["messages"])
        asked[f"{name}-{n}"] += 1
        if n >= ITERATIONS:
            return Reply(text=f"All done, {name}.", delay=0.01)
        return Reply(calls=[Call("work", {"n": f"{name}-{n}"}, id=f"call_{n}")], delay=0.02)

    with run_server({"fsync": "on"}) as postgres, ExitStack() as stack:
        engine.store_url = postgres.url
        if through == "pgbouncer":
            engine.store_url = build_pooled_url(postgres.url, stack.enter_context(run_pgbouncer(postgres.url)))
        async with OpenAIServer(rule) as model:
            await asyncio.gather(*[engine.process("counting", TEST_MODEL_URL=model.base_url) for _ in range(2)])
            client = await engine.client()
            runs = [await client.start("counting", f"run{n}", id=f"{engine.task_queue}-{n}") for n in range(RUNS)]
            followers = [asyncio.create_task(_follow(client, run.id)) for run in runs]
            for stop in range(STOPS):
                reached = (stop + 1) * RUNS * ITERATIONS // (STOPS + 1)
                await eventually(lambda least=reached: len(engine.ledger.entries("worked")) >= least)
                await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
                await asyncio.to_thread(postgres.start)
            # First: they wait for the store, which a pooler refuses for a while, and a result does not.
            followed = await asyncio.wait_for(asyncio.gather(*followers), 120)
            responses = await asyncio.wait_for(asyncio.gather(*[run.result() for run in runs]), 60)

    for n, (response, seqs) in enumerate(zip(responses, followed, strict=True)):
        assert response.content == f"All done, run{n}."
        assert_closed(response.messages)
        assert results(response.messages) == [f"worked run{n}-{i}" for i in range(ITERATIONS)]
        assert seqs == sorted(set(seqs))
    effects = {f"run{n}-{i}": 1 for n in range(RUNS) for i in range(ITERATIONS)}
    assert engine.ledger.counts("work") == engine.ledger.counts("worked") == effects
    assert asked == effects | {f"run{n}-{ITERATIONS}": 1 for n in range(RUNS)}  # no reply was paid twice


async def _follow(client: Client, run_id: str) -> list[int]:
    """The numbers of a run's events, read to its end by a follower that survives the stops."""
    return [event.seq async for event in client.run(run_id).events()]
