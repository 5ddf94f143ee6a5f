"""Subagents of a conversation that goes on after its end have ids of their own: the earlier ones stay what they are."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Run, Step, hook, tool
from perdure.errors import AuthenticationError, RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.events import BranchCompleted, BranchStarted, ToolCompleted, ToolStarted
from tests.support.checks import users
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


def researcher(gate: Gate | None = None) -> Agent:
    async def reply(request: ModelRequest) -> str:
        if gate is not None and users(request.messages)[-1] == "slow":
            await gate()
        return f"found: {users(request.messages)[-1]}"

    return Agent("researcher", ScriptedProvider(reply))


def boss(*tasks: str) -> Agent:
    """Asks the researcher one task after another, each in a reply of its own."""

    def reply(request: ModelRequest) -> Any:
        asked = sum(bool(message.tool_calls) for message in request.messages)
        return call("call_researcher", task=tasks[asked]) if asked < len(tasks) else "Done."

    return Agent("boss", ScriptedProvider(reply), subagents=["researcher"])


async def in_tree(run: Run) -> list[tuple[str, str]]:
    """What each call of the run asked, and what came of the run that the events show under it."""
    started: dict[str, Any] = {}
    pairs = []
    async for event in run.events(wait=False):
        if isinstance(event, ToolStarted) and not event.path:
            started[event.call_id] = event
        if isinstance(event, ToolCompleted) and not event.path:
            child = run.client.run(str(started[event.call_id].child_context_id))
            pairs.append((started[event.call_id].arguments["task"], users(await child.transcript())[0]))
    return pairs


async def test_children_of_a_cancelled_run_that_is_resumed(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(boss("one", "slow", "three"), researcher(gate)) as client:
        run = await client.start("boss", "Go.")
        await eventually(lambda: gate.entered)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        gate.open()
        await run.resume()
        assert (await run.result()).content == "Done."
        children = await run.children()
        assert len({child.id for child in children}) == 3
        assert [users(await child.transcript())[0] for child in children] == ["one", "slow", "three"]
        assert await in_tree(run) == [("one", "one"), ("slow", "slow"), ("three", "three")]
        below = {event.context_id async for event in run.events(wait=False) if event.path}
        assert below == {child.id for child in children}


async def test_children_of_a_closed_session_that_goes_on(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        return (
            "Done." if request.messages[-1].role == "tool" else call("call_researcher", task=request.messages[-1].text)
        )

    agent = Agent("boss", ScriptedProvider(reply), subagents=["researcher"])
    async with engine.served(agent, researcher()) as client:
        for task in ("one", "two"):
            await (await client.send("boss", task, id=engine.task_queue)).result()
        run = client.run(engine.task_queue)
        before = [child.id for child in await run.children()]
        assert before == [await find_child_id(client, run.id, op) for op in (1, 4)], "of one execution"
        await run.close()
        await run.result()
        for task in ("three", "four"):
            await (await client.send("boss", task, id=engine.task_queue)).result()
        after = [child.id for child in await run.children()][2:]
        assert after == [await find_child_id(client, run.id, op) for op in (1, 4)], "the same operations"
        assert not set(after) & set(before)
        assert await in_tree(run) == [(task, task) for task in ("one", "two", "three", "four")]


async def test_branches_of_a_run_that_is_resumed(engine: Engine) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    @hook("on_iteration")
    async def ask(step: Step[Any]) -> None:
        await step.branch("researcher", "what?")

    replies = [call("look"), AuthenticationError("the key is wrong"), call("look"), "Done."]
    agent = Agent("boss", ScriptedProvider(replies), tools=[look], hooks=[ask])
    async with engine.served(agent, researcher()) as client:
        run = await client.start("boss", "Go.")
        with pytest.raises(AuthenticationError):
            await run.result()
        await run.resume()
        assert (await run.result()).content == "Done."
        events = [event async for event in run.events(wait=False)]
        began = [event.child_context_id for event in events if isinstance(event, BranchStarted)]
        ended = [event.child_context_id for event in events if isinstance(event, BranchCompleted)]
        assert len(set(began)) == 2
        assert set(began) == set(ended)
        for child in began:
            assert (await client.run(child).result()).content.startswith("found: ")


async def test_a_child_of_a_resumed_run_may_wait_and_be_steered(engine: Engine) -> None:
    """Its id is the one that status, events and the parent's own messages have."""
    gate = Gate()
    async with engine.served(boss("slow", "slow"), researcher(gate)) as client:
        run = await client.start("boss", "Go.")
        await eventually(lambda: gate.entered == 1)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        await run.resume()
        await eventually(lambda: gate.entered == 2)
        (child,) = [one.context_id for one in (await run.status()).calls]
        assert child == (await run.children())[-1].id
        assert (await client.run(str(child)).status()).state == "running"
        gate.open()
        assert (await run.result()).content == "Done."


async def test_children_of_a_session_that_is_paused_before_its_first_call(engine: Engine) -> None:
    """The store has a row of it by then, which is no earlier execution."""
    async with engine.served(boss("one"), researcher()) as client:
        run = client.run(engine.task_queue)
        start = {"agent": "boss", "mode": "session", "resume": True}
        await client.temporal.start_workflow("AgentWorkflow", start, id=run.id, task_queue=engine.task_queue)
        await run.pause()
        await eventually(lambda: _is_paused(run))
        turn = await run.send("Go.")
        await run.resume()
        await turn.result()
        assert [child.id for child in await run.children()] == [await find_child_id(client, run.id, 3)]


async def _is_paused(run: Run) -> bool:
    return (await run.status()).state == "paused"
