"""Kinds of runs whose agents work in background: collected, spoken to, left behind, lost, cancelled with their parent.

Of each the parent's history is recorded; ``background_child`` is that of a child.
"""

from __future__ import annotations

from typing import Any

from perdure import Agent, Run, background
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


def start(message: str) -> Any:
    return call("start_agent", agent_name="helper", message=message)


def collect(handle: str) -> Any:
    return call("collect_agent", handle=handle)


class Scene:
    """A parent with its n-th reply; helpers that answer when the gate is open."""

    def __init__(self, *replies: Any) -> None:
        self.gate = Gate()

        def reply(request: ModelRequest) -> Any:
            return replies[min(replied(request), len(replies) - 1)]

        async def held(_: ModelRequest) -> str:
            await self.gate()
            return "Helped."

        helper = Agent("helper", ScriptedProvider(held))
        tools = [*TOOLS, *background([helper])]
        self.agent = Agent("recorded", ScriptedProvider(reply), tools=tools)


async def collecting(run: Run) -> bool:
    status = await run.status()
    return bool(status.calls) and all(one.tool == "collect_agent" for one in status.calls)


async def _collected(engine: Engine) -> Run:
    scene = Scene(
        [start("a"), start("b")],
        [call("tell_agent", handle="b1", message="more"), call("add", a=1, b=2)],
        [collect("b1"), collect("b2")],
        collect("b1"),
        "Done.",
    )
    async with engine.served(scene.agent) as client:
        run = await client.start("recorded", "Go.", max_history_events=20)
        await eventually(lambda: collecting(run))
        scene.gate.open()
        await _end(run)
    return run


@scenario
async def background_collected(engine: Engine) -> Run:
    """Two are started, one is told more, both are collected; the parent continues as new meanwhile."""
    return await _collected(engine)


@scenario
async def background_child(engine: Engine) -> Run:
    """It tells its parent that it has ended."""
    run = await _collected(engine)
    return run.client.run(await find_child_id(run.client, run.id, 1))


@scenario
async def background_told_as_it_starts(engine: Engine) -> Run:
    """The reply that starts one speaks to it too."""
    scene = Scene([start("a"), call("tell_agent", handle="b1", message="more")], collect("b1"), "Done.")
    scene.gate.open()
    async with engine.served(scene.agent) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def background_left_behind(engine: Engine) -> Run:
    """The parent has its answer: they are stopped."""
    scene = Scene([start("a"), start("b")], "Done.")
    async with engine.served(scene.agent) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def background_of_a_cancelled_run(engine: Engine) -> Run:
    """They are cancelled too."""
    scene = Scene([start("a"), start("b")], collect("b1"))
    async with engine.served(scene.agent) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: collecting(run))
        await run.cancel()
        await _end(run)
    return run


@scenario
async def background_lost(engine: Engine) -> Run:
    """One is terminated; another is spoken to when it has ended."""
    scene = Scene(start("a"), collect("b1"), call("tell_agent", handle="b1", message="There?"), "Done.")
    async with engine.served(scene.agent) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: collecting(run))
        await client.run(await find_child_id(client, run.id, 1)).handle.terminate()
        await _end(run)
    return run


@scenario
async def background_interrupted(engine: Engine) -> Run:
    """The wait is over, and the work goes on; the session is closed over it."""
    scene = Scene(start("a"), collect("b1"), "Stopped.")
    async with engine.served(scene.agent) as client:
        run = await client.start("recorded", "Go.", mode="session")
        await eventually(lambda: collecting(run))
        await run.interrupt("Stop.")
        await run.turn().result()
        await run.close()
        await _end(run)
    return run
