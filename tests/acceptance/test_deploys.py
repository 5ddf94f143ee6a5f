"""Deploys under open runs, on a real server: versions are ramped and made current, drained and rolled back, and nothing
is lost or done twice."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Run
from tests.support import faults
from tests.support.cli import Cli
from tests.support.deployments import Deployment, OtherVersion
from tests.support.engine import Engine, WorkerProcess
from tests.support.wait import eventually

pytestmark = pytest.mark.server

GATE = ("replay", "--open")


@dataclass
class Fleet:
    """The workers of a deployment in processes of their own, and sessions that stay open."""

    engine: Engine
    deployment: Deployment
    client: Client
    cli: Cli

    async def start(self, version: str) -> WorkerProcess:
        """A worker of that version of the agents' code."""
        env = {"TEST_VERSION": version, "TEST_FOLDER": str(self.engine.folder)}
        return await self.engine.process("deployed", **env, **self.deployment.environment(version))

    async def gate(self, version: str) -> None:
        """The check before the deploy: open runs replay, and the new code has what they need."""
        done = await self.cli(*GATE, "--worker", "tests/workers/deployed.py")
        assert done.code == 0, f"before {version}: {done.out}{done.err}"

    async def deploy(self, version: str) -> WorkerProcess:
        """The gate, a worker, and all runs to it."""
        await self.gate(version)
        worker = await self.start(version)
        await self.deployment.set_current(version)
        return worker

    async def open(self, agent: str, message: str) -> Run:
        """A new session."""
        return await self.client.start(agent, message, id=f"{agent}-{uuid.uuid4().hex[:8]}", mode="session")

    async def ask(self, run: Run, message: str) -> str:
        """The answer to a message, which begins with the version that gave it."""
        return (await (await run.send(message)).result()).content

    async def ask_all(self, runs: list[Run], message: str) -> list[str]:
        """The answers of all sessions to a message of their own."""
        return list(await asyncio.gather(*(self.ask(run, f"{message} {run.id}") for run in runs)))

    async def count_pinned(self, version: str) -> int:
        """Runs that only the workers of the version go on with: until there are none, it is draining."""
        query = (
            f"TemporalWorkerDeploymentVersion = '{self.deployment.name}:{version}' AND ExecutionStatus = 'Running' "
            "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
        )
        return (await self.client.temporal.count_workflows(query)).count

    def check_ledger(self, **expected: int) -> None:
        """Every reply was given once, every payment made once; ``expected``: how many of what there are."""
        for what, count in expected.items():
            counts = self.engine.ledger.counts(what)
            assert set(counts.values()) == {1}, f"{what}: {counts}"
            assert len(counts) == count


@pytest.fixture
async def fleet(engine: Engine) -> AsyncIterator[Fleet]:
    env = {
        "TEMPORAL_ADDRESS": engine.address,
        "PERDURE_STORE_URL": str(engine.store_url),
        "PERDURE_TASK_QUEUE": engine.task_queue,
        "TEST_VERSION": "v0",
        "TEST_FOLDER": str(engine.folder),
        "TEST_LEDGER": str(engine.ledger.path),
    }
    cli = Cli(Path(__file__).parent.parent.parent, env)
    deployment = Deployment(engine.address, f"fleet-{uuid.uuid4().hex[:8]}")
    yield Fleet(engine, deployment, await engine.client(), cli)
    await cli.close()


async def is_waiting(run: Run) -> bool:
    return bool((await run.status()).approvals)


def versions(answers: list[str]) -> Counter[str]:
    return Counter(answer.partition(":")[0] for answer in answers)


@pytest.mark.parametrize("size", [3, pytest.param(40, marks=pytest.mark.slow)])
async def test_sessions_stay_open_across_three_deploys(fleet: Fleet, size: int) -> None:
    engine, deployment = fleet.engine, fleet.deployment
    first = await fleet.start("v1")
    await deployment.set_current("v1")
    careful = [await fleet.open("careful", f"hello {n}") for n in range(size)]
    plain = [await fleet.open("plain", f"hi {n}") for n in range(size)]
    sessions = careful + plain
    assert versions([(await run.turn().result()).content for run in sessions]) == {"v1": 2 * size}

    # A turn of each agent is in progress in the first deploy, and a call of each waits for approval.
    holding = {agent: await fleet.open(agent, f"hold {agent}") for agent in ("careful", "plain")}
    paying = {agent: await fleet.open(agent, f"pay {agent}") for agent in ("careful", "plain")}
    late = await fleet.open("careful", "pay late")
    await eventually(lambda: len(engine.ledger.entries("hold")) == 2, what="tools that run")
    for run in (*paying.values(), late):
        await eventually(lambda run=run: is_waiting(run), what="a call that waits")  # type: ignore[misc]

    await fleet.gate("v2")
    second = await fleet.start("v2")
    await deployment.set_ramping("v2", 50)
    ramped = versions(await fleet.ask_all(sessions, "ramp"))
    assert ramped.keys() <= {"v1", "v2"}
    assert sum(ramped.values()) == 2 * size
    await deployment.set_current("v2")
    assert versions(await fleet.ask_all(sessions, "two")) == {"v2": 2 * size}
    for name in holding:
        (engine.folder / name).touch()
    turns = {agent: (await run.turn().result()).content for agent, run in holding.items()}
    assert turns == {"careful": "v1: v1 held careful", "plain": "v2: v1 held plain"}
    for run in paying.values():
        await run.approve()
    turns = {agent: (await run.turn().result()).content for agent, run in paying.items()}
    assert turns == {"careful": "v1: v1 paid careful", "plain": "v2: v2 paid plain"}
    assert await fleet.ask(holding["careful"], "and now?") == "v2: and now?"

    third = await fleet.deploy("v3")
    assert versions(await fleet.ask_all(sessions, "three")) == {"v3": 2 * size}
    assert await second.stop() == 0
    # The first version is still needed: one of its turns waits for a person.
    status = await late.status()
    assert (status.version, status.version_pinned) == (f"{deployment.name}.v1", True)
    assert (await deployment.describe("v1"))["drainageInfo"]["drainageStatus"] == "draining"
    await eventually(lambda: _equals(fleet.count_pinned("v1"), 1), what="one run that is pinned")
    await late.approve()
    assert (await late.turn().result()).content == "v1: v1 paid late"
    await eventually(lambda: _equals(fleet.count_pinned("v1"), 0), what="no run that is pinned")
    assert await first.stop() == 0

    await fleet.deploy("v4")
    assert await third.stop() == 0
    everyone = [*sessions, *holding.values(), *paying.values(), late]
    assert versions(await fleet.ask_all(everyone, "four")) == {"v4": len(everyone)}
    said = await fleet.cli("show", late.id)
    assert f"on version {deployment.name}.v4" in said.out
    fleet.check_ledger(reply=2 * size * 4 + 2 * 5 + 1 + len(everyone), pay=3, hold=2)


async def _equals(count: Any, expected: int) -> bool:
    return bool(await count == expected)
