"""``kill -9``: forty tool iterations, three killed workers, every effect once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest

from perdure import Run
from perdure.errors import RunCancelledError
from perdure.ports.points import POINTS
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support import faults
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

ITERATIONS = 40
KILLS = 3
RECOVERY = 9.0
"""Seconds from SIGKILL to the next model call, at the defaults."""
GIVEN = 2.0
"""Seconds from a worker that serves to its first call, where the loss was noticed while it started."""
TOOL_SECONDS = 0.3


class Model:
    """Alternates ``work`` (at most once) and ``look`` (idempotent); remembers when it was asked and answered what."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def __call__(self, request: dict[str, Any]) -> Reply:
        n = sum(message["role"] == "assistant" for message in request["messages"])
        self.asked.append((time.monotonic(), n))
        if n >= ITERATIONS:
            return Reply(text="All done.", delay=0.01)
        return Reply(calls=[Call("look" if n % 4 == 3 else "work", {"n": str(n)}, id=f"call_{n}")], delay=0.02)

    def after(self, moment: float) -> float | None:
        """When it was asked next."""
        return next((at for at, _ in self.asked if at > moment), None)


@pytest.mark.alone
async def test_a_run_survives_three_kills_at_random_moments(engine: Engine) -> None:
    seed = int(os.environ.get("TEST_SEED", random.randrange(10**6)))
    dice = random.Random(seed)
    print(f"seed {seed}")
    model = Model()
    recoveries: list[float] = []
    async with OpenAIServer(model) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_TOOL_SECONDS": str(TOOL_SECONDS)}
        worker = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", "Work.")
        # Kills somewhere in the first, second and third quarter, at no particular point of an iteration.
        for kill in range(KILLS):
            progress = kill * ITERATIONS // 4 + dice.randrange(1, ITERATIONS // 4)
            await eventually(
                lambda reached=progress: max((n for _, n in model.asked), default=0) >= reached, deadline=60
            )
            await asyncio.sleep(dice.uniform(0, 0.6))
            await worker.kill()
            killed = time.monotonic()
            worker = await engine.process("counting", **settings)
            served = time.monotonic()
            asked = await eventually(lambda since=killed: model.after(since), deadline=60, what="a model call")
            recoveries.append(asked - killed)
            assert _in_time(killed, served, asked - TOOL_SECONDS), recoveries
        response = await asyncio.wait_for(run.result(), 120)
        stats = server.stats
    print(f"SIGKILL to next model call: {', '.join(f'{seconds:.1f} s' for seconds in recoveries)}")
    print(f"load {os.getloadavg()[0]:.1f}; model calls {stats.requests}, answered whole {stats.completed}")

    assert response.content == "All done."
    assert response.iterations == ITERATIONS + 1
    assert_closed(response.messages)
    said = results(response.messages)
    assert len(said) == ITERATIONS
    for n, text in enumerate(said):
        whole = f"looked {n}" if n % 4 == 3 else f"worked {n}"
        assert text == whole or (n % 4 != 3 and text.startswith("OutcomeUnknown: work")), (n, text)

    # Nothing that is not idempotent ran twice, and what the transcript calls unknown had really begun.
    begun = engine.ledger.counts("work")
    assert set(begun) == {str(n) for n in range(ITERATIONS) if n % 4 != 3}
    assert set(begun.values()) == {1}
    looked = engine.ledger.counts("look")
    assert sum(looked.values()) - len(looked) <= KILLS
    assert sum(text.startswith("OutcomeUnknown") for text in said) <= KILLS

    # A call is repeated only if the kill came before its reply had been received and recorded.
    asked_at = Counter(n for _, n in model.asked)
    assert set(asked_at) == set(range(ITERATIONS + 1))
    assert sum(asked_at.values()) - len(asked_at) <= KILLS
    assert max(asked_at.values()) <= 2


@pytest.mark.alone
async def test_a_kill_in_the_middle_of_a_reply(engine: Engine) -> None:
    def rule(request: dict[str, Any]) -> Reply:
        asked.append(time.monotonic())
        return Reply(text="Done.", delay=0.5 if len(asked) == 1 else 0.0)

    asked: list[float] = []
    async with OpenAIServer(rule) as server:
        worker = await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting", "Go on, then, one word at a time.")
        await eventually(lambda: asked)
        await worker.kill()
        killed = time.monotonic()
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        served = time.monotonic()
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."
    assert len(asked) == 2
    print(f"SIGKILL in a reply to next model call: {asked[1] - killed:.1f} s; load {os.getloadavg()[0]:.1f}")
    assert _in_time(killed, served, asked[1])


