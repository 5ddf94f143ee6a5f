"""PARITY.md, part A: what a minimal agent library does, durably. A row that does not work yet has no test here."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from perdure import Agent, Message, ToolContext, hook, tool
from perdure.errors import MaxIterationsError
from perdure.ports.model import ModelRequest
from perdure.providers.openai_chat import OpenAIChat
from perdure.testing import ScriptedProvider, call
from tests.servers.model_server import OpenAIServer
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import calls_then


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a word"


async def ask(engine: Engine, agent: Agent, message: str = "Go.") -> Any:
    """The response of one run."""
    async with engine.served(agent) as client:
        return await (await client.start(agent.name, message)).result()


async def test_a1_an_agent_is_its_configuration(engine: Engine) -> None:
    async with OpenAIServer("It is <finish>done</finish>.") as server:
        agent = Agent(
            "configured",
            "openai:gpt-5-mini",
            tools=[look_up],
            settings={"temperature": 0.5, "seed": None},
            provider_options={"service_tier": "flex"},
            finish="tag",
        )
        agent.provider = provider = OpenAIChat(base_url=server.base_url, api_key="test")
        response = await ask(engine, agent)
        await provider.aclose()
    assert (agent.max_iterations, agent.model, response.content) == (50, "openai:gpt-5-mini", "done")
    asked = server.requests[0]
    assert (asked["model"], asked["temperature"], asked["service_tier"]) == ("gpt-5-mini", 0.5, "flex")
    assert "seed" not in asked
    assert [each["function"]["name"] for each in asked["tools"]] == ["look_up"]
    prompt = asked["messages"][0]
    assert prompt["role"] == "system", "without instructions a default prompt explains <finish>"
    assert "<finish>" in prompt["content"]


@pytest.mark.server
async def test_a2_a_call_waits_for_the_answer_and_may_override_the_agent(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the embedded runtime (here the tests' server in its place), and by the workers of a given client."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    provider = ScriptedProvider(lambda request: f"{request.system} at {dict(request.settings)}")
    agent = Agent("caller", provider, instructions="Plain", settings={"temperature": 1}, tools=[look_up])
    override = {"instructions": "Brief", "settings": {"temperature": 0}, "tools": []}
    assert (await agent.call("Go.")).content == "Plain at {'temperature': 1}"
    assert (await agent.call("Go.", override=override)).content == "Brief at {'temperature': 0}"
    assert [len(request.tools) for request in provider.requests] == [1, 0]
    async with engine.served(agent) as client:
        by_client = await agent.call("Go.", override=override, client=client)
        assert by_client.content == "Brief at {'temperature': 0}"
        assert (await agent.call("Go.", client=client)).content == "Plain at {'temperature': 1}"
    with pytest.raises(RuntimeError, match=r"await agent\.call"):
        agent.call_sync("Go.")
    in_a_thread = await asyncio.to_thread(agent.call_sync, "Go.", override=override)
    assert in_a_thread.content == "Brief at {'temperature': 0}"


async def test_a5_the_response_says_what_happened(engine: Engine) -> None:
    replies = [call("look_up", word="perdure"), "It is <finish>a word</finish>."]
    agent = Agent("teller", ScriptedProvider(replies), instructions="Explain.", tools=[look_up], finish="tag")
    response = await ask(engine, agent, "perdure?")
    assert (response.content, response.iterations, response.finish_called) == ("a word", 2, True)
    assert [message.role for message in response.messages] == ["system", "user", "assistant", "tool", "assistant"]
    per_call = [message.usage for message in response.messages if message.usage is not None]
    assert len(per_call) == 2
    assert all(usage.total_tokens == usage.input_tokens + usage.output_tokens > 0 for usage in per_call)
    assert response.usage == per_call[0] + per_call[1]


async def test_a6_too_many_iterations_raise_and_each_agent_has_its_own_limit(engine: Engine) -> None:
    short = Agent("short", ScriptedProvider(calls_then(9, "look_up", word="x")), tools=[look_up], max_iterations=2)
    short.on_limit = "error"
    long = Agent("long", ScriptedProvider(calls_then(3, "look_up", word="x")), tools=[look_up], on_limit="error")
    async with engine.served(short, long) as client:
        run = await client.start("short", "Go.")
        with pytest.raises(MaxIterationsError, match="2"):
            await run.result()
        assert (await (await client.start("long", "Go.")).result()).iterations == 4
        assert_closed(await run.transcript())


async def test_a7_a_reply_without_answer_and_calls_gets_a_reminder(engine: Engine) -> None:
    provider = ScriptedProvider(["Let me think.", "<finish>42</finish>"])
    response = await ask(engine, Agent("thinker", provider, finish="tag"))
    assert (response.content, response.iterations) == ("42", 2)
    assert "<finish>" in users(provider.requests[1].messages)[-1]


async def test_a10_agents_are_looked_up_by_name_and_are_the_configuration_of_a_run(engine: Engine) -> None:
    def model(request: ModelRequest) -> str:
        return f"{request.system} {dict(request.settings)}"

    agents = [Agent(name, ScriptedProvider(model), instructions=f"I am {name}.") for name in ("cook", "critic")]
    async with engine.served(*agents) as client:

        async def said(name: str, **override: Any) -> str:
            return (await (await client.start(name, "Who?", override=override or None)).result()).content

        assert [await said("critic"), await said("cook")] == ["I am critic. {}", "I am cook. {}"]
        changed = await said("cook", instructions="I am a baker.", settings={"temperature": 0})
        assert changed == "I am a baker. {'temperature': 0}"
        assert await said("cook") == "I am cook. {}", "the agent stays as it is"


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    label: str = ""


class Counter:
    """Count things."""

    async def __call__(self, things: list[str]) -> int:
        return len(things)


@tool(name="everything", description="Takes all kinds.")
async def every_kind(
    s: str,
    i: int,
    f: float,
    b: bool,
    anything: list[Any],
    names: list[str],
    table: dict[str, int],
    kind: Literal["a", "b"],
    point: Point,
    either: int | str,
    colour: Colour = Colour.RED,
    maybe: str | None = None,
) -> str:
    """Its description is given instead."""
    return f"{point.x} {colour.value} {type(point).__name__} {maybe}"


async def test_a13_tools_are_made_from_functions(engine: Engine) -> None:
    given = {"s": "s", "i": 1, "f": 1.5, "b": True, "anything": [1], "names": ["n"], "table": {"k": 1}, "kind": "a"}
    provider = ScriptedProvider(
        [
            [call("everything", **given, point={"x": 3}, either="e"), call("counter", things=["a", "b"])],
            lambda request: " / ".join(results(request.messages)),
        ]
    )
    agent = Agent("maker", provider, tools=[every_kind, Counter(), look_up.fn])
    response = await ask(engine, agent)
    assert response.content == "3 red Point None / 2"
    specs = {spec.name: spec for spec in provider.requests[0].tools}
    assert [one.name for one in agent.toolbox] == list(specs) == ["everything", "counter", "look_up"]
    assert (specs["everything"].description, specs["look_up"].description) == ("Takes all kinds.", "Look a word up.")
    schema = specs["everything"].parameters
    assert set(schema["properties"]) - set(schema["required"]) == {"colour", "maybe"}
    assert schema["properties"]["names"] == {"type": "array", "items": {"type": "string"}}
    assert schema["properties"]["kind"]["enum"] == ["a", "b"]
    assert agent.toolbox.get("counter") is not None


@tool
def divide(a: float, b: float) -> float:
    """Divide."""
    return a / b


async def test_a14_errors_of_tools_go_to_the_model(engine: Engine) -> None:
    provider = ScriptedProvider([[call("divide", a=1, b=0), call("multiply", a=1, b=0)], "I see."])
    response = await ask(engine, Agent("divider", provider, tools=[divide]))
    failed, unknown = response.messages[2].tool_results
    assert (failed.is_error, failed.content) == (True, "ZeroDivisionError: float division by zero")
    assert unknown.is_error
    assert unknown.content.startswith("tool not found: multiply")


async def test_a3_history_stands_before_the_message_accumulated_or_made_by_hand(engine: Engine) -> None:
    def reply(request: ModelRequest) -> str:
        return " / ".join(message.text for message in request.messages)

    async with engine.served(Agent("told", ScriptedProvider(reply), instructions="Be good.")) as client:
        by_hand = [Message.user("one"), Message.assistant("two")]
        first = await (await client.start("told", "three", history=by_hand)).result()
        assert first.content == "one / two / three"
        second = await (await client.start("told", "four", history=first.messages)).result()
        assert second.content == "one / two / three / one / two / three / four"
        by_reference = await client.start("told", "four", history=client.run(first.context_id))
        assert (await by_reference.result()).content == second.content


@pytest.mark.server
async def test_a4_a_message_is_injected_from_anywhere_also_before_the_first_call(engine: Engine) -> None:
    replies: list[Any] = [call("tell_itself"), call("tell_from_a_thread"), lambda r: "|".join(users(r.messages))]

    @tool
    async def tell_itself(ctx: ToolContext) -> None:
        """Inject a message into the run that runs this."""
        await client.run(ctx.run_id).inject("from a tool")

    @tool
    def tell_from_a_thread(ctx: ToolContext) -> None:
        """The same from a thread that has no loop."""
        asyncio.run(client.run(ctx.run_id).inject("from a thread"))

    @hook("before_tool_call")
    async def tell(ctx: ToolContext) -> None:
        await client.run(ctx.run_id).inject("from a hook", id="once")

    client = await engine.client()
    run = await client.start("told", "first")
    await run.inject("before the first call")
    agent = Agent("told", ScriptedProvider(replies), tools=[tell_itself, tell_from_a_thread], hooks=[tell])
    async with engine.served(agent):
        said = "first|before the first call|from a hook|from a tool|from a thread"
        assert (await run.result()).content == said
