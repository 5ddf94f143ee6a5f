"""Ids of calls as long as gateways make them, which put a model's signature there: every verb takes them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Client, callback_tool, tool
from perdure.testing import scripted
from perdure.types.messages import CALL_ID_CHARS, ToolCallPart
from tests.support.checks import assert_closed, results
from tests.support.wait import eventually


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def called(name: str, chars: int, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(id=name[0] * chars, name=name, arguments=arguments)


async def waits(client: Client) -> Any:
    found: list[Any] = []

    async def there() -> bool:
        found[:] = await client.approvals()
        return bool(found)

    await eventually(there, every=0.01)
    return found[0]


@pytest.mark.parametrize("chars", [600, 3000, CALL_ID_CHARS])
async def test_a_long_id_is_asked_approved_and_answered(chars: int) -> None:
    critic = Agent("critic", "openai:gpt-5-mini")
    tools = [pay, callback_tool("deploy", "Deploy.", {"type": "object", "properties": {}})]
    agent = Agent("desk", "openai:gpt-5-mini", tools=tools, subagents=[critic])
    replies = [called("call_critic", chars, task="x"), called("pay", chars), called("deploy", chars), "Done."]
    async with scripted(agent, replies, others={critic: ["Fine."]}) as script:
        run = await script.client.start("desk", "Go.")
        await (await waits(script.client)).approve(by="ana")

        async def answered() -> bool:
            waiting = await script.client.approvals()
            return bool(waiting) and waiting[0].kind == "callback"

        await eventually(answered, every=0.01)
        await (await waits(script.client)).answer("live", by="ana")
        response = await run.result()
    assert_closed(response.messages)
    assert results(response.messages) == ["Fine.", "paid", "live"]


async def test_a_call_that_nobody_could_name_is_not_run() -> None:
    agent = Agent("desk", "openai:gpt-5-mini", tools=[pay, look])
    async with scripted(agent, [[called("pay", CALL_ID_CHARS + 1), called("look", 10)], "Done."]) as script:
        response = await (await script.client.start("desk", "Go.")).result()
    assert_closed(response.messages)
    assert results(response.messages) == [
        "not run: the id of this call has 16,385 characters and may have 16,384",
        "seen",
    ]