@pytest.mark.parametrize(
    ("tool", "point"),
    [*(("work", point) for point in POINTS), *(("look", point) for point in POINTS if point.startswith("tool."))],
)
async def test_a_kill_at(engine: Engine, tool: str, point: str) -> None:
    """``work`` must not run twice, ``look`` may. Whatever was recorded is neither paid nor done again."""

    def rule(request: dict[str, Any]) -> Reply:
        n = sum(message["role"] == "assistant" for message in request["messages"])
        asked.append(n)
        return Reply(text="Done.") if n else Reply(calls=[Call(tool, {"n": "0"}, id="call_0")])

    asked: list[int] = []
    async with OpenAIServer(rule) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_KILL_AT": point}
        doomed = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        assert await doomed.gone() == -signal.SIGKILL
        await engine.process("counting", **settings)  # it reaches the same point, and lives
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."
    assert_closed(response.messages)
    assert asked == ([0, 0, 1] if point == "model.answered" else [0, 1])
    unknown = tool == "work" and point in ("tool.claimed", "tool.acted")
    assert results(response.messages)[0].startswith("OutcomeUnknown: work" if unknown else f"{tool}ed 0")
    acted = {("work", "tool.claimed"): {}, ("look", "tool.acted"): {"0": 2}}.get((tool, point), {"0": 1})
    assert engine.ledger.counts(tool) == acted


def _in_time(killed: float, served: float, asked: float) -> bool:
    """Whether the next call came soon enough; a machine on which processes start slowly has its time for that."""
    return asked <= max(killed + RECOVERY, served + GIVEN) + _slack()


def _slack() -> float:
    """For other jobs on this machine."""
    return max(0.0, os.getloadavg()[0] - (os.cpu_count() or 1)) * 2


async def test_a_worker_that_is_told_to_stop_finishes_its_tool(engine: Engine) -> None:
    def rule(request: dict[str, Any]) -> Reply:
        n = sum(message["role"] == "assistant" for message in request["messages"])
        return Reply(text="Done.") if n else Reply(calls=[Call("work", {"n": "0"}, id="call_0")])

    async with OpenAIServer(rule) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_TOOL_SECONDS": "2"}
        worker = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        await eventually(lambda: engine.ledger.entries("work"))
        begun = time.monotonic()
        assert await worker.stop() == 0
        print(f"drained in {time.monotonic() - begun:.1f} s")
        assert engine.ledger.counts("worked") == {"0": 1}
        await engine.process("counting", **settings)
        response = await asyncio.wait_for(run.result(), 60)
    assert results(response.messages) == ["worked 0"]
    assert engine.ledger.counts("work") == {"0": 1}


@pytest.mark.alone
async def test_a_kill_in_the_middle_of_a_workflow_task(engine: Engine) -> None:
    asked: list[float] = []

    def rule(request: dict[str, Any]) -> Reply:
        asked.append(time.monotonic())
        return Reply(text="Done.")

    async with OpenAIServer(rule) as server:
        worker = await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting")
        await eventually(lambda: _waiting(run))
        worker.process.send_signal(signal.SIGSTOP)  # its polls stay open, so it is given the task, and never ends it
        await run.inject("Go.")
        await eventually(lambda: _task_started(run))
        await worker.kill()
        killed = time.monotonic()
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        served = time.monotonic()
        response = await asyncio.wait_for(run.result(), 60)
    print(f"SIGKILL in a workflow task to next model call: {asked[0] - killed:.1f} s; load {os.getloadavg()[0]:.1f}")
    assert response.content == "Done."
    assert len(asked) == 1
    assert _in_time(killed, served, asked[0])


async def test_a_worker_that_was_taken_for_lost_does_not_overwrite_how_the_run_ended(engine: Engine) -> None:
    """It hangs in a model call, the run is cancelled elsewhere, and then it goes on and records its reply."""
    gate = asyncio.Event()

    async def rule(request: dict[str, Any]) -> Reply:
        await gate.wait()
        return Reply(text="Too late.")

    async with OpenAIServer(rule) as server:
        lost = await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        await eventually(lambda: server.stats.requests)
        lost.process.send_signal(signal.SIGSTOP)
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await asyncio.wait_for(run.result(), 60)
        (closed,) = faults.sql(engine.store_path, RUN_ROW)
        assert closed[0] == "cancelled"
        recorded = faults.sql(engine.store_path, OUTCOMES)
        gate.set()
        lost.process.send_signal(signal.SIGCONT)
        await eventually(lambda: faults.sql(engine.store_path, OUTCOMES) > recorded, what="the late reply, recorded")
        assert faults.sql(engine.store_path, RUN_ROW) == [closed]


RUN_ROW = "SELECT status, head, result, updated_at FROM runs"
OUTCOMES = "SELECT count(*) FROM journal WHERE outcome IS NOT NULL"


async def _waiting(run: Run) -> bool:
    return (await run.status()).state == "waiting"


async def _task_started(run: Run) -> bool:
    raw = (await run.handle.describe()).raw_description
    return raw.HasField("pending_workflow_task") and raw.pending_workflow_task.HasField("started_time")
