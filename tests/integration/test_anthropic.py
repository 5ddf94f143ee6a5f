"""A run on a model of Anthropic's: thinking and calls go back as they came."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, register_provider
from perdure.errors import InvalidInputError
from perdure.providers import Anthropic, import_messages, registry
from tests.servers.anthropic import sign, thinking
from tests.servers.model_server import AnthropicServer, Call, error
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine

EFFORT = {"reasoning_effort": "high"}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def look_up(word: str) -> str:
    """What a word means."""
    return f"{word} means {word}"


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")


@pytest.mark.usefixtures("_key")
async def test_two_tools_with_thinking(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = [
        [thinking("both at once"), Call("add", {"a": 1, "b": 2}, id="c1"), Call("look_up", {"word": "x"}, id="c2")],
        error(529, "Overloaded", "overloaded_error"),
        [thinking("once more"), "Adding.", Call("add", {"a": 3, "b": 4})],
        [thinking(""), "Ten."],
    ]
    async with AnthropicServer(lambda _: steps[len(server.requests) - 1]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        agent = Agent("a", "anthropic:claude-sonnet-4-6", tools=[add, look_up], settings=EFFORT)
        async with engine.served(agent) as client:
            response = await (await client.start("a", "Add and look up.")).result()
    assert (response.content, response.finish_reason) == ("Ten.", "stop")
    assert results(response.messages) == ["3", "x means x", "7"]
    assert_closed(response.messages)
    assert server.refusals == []
    said = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "assistant"]
    assert [block["type"] for block in said[0]] == ["thinking", "tool_use", "tool_use"]
    assert said[1][0] == {"type": "thinking", "thinking": "once more", "signature": sign("once more")}
    assert all(request["thinking"]["type"] == "adaptive" for request in server.requests)


@pytest.mark.usefixtures("_key")
async def test_what_the_api_sealed_goes_back_from_another_worker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"title": "x", "page": "sealed"}]}
    sealed = {"type": "redacted_thinking", "data": "sealed/1"}
    cited = {"type": "text", "text": "So it is.", "citations": [{"type": "char_location", "cited_text": "x"}]}
    first: list[Any] = [thinking("hm"), sealed, searched, found, cited]
    async with AnthropicServer(lambda _: first if len(server.requests) == 1 else "Yes.") as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        agent = Agent("a", "anthropic:claude-sonnet-4-6", tools=[add], settings=EFFORT)
        async with engine.served(agent) as client:
            turn = await client.send("a", "Is it so?", id=engine.task_queue)
            assert (await turn.result()).content == "So it is."
        async with engine.served(agent) as client:  # another worker, which has nothing in memory
            again = await client.send("a", "Sure?", id=turn.run.id)
            assert (await again.result()).content == "Yes."
            await again.run.close()
    assert server.refusals == []
    assert server.requests[1]["messages"][1]["content"] == first
    mark = b',"cache_control":{"type":"ephemeral"}'
    before, after = (body.replace(mark, b"") for body in server.bodies)
    assert after.startswith(before.removesuffix(b"]}"))


@pytest.mark.usefixtures("_key")
async def test_a_finish_that_is_forced_and_another_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = [
        [thinking("hm"), Call("add", {"a": 1, "b": 2}, id="c1")],
        "Three.",
        "Still three.",
    ]
    async with AnthropicServer(lambda _: steps[len(server.requests) - 1]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        agent = Agent("a", "anthropic:claude-sonnet-4-6", tools=[add], settings=EFFORT, max_iterations=1)
        async with engine.served(agent) as client:
            response = await (await client.start("a", "Add.")).result()
            again = await (await client.start("a", "Sure?", history=response.messages)).result()
    assert (response.content, response.finish_reason) == ("Three.", "limit")
    assert again.content == "Still three."
    assert server.refusals == []
    assert server.requests[1]["tool_choice"] == {"type": "none"}


@pytest.mark.usefixtures("_key")
async def test_a_conversation_of_the_api_goes_on_in_a_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its tool call, its thinking and its system prompt."""
    request: dict[str, Any] = {
        "system": [{"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "What is 1 + 2?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": sign("hm")},
                    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Three."}]},
        ],
    }
    steps: list[Any] = [[thinking("more"), Call("add", {"a": 3, "b": 4})], [thinking(""), "Seven."]]
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_providers", {})
    async with AnthropicServer(lambda _: steps[len(server.requests) - 1]) as server:
        register_provider("claude", Anthropic(base_url=server.base_url, api_key="sk-ant-test"))
        agent = Agent("a", "claude:claude-sonnet-4-6", tools=[add], settings=EFFORT)
        imported = import_messages("claude", request["messages"], system=request["system"])
        override = {"instructions": imported.system}
        async with engine.served(agent) as client:
            run = await client.start("a", "And 4?", history=imported.messages, override=override)
            response = await run.result()
    assert response.content == "Seven."
    assert results(response.messages) == ["3", "7"]
    assert_closed(response.messages)
    assert server.refusals == []
    sent = server.requests[0]
    assert "You add." in str(sent["system"])
    contents = [message["content"] for message in sent["messages"]]
    assert contents[1] == request["messages"][1]["content"]
    assert [block["type"] for block in contents[2]] == ["tool_result"]
    assert "And 4?" in str(contents[-1])
    unfinished = import_messages("claude", request["messages"][:2])
    async with engine.served(agent) as client:
        with pytest.raises(InvalidInputError, match="tool call 'toolu_1' of add has no result"):
            await client.start("a", "And 4?", history=unfinished.messages)
