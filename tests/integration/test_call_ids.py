"""Ids of calls: one each in a conversation, whatever a provider sends, and the provider's own goes back to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Agent, Client, callback_tool, hook, tool
from perdure.ports.model import Completed
from perdure.testing import scripted
from perdure.tools import Tool
from perdure.types.events import ModelCompleted, ModelDelta, ToolCompleted
from perdure.types.messages import Message, ToolCallPart
from tests.support.checks import assert_closed, results
from tests.support.wait import eventually


@tool(needs_approval=True)
async def pay(amount: int = 0) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def called(name: str, id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(id=id, name=name, arguments=arguments)


async def waits(client: Client, kind: str = "approval") -> Any:
    found: list[Any] = []

    async def there() -> bool:
        found[:] = [one for one in await client.approvals() if one.kind == kind]
        return bool(found)

    await eventually(there, every=0.01)
    return found[0]


def ids(messages: Sequence[Message]) -> list[str]:
    return [part.id for message in messages for part in message.tool_calls]


@pytest.mark.parametrize("id", ["s" * 20_000, "call_1", "a b/ä\x1b[2J", "\ud800"])
async def test_whatever_the_id_is_the_call_is_asked_approved_and_answered(id: str) -> None:
    critic = Agent("critic", "openai:gpt-5-mini")
    tools: list[Tool] = [pay, callback_tool("deploy", "Deploy.", {"type": "object", "properties": {}})]
    agent = Agent("desk", "openai:gpt-5-mini", tools=tools, subagents=[critic])
    replies = [called("call_critic", id, task="x"), called("pay", id), called("deploy", id), "Done."]
    async with scripted(agent, replies, others={critic: ["Fine."]}) as script:
        run = await script.client.start("desk", "Go.")
        await (await waits(script.client)).approve(by="ana")
        await (await waits(script.client, "callback")).answer("live", by="ana")
        response = await run.result()
        assert_closed(response.messages)
        assert results(response.messages) == ["Fine.", "paid 0", "live"]
        assert len({*ids(response.messages)}) == 3
        events = [event async for event in run.events(children=False)]
    # Under one id from the first piece on.
    deltas = [event.call_id for event in events if isinstance(event, ModelDelta) and event.kind == "tool_call"]
    assert {*deltas} <= {*ids(response.messages)}
    assert [c.id for e in events if isinstance(e, ModelCompleted) for c in e.calls] == ids(response.messages)
    assert [event.call_id for event in events if isinstance(event, ToolCompleted)] == ids(response.messages)


async def test_a_repeated_id_is_ours_inside_and_the_providers_is_kept() -> None:
    agent = Agent("desk", "openai:gpt-5-mini", tools=[look])
    reply = Completed((called("look", "call_1"),), "tool_calls", origin="gateway")
    async with scripted(agent, [reply, reply, "Done."]) as script:
        response = await (await script.client.start("desk", "Go.")).result()
    first, second = (part for message in response.messages for part in message.tool_calls)
    assert (first.id, first.provider_id) == ("call_1", None)
    assert second.id != "call_1"
    assert (second.provider_id, second.provider) == ("call_1", "gateway")
    assert_closed(response.messages)


async def test_behind_a_rewritten_conversation_no_id_comes_back() -> None:
    @hook("on_iteration")
    def forget(step: Any, iteration: int) -> None:
        if iteration == 2:
            step.messages = [Message.user("Go on.")]

    agent = Agent("desk", "openai:gpt-5-mini", tools=[look], hooks=[forget])
    replies = [called("look", "call_1"), called("look", "call_2"), called("look", "call_1"), "Done."]
    async with scripted(agent, replies) as script:
        run = await script.client.start("desk", "Go.")
        await run.result()
        events = [event async for event in run.events()]
    seen = [call.id for event in events if isinstance(event, ModelCompleted) for call in event.calls]
    assert seen[:2] == ["call_1", "call_2"]
    assert len(set(seen)) == 3
