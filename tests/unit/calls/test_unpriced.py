"""A limit of cost that cannot hold ends the run, and says what to do."""

from __future__ import annotations

import pytest

from perdure import Agent, Limits, Message
from perdure.calls.reply import check_summary_price, find_missing_price, find_missing_usage
from perdure.errors import DefinitionError
from perdure.types.messages import FinishReason, Usage
from perdure.types.wire import CompactOutput


def reply(cost: float | None, tokens: int = 5) -> Message:
    return Message(role="assistant", model="local-7b", usage=Usage(input_tokens=tokens), cost_usd=cost)


def agent(limits: Limits) -> Agent:
    return Agent("careful", "openai:gpt-5", limits=limits)


@pytest.mark.parametrize("limits", [Limits(cost_usd=1), Limits(turn=Limits(cost_usd=1))])
def test_a_reply_without_a_price_is_wrong(limits: Limits) -> None:
    wrong = find_missing_price(agent(limits), reply(None))
    assert isinstance(wrong, DefinitionError)
    assert "agent 'careful' has a limit of cost_usd, and no price of 'local-7b' is known" in str(wrong)
    assert "register_price(" in str(wrong)


def test_so_it_is_where_a_parent_has_the_limit() -> None:
    assert find_missing_price(agent(Limits()), reply(None), inherited=True) is not None


@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(tokens=5), reply(None)), (Limits(cost_usd=1), reply(0.1)), (Limits(cost_usd=1), reply(None, tokens=0))],
)
def test_where_nothing_is_lost_nothing_is_wrong(limits: Limits, said: Message) -> None:
    assert find_missing_price(agent(limits), said) is None


def silent(cost: float | None = None, finish_reason: FinishReason = "stop") -> Message:
    return Message(role="assistant", model="local-7b", usage=Usage(), cost_usd=cost, finish_reason=finish_reason)


@pytest.mark.parametrize(
    ("limits", "inherited", "limit"),
    [
        (Limits(tokens=5), False, "tokens"),
        (Limits(turn=Limits(tokens=5)), False, "tokens"),
        (Limits(cost_usd=1), False, "cost_usd"),
        (Limits(), True, "cost_usd"),
    ],
)
@pytest.mark.parametrize("said", [silent(), silent(0.0), silent().model_copy(update={"usage": None})])
def test_a_reply_without_usage_is_wrong(limits: Limits, inherited: bool, limit: str, said: Message) -> None:
    wrong = find_missing_usage(agent(limits), said, Usage(), inherited=inherited)
    assert isinstance(wrong, DefinitionError)
    assert f"agent 'careful' has a limit of {limit}, and 'local-7b' reports no usage" in str(wrong)
    assert "usage=Usage(" in str(wrong)


@pytest.mark.parametrize(
    ("limits", "said", "used"),
    [
        (Limits(iterations=5, wall_time=5), silent(), Usage()),
        (Limits(tokens=5), reply(None, tokens=1), Usage()),
        (Limits(tokens=5), silent(), Usage(output_tokens=1)),
        (Limits(cost_usd=1), silent(0.02), Usage()),
        *((Limits(tokens=5), silent(finish_reason=ended), Usage()) for ended in ("veto", "refusal", "content_filter")),
    ],
)
def test_a_reply_without_usage_may_pass(limits: Limits, said: Message, used: Usage) -> None:
    assert find_missing_usage(agent(limits), said, used) is None


def summary(cost: float | None, tokens: int = 5) -> CompactOutput:
    return CompactOutput(model="local-7b", usage=Usage(input_tokens=tokens), cost_usd=cost)


def test_a_summary_counts_too() -> None:
    with pytest.raises(DefinitionError, match="no price of 'local-7b' is known"):
        check_summary_price(agent(Limits(cost_usd=1)), summary(None))
    with pytest.raises(DefinitionError):
        check_summary_price(agent(Limits()), summary(None), inherited=True)
    for made in (summary(0.1), summary(None, tokens=0)):
        check_summary_price(agent(Limits(cost_usd=1)), made)
