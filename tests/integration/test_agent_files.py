"""Agents come to a worker that runs, change and go; no restart. From files: test_cli_dev.py."""

from __future__ import annotations

import pytest

from perdure import Agent, Worker, load_agent, tool
from perdure.errors import AgentNotFoundError, DefinitionError
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool
async def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


def talker(name: str, says: str) -> Agent:
    return Agent(name, ScriptedProvider([says] * 3))


async def test_agents_are_added_to_a_worker_that_runs(engine: Engine) -> None:
    client = await engine.client()
    async with Worker(client, [talker("first", "One.")], tools=[note], drain=1.0) as worker:
        assert (await (await client.start("first", "Hi.")).result()).content == "One."
        worker.add(talker("second", "Two."))
        assert (await (await client.start("second", "Hi.")).result()).content == "Two."
        with pytest.raises(DefinitionError, match="two agents are called 'second'"):
            worker.add(talker("second", "Other."))
        worker.add(talker("second", "Three."), replace=True)
        assert (await (await client.start("second", "Hi.")).result()).content == "Three."
        assert [agent.name for agent in worker.agents] == ["first", "second"]
        worker.remove("first")
        assert [agent.name for agent in worker.agents] == ["second"]
        with pytest.raises(AgentNotFoundError):
            worker.remove("first")


async def test_a_run_under_way_goes_on_with_the_agent_as_it_is_now(engine: Engine) -> None:
    """A call that has begun ends with the definition that it began with; the next has the new one."""
    gate = Gate()

    async def first(request: object) -> object:
        await gate()
        return call("note", what="x")

    spec = {"name": "keeper", "tools": ["note"]}
    old = load_agent(spec | {"model": "openai:gpt-5", "instructions": "Old."}, tools=[note])
    old.provider = ScriptedProvider(first)
    new = load_agent(spec | {"model": "openai:gpt-5", "instructions": "New."}, tools=[note])
    new.provider = ScriptedProvider(lambda request: request.system or "")
    client = await engine.client()
    async with Worker(client, [old], drain=1.0) as worker:
        run = await client.start("keeper", "Go.")
        await eventually(lambda: gate.entered, what="a model call")
        worker.add(new, replace=True)
        gate.open()
        response = await run.result()
    assert response.content == "New."
    assert results(response.messages) == ["noted x"]
