"""Parallel calls that are given up together: by their caller, by Ctrl-C, by a second Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import Agent, Client, local
from perdure.local_engine import engine as local_engine
from perdure.testing import ScriptedProvider, call
from tests.support import forkserver
from tests.support.engine import ROOT, Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server

CALLS = 6


@pytest.fixture
def here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """``Agent.call`` goes to the tests' server, queue and store."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", engine.task_queue)
    return engine


async def list_ends(engine: Engine) -> list[str]:
    """How the runs of calls ended, once Temporal lists all of them; "RUNNING" for one that is open."""
    client = await engine.client()

    async def list_runs() -> list[Any]:
        runs = [run async for run in client.temporal.list_workflows(f"TaskQueue STARTS_WITH '{engine.task_queue}'")]
        return runs if len(runs) == CALLS else []

    handles = [client.temporal.get_workflow_handle(run.id) for run in await eventually(list_runs)]
    statuses = [(await handle.describe()).status or WorkflowExecutionStatus.RUNNING for handle in handles]
    return [status.name for status in statuses]


def holding(gate: Gate) -> Agent:
    async def reply(request: Any) -> str:
        await gate()
        return "Done."

    return Agent("held", ScriptedProvider(reply))


async def give_up(calls: list[asyncio.Task[Any]]) -> None:
    for calling in calls:
        calling.cancel()
    for calling in calls:
        with pytest.raises(asyncio.CancelledError):
            await calling


async def test_calls_that_are_given_up_together_leave_no_open_run(here: Engine) -> None:
    gate = Gate()
    agent = holding(gate)
    calls = [asyncio.create_task(agent.call("Go.")) for _ in range(CALLS)]
    await eventually(lambda: gate.entered == CALLS)
    await give_up(calls)
    assert await list_ends(here) == ["CANCELED"] * CALLS


async def test_a_call_that_goes_on_keeps_the_worker_of_those_that_were_given_up(here: Engine) -> None:
    gate = Gate()
    agent = holding(gate)
    calls = [asyncio.create_task(agent.call("Go.")) for _ in range(CALLS)]
    await eventually(lambda: gate.entered == CALLS)
    await give_up(calls[1:])
    gate.open()
    assert (await calls[0]).content == "Done."
    assert gate.entered == CALLS, "no model call was made twice"
    assert sorted(await list_ends(here)) == ["CANCELED"] * (CALLS - 1) + ["COMPLETED"]


async def test_a_block_of_local_ends_after_the_runs_of_its_calls(here: Engine) -> None:
    gate = Gate()
    agent = holding(gate)
    calls: list[asyncio.Task[Any]] = []
    async with local([agent]) as client:
        calls += [asyncio.create_task(agent.call("Go.", client=client)) for _ in range(CALLS)]
        await eventually(lambda: gate.entered == CALLS)
        for calling in calls:
            calling.cancel()
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert await list_ends(here) == ["CANCELED"] * CALLS


async def test_the_error_of_a_worker_that_does_not_start_reaches_every_call(
    here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**_: Any) -> Client:
        raise ConnectionError("no server here")

    monkeypatch.setattr(Client, "connect", refuse)
    ended = await asyncio.gather(*(holding(Gate()).call("Go.") for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in ended] == ["no server here"] * 3


async def test_a_call_after_a_cancelled_one_keeps_an_engine_that_serves(here: Engine) -> None:
    gate = Gate()
    agent = holding(gate)
    first = asyncio.create_task(agent.call("Go."))
    await eventually(lambda: gate.entered == 1)
    engines = local_engine._call_engines[asyncio.get_running_loop()]
    (closing,) = engines.values()
    first.cancel()
    await eventually(lambda: closing not in engines.values())
    second = asyncio.create_task(agent.call("Go."))
    await eventually(lambda: gate.entered == 2)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert [engine is not closing for engine in engines.values()] == [True], "the next call finds the second engine"
    gate.open()
    assert (await second).content == "Done."
    assert gate.entered == 2, "no model call was made twice"


async def test_a_run_that_is_terminated_leaves_no_subagent_open(here: Engine) -> None:
    gate = Gate()
    child = holding(gate)
    agent = Agent("parent", ScriptedProvider([call("call_held", task="Go.")]), subagents=[child])
    async with here.served(agent) as client:
        run = await client.start(agent, "Go.")
        await eventually(lambda: gate.entered)
        query = f"WorkflowId STARTS_WITH '{run.id}/'"

        async def list_children() -> list[Any]:
            return [child async for child in client.temporal.list_workflows(query)]

        (started,) = await eventually(list_children)
    await local_engine._terminate_tree(run, "no worker is left")
    described = await client.temporal.get_workflow_handle(started.id).describe()
    assert described.status == WorkflowExecutionStatus.TERMINATED


SCRIPT = f"""
    import asyncio, sys
    from perdure import Agent
    from perdure.local_engine import engine as local_engine
    from perdure.client.run import Run
    from perdure.testing import ScriptedProvider

    asked = []

    async def reply(request):
        asked.append(request)
        if len(asked) == {CALLS}:
            print("asked", flush=True)
        await asyncio.Event().wait()

    agent = Agent("interrupted", ScriptedProvider(reply))
    cancelled = []

    async def never_closed(run, run_id=None):
        cancelled.append(run)
        if len(cancelled) == {CALLS}:
            print("cancelled", flush=True)
        await asyncio.Event().wait()

    if sys.argv[2:] == ["stuck"]:
        local_engine.CALL_CANCEL_SECONDS = 600
        Run.wait_for_close = never_closed

    async def main():
        calls = [agent.call("Go.") for _ in range({CALLS})]
        if sys.argv[1] == "awaited":
            await asyncio.gather(*calls)
        tasks = [asyncio.create_task(call) for call in calls]  # that asyncio.run cancels, with those of the worker
        await asyncio.Event().wait()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
"""


async def start_program(folder: Path, *arguments: str) -> forkserver.Process:
    """A program whose calls all wait for the model."""
    file = folder / f"script-{uuid.uuid4().hex[:8]}.py"
    file.write_text(textwrap.dedent(SCRIPT))
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await forkserver.create_process(
        sys.executable, file, *arguments, cwd=folder, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    )
    await wait_for_line(process, b"asked\n")
    return process


async def wait_for_line(process: forkserver.Process, line: bytes) -> None:
    assert process.stdout is not None
    assert await process.stdout.readline() == line


@pytest.mark.parametrize(("main", "ends"), [("awaited", "CANCELED"), ("abandoned", "TERMINATED")])
async def test_ctrl_c_closes_the_runs_of_all_calls(here: Engine, tmp_path: Path, main: str, ends: str) -> None:
    process = await start_program(tmp_path, main)
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    process.close()
    assert (out.decode().splitlines()[-1], process.returncode) == ("KeyboardInterrupt", 0)
    assert await list_ends(here) == [ends] * CALLS


async def test_a_second_ctrl_c_does_not_wait_for_the_runs(here: Engine, tmp_path: Path) -> None:
    process = await start_program(tmp_path, "awaited", "stuck")
    process.send_signal(signal.SIGINT)
    await wait_for_line(process, b"cancelled\n")
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    process.close()
    assert (out.decode().splitlines()[-1], process.returncode) == ("KeyboardInterrupt", 0)
