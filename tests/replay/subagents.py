"""Kinds of runs whose model calls other agents: children that answer, fail, are stopped, and are not started."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Limits, Run, delegate
from perdure.errors import AuthenticationError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.checks import users
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


def helper(replies: Any = None, **options: Any) -> Agent:
    """Adds, then answers."""
    told = replies or (lambda r: call("add", a=1, b=1) if r.messages[-1].role == "user" else "Helped.")
    return Agent("helper", ScriptedProvider(told), **{"tools": TOOLS, **options})


def caller(replies: Any, *subagents: Agent | str, **options: Any) -> Agent:
    return Agent("recorded", ScriptedProvider(replies), **{"tools": TOOLS, "subagents": subagents, **options})


def asked(count: int) -> list[Any]:
    return [call("call_helper", task=str(n)) for n in range(count)]


@scenario
async def subagents_in_parallel(engine: Engine) -> Run:
    """Two of them, with a tool beside; then one more."""
    replies = [[*asked(2), call("add", a=1, b=2)], asked(1), "Done."]
    async with engine.served(caller(replies, helper())) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def subagent_that_fails(engine: Engine) -> Run:
    """Its error is a result; it has used something."""
    failing = helper(lambda _: call("add", a=1, b=1), max_iterations=1, on_limit="error")
    async with engine.served(caller([asked(1), "Done."], failing)) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def subagents_under_a_limit(engine: Engine) -> Run:
    """Two share what is left; where nothing is left none is started."""
    replies = [asked(2), asked(1), "Done."]
    agent = caller(replies, helper(lambda _: "word " * 60), limits=Limits(tokens=100), on_limit="return")
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def subagent_at_its_limit(engine: Engine) -> Run:
    """It would go on for ever, and keeps room for its answer."""
    endless = helper(lambda r: call("add", a=1, b=1) if r.tools else "Stopped.")
    async with engine.served(caller([asked(2), "Done."], endless, limits=Limits(tokens=2000))) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
        return client.run(await find_child_id(client, run.id, 1))


@scenario
async def subagents_too_deep(engine: Engine) -> Run:
    """The agent calls itself."""

    def deeper(request: ModelRequest) -> Any:
        asks = request.messages[-1].role == "user"
        return call("call_agent", agent_name="recorded", message="again") if asks else "Up."

    agent = Agent("recorded", ScriptedProvider(deeper), tools=[delegate(["recorded"])])
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


async def _held(engine: Engine, stop: str) -> Run:
    gate = Gate()

    async def held(_: ModelRequest) -> str:
        await gate()
        return "Late."

    def replies(request: ModelRequest) -> Any:
        return asked(1) if len(users(request.messages)) == 1 else "Stopped."

    async with engine.served(caller(replies, helper(held))) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: gate.entered == 1)
        await (run.cancel() if stop == "cancel" else run.interrupt("Stop."))
        await _end(run)

    return run


@scenario
async def subagents_of_a_subagent(engine: Engine) -> Run:
    """A grandchild, and a tool of the child: each says the way down to it."""
    middle = Agent(
        "middle", ScriptedProvider([[*asked(1), call("add", a=1, b=1)], "Did."]), tools=TOOLS, subagents=[helper()]
    )
    async with engine.served(caller([call("call_middle", task="x"), "Done."], middle)) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
        return client.run(await find_child_id(client, run.id, 1))


@scenario
async def subagent_of_a_cancelled_run(engine: Engine) -> Run:
    """It is cancelled too."""
    return await _held(engine, "cancel")


@scenario
async def subagent_of_an_interrupted_run(engine: Engine) -> Run:
    """It is interrupted too; the run goes on."""
    return await _held(engine, "interrupt")


@scenario
async def subagents_of_a_run_that_was_opened_again(engine: Engine) -> Run:
    """The history of the second execution: its subagents have ids of their own."""
    replies = [asked(1), AuthenticationError("the key is wrong"), asked(2), "Done."]
    async with engine.served(caller(replies, helper())) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
        await run.resume()
        await _end(run)
    return run
