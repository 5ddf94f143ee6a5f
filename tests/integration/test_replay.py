"""Replay of runs that a server knows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent
from perdure.errors import InvalidInputError, RunNotFoundError
from perdure.testing import ReplayReport, ScriptedProvider, replay
from tests.support.cli import Cli
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then
from tests.support.wait import eventually

pytestmark = pytest.mark.server


def add(a: int) -> int:
    """Add."""
    return a


def an_agent(iterations: int) -> Agent:
    return Agent("replayed", ScriptedProvider(calls_then(iterations, "add", a=1)), tools=[add])


@pytest.fixture
async def cli(engine: Engine) -> AsyncIterator[Cli]:
    """Commands on the server of this test."""
    commands = Cli(engine.folder, {"TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)})
    yield commands
    await commands.close()


async def test_every_execution_of_a_run_is_replayed(engine: Engine, cli: Cli, tmp_path: Path) -> None:
    async with engine.served(an_agent(9)) as client:
        run = await client.start("replayed", "Go.", max_history_events=20)
        await run.result()
        report = await replay(client=client, id=run.id)
        assert len(report.histories) > 2
        assert [one.name for one in report.histories][:2] == [f"{run.id} (execution 1)", f"{run.id} (execution 2)"]
        await (await run.send("Again.")).result()

        async def more() -> ReplayReport | None:  # those before it are in Temporal's list alone, a moment later
            found = await replay(client=client, id=run.id)
            return found if len(found.histories) > len(report.histories) else None

        again = await eventually(more, what="an execution that a message has opened, beside those before it")
        assert again is not None
    saved = await cli("replay", run.id[:-2], "--save", str(tmp_path / "saved"), "-o", "json")
    assert (saved.code, saved.err) == (0, "")
    assert [one["replays"] for one in json.loads(saved.out)] == [True] * len(again.histories)
    kept = await cli("replay", str(tmp_path / "saved"))
    assert kept.out.splitlines()[-1] == f"all {len(again.histories)} replay"


async def test_runs_that_a_query_finds(engine: Engine, cli: Cli) -> None:
    gate = Gate()

    async def reply(_: object) -> str:
        await gate()
        return "Done."

    async with engine.served(Agent("replayed", ScriptedProvider(reply))) as client:
        runs = [await client.start("replayed", "Go.") for _ in range(2)]
        await eventually(lambda: gate.entered == 2)
        query = f"TaskQueue = '{engine.task_queue}' AND ExecutionStatus = 'Running'"

        async def found() -> bool:  # visibility lags behind a little
            said = await cli("replay", "--query", query)
            return (said.code, said.out.count("ok  "), said.out.splitlines()[-1:]) == (0, 2, ["all 2 replay"])

        await eventually(found)
        assert {one.name for one in (await replay(client=client, query=query)).histories} == {run.id for run in runs}
        gate.open()
        for run in runs:
            await run.result()
        with pytest.raises(InvalidInputError, match="no run matches"):
            await replay(client=client, query="WorkflowId = 'nothing'")
        with pytest.raises(InvalidInputError, match="the query 'not a query'"):
            await replay(client=client, query="not a query")
        with pytest.raises(RunNotFoundError):
            await replay(client=client, id="nothing")
    assert (await cli("replay", "nothing")).code == 3
    assert (await cli("replay", "--query", "not a query")).code == 2
