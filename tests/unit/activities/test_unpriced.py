"""A limit of cost that cannot hold is not kept quiet about."""

from __future__ import annotations

import uuid

import pytest

from perdure import Agent, Limits, Message
from perdure.activities.unpriced import check_price
from perdure.types.messages import Usage


def reply(cost: float | None, tokens: int = 5) -> Message:
    return Message(role="assistant", model="local-7b", usage=Usage(input_tokens=tokens), cost_usd=cost)


@pytest.mark.parametrize("limits", [Limits(cost_usd=1), Limits(turn=Limits(cost_usd=1))])
def test_it_is_said_once(limits: Limits, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(uuid.uuid4().hex, "openai:gpt-5", limits=limits)
    for _ in range(2):
        check_price(agent, reply(None))
    (record,) = caplog.records
    assert agent.name in record.getMessage()
    assert "no price of local-7b is known" in record.getMessage()


@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(tokens=5), reply(None)), (Limits(cost_usd=1), reply(0.1)), (Limits(cost_usd=1), reply(None, tokens=0))],
)
def test_where_nothing_is_lost_nothing_is_said(limits: Limits, said: Message, caplog: pytest.LogCaptureFixture) -> None:
    check_price(Agent(uuid.uuid4().hex, "openai:gpt-5", limits=limits), said)
    assert not caplog.records
