"""A run whose model is pydantic-ai's: tools, events and cost as with any other."""

from __future__ import annotations

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from perdure import Agent, register_provider, tool
from perdure.providers import registry
from perdure.providers.pydantic_ai import PydanticAIModel
from tests.servers.model_server import Call, OpenAIServer
from tests.support.engine import Engine


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_run_with_a_tool(engine: Engine) -> None:
    replies = iter([[Call("add", {"a": 1, "b": 2})], "It is 3."])
    async with OpenAIServer(lambda _: next(replies)) as api:
        source = OpenAIProvider(base_url=api.base_url, api_key="test")
        register_provider("vendor", PydanticAIModel(lambda name: OpenAIChatModel(name, provider=source)))
        agent = Agent("a", "vendor:gpt-5-mini", tools=[add])
        try:
            async with engine.served(agent) as client:
                run = await client.start(agent, "Add 1 and 2.")
                response = await run.result()
                events = [event async for event in run.events()]
        finally:
            registry._providers.pop("vendor")
    assert response.content == "It is 3."
    assert response.cost_usd is not None
    assert response.messages[-1].model == "gpt-5-mini"
    assert [message["role"] for message in api.requests[1]["messages"]] == ["user", "assistant", "tool"]
    assert [event.model for event in events if event.type == "model.started"] == ["vendor:gpt-5-mini"] * 2
