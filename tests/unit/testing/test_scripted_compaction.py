"""Compaction in process, without a server: a refused call says there, too, by which ways it may be made shorter."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Compaction, Message, Veto, hook
from perdure.errors import ContextLengthError
from perdure.ports.model import ModelRequest
from perdure.testing import scripted

HISTORY = [Message.user("Hi."), Message.assistant("Hello."), Message.user("Well?"), Message.assistant("Well.")]


def of_at_most(count: int) -> Any:
    def reply(request: ModelRequest) -> Any:
        return "Yes." if len(request.messages) <= count else ContextLengthError("too long")

    return reply


@pytest.mark.parametrize(
    ("way", "sent"),
    [(Compaction.summarise(at=1_000_000, keep_last=1), [5, 4, 3]), (Compaction.window(messages=9), [5, 3])],
    ids=["summary", "window"],
)
def test_a_refused_call_is_made_again_with_less(way: Compaction, sent: list[int]) -> None:
    agent = Agent("short", "openai:gpt-5", compaction=way)
    with scripted(agent, of_at_most(4)) as script:
        assert agent.call_sync("So?", history=HISTORY).content == "Yes."
    assert [len(request.messages) for request in script.requests] == sent


def test_an_agent_without_compaction_fails() -> None:
    agent = Agent("short", "openai:gpt-5")
    with scripted(agent, of_at_most(4)), pytest.raises(ContextLengthError, match=r"^too long$"):
        agent.call_sync("So?", history=HISTORY)


def _is_summary(request: ModelRequest) -> bool:
    return request.messages[-1].text.startswith("Sum up the conversation so far")


async def test_a_vetoed_summary_is_none_and_costs_nothing() -> None:
    @hook("before_llm_call")
    def guard(request: ModelRequest) -> Veto | None:
        vetoed.append(_is_summary(request))
        return Veto("no summaries here") if _is_summary(request) else None

    vetoed: list[bool] = []
    agent = Agent("long", "openai:gpt-5", compaction=Compaction.summarise(at=100, keep_last=1), hooks=[guard])
    async with scripted(agent, lambda _: "Yes.") as script:
        run = await script.client.start(agent, "So? " * 400, mode="session")
        await run.turn().result()
        turn = await run.send("And now?")
        response = await turn.result()
        events = [event async for event in run.events(wait=False)]
        rows = await (await script.client.store()).list_usage()
    assert vetoed == [False, True, False], "the conversation as text is not asked for either"
    assert len(script.requests) == 2
    assert [message.text for message in response.messages] == ["So? " * 400, "Yes.", "And now?", "Yes."]
    assert not any(event.type == "compacted" for event in events)
    assert response.usage == response.messages[-1].usage
    assert response.cost_usd == pytest.approx(response.messages[-1].cost_usd)
    assert [row.purpose for row in rows] == ["call", "call"]
