"""Kinds of runs with remote tools, and forks, whose histories are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import activity
from temporalio.worker import Worker

from perdure import Agent, Run, remote_tool
from perdure.testing import ScriptedProvider, call
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


async def _run(engine: Engine, replies: Sequence[Any], stop: str | None = None) -> Run:
    """``far`` answers, ``bad`` raises, ``late`` answers the second time, ``stuck`` never."""
    queue = f"{engine.task_queue}-far"
    late, slow = Gate(), Gate()

    @activity.defn(name="tool.far")
    async def far(arguments: dict[str, Any]) -> Any:
        return arguments

    @activity.defn(name="tool.bad")
    async def bad(arguments: dict[str, Any]) -> Any:
        raise LookupError("there is none")

    @activity.defn(name="tool.late")
    async def late_(arguments: dict[str, Any]) -> Any:
        if late.entered:
            return "at last"
        await late()
        return None

    @activity.defn(name="tool.stuck")
    async def stuck(arguments: dict[str, Any]) -> Any:
        await slow()

    tools = [*TOOLS, *(remote_tool(name, {}, queue) for name in ("far", "bad", "stuck"))]
    tools.append(remote_tool("late", {}, queue, timeout=0.5, idempotent=True))
    agent = Agent("recorded", ScriptedProvider(replies), tools=tools)
    worker = Worker(await engine.temporal(), task_queue=queue, activities=[far, bad, late_, stuck])
    async with engine.served(agent) as client, worker:
        run = await client.start("recorded", "Go.")
        if stop is not None:
            await eventually(lambda: slow.entered, what="the remote tool")
            await (run.cancel() if stop == "cancel" else run.interrupt(stop))
        await _end(run)
        late.open()
        slow.open()
    return run


@scenario
async def remote_tools(engine: Engine) -> Run:
    return await _run(engine, [[call("far", n=1), call("add", a=1, b=1), call("bad")], call("late"), "Done."])


@scenario
async def remote_tool_interrupted(engine: Engine) -> Run:
    return await _run(engine, [[call("stuck"), call("far", n=1)], "Done."], "Enough.")


@scenario
async def remote_tool_cancelled(engine: Engine) -> Run:
    return await _run(engine, [[call("stuck"), call("far", n=1)]], "cancel")


@scenario
async def fork(engine: Engine) -> Run:
    agent = Agent("recorded", ScriptedProvider([call("add", a=1, b=1), "Two.", "Three."]), tools=TOOLS)
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
        (asked,) = [one.id for message in await run.transcript() for one in message.tool_calls]
        branch = await run.fork(results={asked: "3"})
        await _end(branch)
    return branch
