"""Toolsets in real runs: the list is taken once and recorded, and a tool that is another now is not called."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, RunContext, Step, ToolContext, Toolset, hook, tool
from perdure.errors import DefinitionError, ToolsetError
from perdure.ports.model import ModelRequest, ToolSpec
from perdure.ports.toolset import ListedTool
from perdure.testing import ScriptedProvider, call, scripted
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Weather(Toolset):
    """Its list can be changed, and says how often it was asked for."""

    name = "weather"
    recheck = 0.0

    def __init__(self, *tools: Any, **options: Any) -> None:
        self.tools: tuple[Any, ...] = tools or (ListedTool("forecast", "Tell the weather.", CITY, idempotent=True),)
        self.asked = 0
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.closed = 0
        vars(self).update(options)

    async def list(self, ctx: RunContext) -> Sequence[Any]:
        self.asked += 1
        return self.tools

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> Any:
        self.called.append((name, dict(arguments)))
        return {"city": arguments["city"], "sky": "clear", "who": ctx.context}

    async def close(self) -> None:
        self.closed += 1


def shown(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_its_tools_are_offered_and_run(engine: Engine) -> None:
    weather = Weather(prefix="w_")
    provider = ScriptedProvider([[call("w_forecast", city="Rome"), call("add", a=1, b=2)], "Clear."])
    async with engine.served(Agent("host", provider, tools=[add], toolsets=[weather])) as client:
        response = await (await client.start("host", "Rome?", context={"user": "ana"})).result()
    assert results(response.messages) == ['{"city":"Rome","sky":"clear","who":{"user":"ana"}}', "3"]
    assert weather.called == [("forecast", {"city": "Rome"})]
    assert provider.requests[0].tools == (add.spec, ToolSpec("w_forecast", "Tell the weather.", CITY))
    assert provider.requests[1].tools == provider.requests[0].tools
    assert weather.closed == 1, "closed with the worker"


async def test_a_run_keeps_the_list_that_it_took_and_a_changed_tool_is_refused(engine: Engine) -> None:
    weather = Weather()

    def change(_: ModelRequest) -> Any:
        weather.tools = (ListedTool("forecast", "Tell the weather of tomorrow.", CITY, idempotent=True),)
        return call("forecast", city="Rome")

    provider = ScriptedProvider([call("forecast", city="Rome"), change, "It has changed.", "Still."])
    agent = Agent("host", provider, toolsets=[weather])
    async with engine.served(agent) as client:
        turn = await client.send("host", "Rome?", id=engine.task_queue)
        response = await turn.result()
        await (await client.send("host", "And now?", id=engine.task_queue)).result()
        await turn.run.close()
    first, second = results(response.messages)
    assert first.startswith('{"city":"Rome"')
    assert second == (
        "ToolError: forecast was not called: its definition in toolset 'weather' has changed since you were shown it"
    )
    assert len(weather.called) == 1
    assert len(provider.requests) == 4
    assert all(request.tools == provider.requests[0].tools for request in provider.requests)


async def test_a_tool_that_is_gone_is_refused(engine: Engine) -> None:
    weather = Weather()

    def remove(_: ModelRequest) -> Any:
        weather.tools = (ToolSpec("other", "Something else.", {}),)
        return call("forecast", city="Rome")

    provider = ScriptedProvider([remove, "Gone."])
    async with engine.served(Agent("host", provider, tools=[add], toolsets=[weather])) as client:
        response = await (await client.start("host", "Rome?")).result()
    assert results(response.messages) == ["ToolError: forecast was not called: toolset 'weather' no longer has it"]


async def test_refresh_takes_the_new_list_at_the_next_call(engine: Engine) -> None:
    weather, fixed = Weather(on_change="refresh"), Weather(ToolSpec("old", "Old.", {}), name="fixed")

    def change(_: ModelRequest) -> Any:
        weather.tools = (*weather.tools, ToolSpec("alarm", "Sound.", {}))
        fixed.tools = (ToolSpec("new", "New.", {}),)
        return call("forecast", city="Rome")

    provider = ScriptedProvider([change, call("forecast", city="Oslo"), "Clear."])
    async with engine.served(Agent("host", provider, toolsets=[weather, fixed])) as client:
        response = await (await client.start("host", "Rome?")).result()
    assert [shown(request) for request in provider.requests] == [
        ["forecast", "old"],
        ["forecast", "alarm", "old"],
        ["forecast", "alarm", "old"],
    ]
    assert len(results(response.messages)) == 2


@pytest.mark.server
async def test_a_new_conversation_takes_a_new_list_and_one_that_continues_as_new_keeps_its_own(engine: Engine) -> None:
    weather = Weather()

    def change(_: ModelRequest) -> Any:
        weather.tools = (ToolSpec("other", "Something else.", {}),)
        return call("add", a=1, b=1)

    calls = [call("add", a=n, b=n) for n in range(6)]
    provider = ScriptedProvider([change, *calls, "Done.", "Again."])
    async with engine.served(Agent("host", provider, tools=[add], toolsets=[weather])) as client:
        run = await client.start("host", "Go.", max_history_events=30)
        await run.result()
        assert (await run.describe()).raw_description.workflow_execution_info.first_run_id != (
            await run.describe()
        ).run_id, "it continued as new"
        await (await client.start("host", "Go.")).result()
    assert {tuple(shown(request)) for request in provider.requests[:-1]} == {("add", "forecast")}
    assert shown(provider.requests[-1]) == ["add", "other"]


async def test_names_that_clash_fail_the_run_and_say_how_to_tell_them_apart(engine: Engine) -> None:
    agent = Agent("host", ScriptedProvider(["Hi."]), tools=[add], toolsets=[Weather(ToolSpec("add", "Add.", {}))])
    async with engine.served(agent) as client:
        with pytest.raises(DefinitionError, match="toolset 'weather' has a tool 'add'") as raised:
            await (await client.start("host", "Go.")).result()
    assert 'prefix="weather_"' in str(raised.value)


async def test_a_toolset_that_cannot_be_reached_is_asked_again(engine: Engine) -> None:
    class Flaky(Weather):
        async def list(self, ctx: RunContext) -> Sequence[Any]:
            await super().list(ctx)
            if self.asked == 1:
                raise ConnectionError("refused")
            return self.tools

    flaky = Flaky()
    provider = ScriptedProvider(["Hi."])
    async with engine.served(Agent("host", provider, toolsets=[flaky])) as client:
        assert (await (await client.start("host", "Go.")).result()).content == "Hi."
    assert shown(provider.requests[0]) == ["forecast"]
    assert ToolsetError.retryable


async def test_tools_of_functions_typed_contexts_inline_calls_and_overrides(engine: Engine) -> None:
    class User(BaseModel):
        name: str

    @tool(inline=True)
    def greet(ctx: ToolContext[User], greeting: str) -> str:
        """Greet."""
        return f"{greeting}, {ctx.context.name}"

    class Mine(Weather):
        def audience(self, ctx: RunContext[User]) -> str:
            return ctx.context.name

        async def list(self, ctx: RunContext[User]) -> Sequence[Any]:
            await super().list(ctx)
            return [greet, ToolSpec(f"of_{ctx.context.name}", "Mine.", {})]

    mine = Mine(recheck=60.0)
    provider = ScriptedProvider([[call("greet", greeting="Hi"), call("greet", wrong=1)], "Done.", "Only one."])
    async with engine.served(Agent("host", provider, context=User, toolsets=[mine])) as client:
        response = await (await client.start("host", "Go.", context={"name": "ana"})).result()
        override = {"tools": ["of_bo"]}
        await (await client.start("host", "Go.", context={"name": "bo"}, override=override)).result()
    hello, wrong = results(response.messages)
    assert hello == "Hi, ana"
    assert "there is no such argument" in wrong
    assert [shown(request) for request in provider.requests] == [["greet", "of_ana"]] * 2 + [["of_bo"]]
    assert mine.asked == 2, "once for each audience"


@pytest.mark.server
async def test_the_list_of_a_run_outlives_the_worker_that_took_it(engine: Engine) -> None:
    """Another worker, whose toolset has other tools, reads what the run took from the store."""
    gate = Gate()

    async def held(_: ModelRequest) -> Any:
        await gate()
        return "Never heard."

    first = ScriptedProvider([call("add", a=1, b=1), held])
    async with engine.served(Agent("host", first, tools=[add], toolsets=[Weather()]), drain=0.0) as client:
        run = await client.start("host", "Go.")
        await eventually(lambda: gate.entered, what="the second model call")
    second = ScriptedProvider([call("forecast", city="Rome"), "Gone."])
    later = Weather(ToolSpec("other", "Something else.", {}))
    async with engine.served(Agent("host", second, tools=[add], toolsets=[later])):
        response = await run.result()
    assert [shown(request) for request in (*first.requests, *second.requests)] == [["add", "forecast"]] * 4
    assert results(response.messages)[1].endswith("toolset 'weather' no longer has it")
    assert later.asked == 1, "only to see whether the tool is still there"


async def test_a_toolset_that_was_taken_out_of_the_code_is_named(engine: Engine) -> None:
    agent = Agent("host", ScriptedProvider([]), toolsets=[Weather()])

    def without(_: ModelRequest) -> Any:
        vars(agent)["toolsets"] = (Weather(name="other"),)  # as a deploy does
        return call("forecast", city="Rome")

    agent.provider = ScriptedProvider([without, "Gone."])
    async with engine.served(agent) as client:
        response = await (await client.start("host", "Go.")).result()
    assert results(response.messages) == [
        "ToolError: forecast was not called: agent 'host' no longer has toolset 'weather'"
    ]


async def test_steps_take_tools_of_toolsets_away_and_put_them_back(engine: Engine) -> None:
    @hook("on_iteration")
    def policy(step: Step) -> None:
        step.remove_tool("forecast") if step.iteration == 1 else step.add_tool("forecast")

    provider = ScriptedProvider([call("forecast", city="Rome"), call("add", a=1, b=1), "Done."])
    async with engine.served(Agent("host", provider, tools=[add], toolsets=[Weather()], hooks=[policy])) as client:
        await (await client.start("host", "Go.")).result()
    assert [shown(request) for request in provider.requests] == [["add", "forecast"], ["add"], ["add", "forecast"]]


async def test_an_interrupted_call_is_cancelled(engine: Engine) -> None:
    class Slow(Weather):
        cancelled = False

        async def call(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> Any:
            self.called.append((name, {}))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    slow = Slow()
    provider = ScriptedProvider([call("forecast", city="Rome"), "As you like."])
    async with engine.served(Agent("host", provider, toolsets=[slow])) as client:
        run = await client.start("host", "Go.")
        await eventually(lambda: slow.called, what="the call")
        await run.interrupt("Never mind.")
        assert (await run.result()).content == "As you like."
    assert slow.cancelled


def test_without_a_server_a_scripted_agent_has_its_toolsets() -> None:
    weather = Weather(prefix="w_")
    agent = Agent("host", "openai:gpt-5", toolsets=[weather])
    with scripted(agent, [call("w_forecast", city="Rome"), "Clear."]) as script:
        response = agent.call_sync("Rome?")
    assert results(response.messages) == ['{"city":"Rome","sky":"clear","who":null}']
    assert [shown(request) for request in script.requests] == [["w_forecast"]] * 2


@pytest.mark.parametrize(
    ("toolset", "says"),
    [
        (Weather, "a toolset is an instance of perdure.Toolset"),
        (add, "Tools go into tools="),
        (Weather(name="my tools"), "the name 'my tools' does not match"),
        (Weather(on_change="ask"), "on_change is 'ask', it can be refuse, refresh"),
        (Weather(timeout=0), "timeout=0 is not a positive number of seconds"),
    ],
)
def test_what_is_wrong_with_a_toolset_is_said_where_the_agent_is_made(toolset: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(says)):
        Agent("host", "openai:gpt-5", toolsets=[toolset])
