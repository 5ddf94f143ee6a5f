"""Compaction in process, without a server: a refused call says there, too, by which ways it may be made shorter."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Compaction, Message
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
