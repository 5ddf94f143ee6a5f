"""Agents come to a worker that runs, change and go; no restart."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent, Worker, load_agent, tool
from perdure.errors import AgentNotFoundError, DefinitionError
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.cli import Cli
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server

CODE = '''
from perdure import register_provider, tool
from perdure.testing import ScriptedProvider, call


@tool
def refund(order_id: str) -> str:
    """Refund an order."""
    return f"refunded {order_id}"


def answer(request):
    said = [message for message in request.messages if message.role == "tool"]
    if request.tools and not said:
        return call("refund", order_id="7")
    return f"{request.system}: " + " ".join(result.content for one in said for result in one.tool_results)


register_provider("script", ScriptedProvider(answer))
tools = [refund]
'''


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


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with ``agents.py``, which has tools and no agents, and a folder ``agents``."""
    (tmp_path / "agents.py").write_text(CODE)
    (tmp_path / "agents").mkdir()
    cli = Cli(
        tmp_path,
        {
            "TEMPORAL_ADDRESS": temporal_address,
            "PERDURE_HOME": str(tmp_path / "home"),
            "PERDURE_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}",
            "PERDURE_TASK_QUEUE": f"cli-{uuid.uuid4().hex[:8]}",
        },
    )
    yield cli
    await cli.close()


async def test_a_worker_serves_a_folder(cli: Cli) -> None:
    """Files are taken up, changed, broken and removed under it."""
    command = await cli.spawn("worker", "agents.py", "--agents", "agents")
    await command.until("serving no agents yet on queue ")
    file = cli.folder / "agents" / "support.yaml"
    file.write_text("model: script:m\ninstructions: Kind\ntools: [refund]\n")
    await command.until("serving: support (support.yaml)")
    assert (await cli("run", "support", "Hi")).out == "Kind: refunded 7\n"
    file.write_text("model: script:m\ninstructions: Brief\n")
    await command.until("serving: support (support.yaml)")
    assert (await cli("run", "support", "Hi")).out == "Brief: \n"
    file.write_text("model: script:m\ntools: [pay]\n")
    await command.until("tools: there is no 'pay' (there is: refund)")
    assert (await cli("run", "support", "Hi")).out == "Brief: \n"
    (cli.folder / "agents" / "other.json").write_text(json.dumps({"model": "script:m", "instructions": "Other"}))
    await command.until("serving: other (other.json)")
    assert (await cli("run", "other", "Hi")).out == "Other: \n"
    file.unlink()
    await command.until("removed: agent support is not served any more")
    command.send(signal.SIGTERM)
    assert await command.ended() == 0


async def test_dev_serves_a_folder_and_reloads_the_code(cli: Cli) -> None:
    dev = await cli.spawn("dev", "agents.py", "--agents", "agents")
    await dev.until("no agents yet; watching")
    (cli.folder / "agents" / "other.json").write_text(json.dumps({"model": "script:m", "instructions": "Other"}))
    await dev.until("serving: other (other.json)")
    (cli.folder / "agents.py").write_text(CODE.replace("{request.system}", "now {request.system}"))
    await dev.until("reloaded")
    assert (await cli("run", "other", "Hi")).out == "now Other: \n"
    dev.send(signal.SIGINT)
    assert await dev.ended() == 0


async def test_what_a_folder_cannot_be(cli: Cli) -> None:
    none = await cli("worker", "agents.py", "--agents", "nowhere")
    assert (none.code, "there is no folder nowhere" in none.err) == (2, True)
    without = await cli("worker", "agents.py")
    assert "agents.py has no agents at its top level" in without.err
