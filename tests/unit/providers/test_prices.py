"""Prices that an author gives, and agents whose limit of cost needs one."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Compaction, Limits, register_price
from perdure.errors import DefinitionError
from perdure.providers import pricing
from perdure.providers.pricing import calculate_cost_usd
from perdure.testing import ScriptedProvider
from perdure.types.messages import Usage

USAGE = Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000, cache_write_tokens=100_000)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "_registered_prices", {})


def test_a_registered_price_counts_before_the_list() -> None:
    register_price("openai:gpt-5", input=1, output=2)
    assert calculate_cost_usd("openai", "gpt-5", USAGE) == pytest.approx(2.0)
    assert calculate_cost_usd("openai-chat", "gpt-5", USAGE) == pytest.approx(2.0)
    register_price("openai:gpt-5", input=1, output=2, cached=0.1, cache_write=3)
    assert calculate_cost_usd("openai", "gpt-5", USAGE) == pytest.approx(0.5 + 0.04 + 0.3 + 1.0)


def test_what_the_api_calls_the_model_has_the_price_of_the_name_that_it_was_asked_by() -> None:
    register_price("openai:*", input=7, output=0)
    register_price("openai:gpt-5", input=1, output=2)
    assert calculate_cost_usd("openai", "gpt-5-2025-08-07", USAGE, "gpt-5") == pytest.approx(2.0)
    assert calculate_cost_usd("openai", "gpt-5-2025-08-07", USAGE) == pytest.approx(7.0)
    register_price("openai:gpt-5-2025-08-07", input=3, output=0)
    assert calculate_cost_usd("openai", "gpt-5-2025-08-07", USAGE, "gpt-5") == pytest.approx(3.0)


def test_a_name_that_the_list_does_not_have_is_priced_as_what_was_asked_for() -> None:
    assert calculate_cost_usd("openai", "ours", USAGE) is None
    assert (
        calculate_cost_usd("openai", "ours", USAGE, "gpt-5") == calculate_cost_usd("openai", "gpt-5", USAGE) is not None
    )


def test_one_of_every_model_of_a_provider_comes_last() -> None:
    register_price("local:*", input=0, output=0)
    register_price("local:big", input=10, output=0)
    assert calculate_cost_usd("local", "small", USAGE) == 0.0
    assert calculate_cost_usd("local", "big", USAGE) == pytest.approx(10.0)
    assert calculate_cost_usd("other", "small", USAGE) is None


@pytest.mark.parametrize(
    ("model", "price", "match"),
    [
        ("gpt-5", {"input": 1, "output": 1}, "provider:model"),
        (":gpt-5", {"input": 1, "output": 1}, "provider:model"),
        (5, {"input": 1, "output": 1}, "provider:model"),
        ("local:m", {"input": -1, "output": 1}, "input must be a number"),
        ("local:m", {"input": 1, "output": None}, "output must be a number"),
        ("local:m", {"input": 1, "output": 1, "cached": "2"}, "cached must be a number"),
        ("local:m", {"input": 1, "output": float("nan")}, "output must be a number"),
        ("local:m", {"input": True, "output": 1}, "input must be a number"),
    ],
)
def test_what_is_no_price_is_refused(model: Any, price: Any, match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        register_price(model, **price)


@pytest.mark.parametrize("limits", [Limits(cost_usd=1), Limits(turn=Limits(cost_usd=1))])
@pytest.mark.parametrize("model", ["openai:my-model", ["openai:gpt-5", "anthropic:my-model"]])
def test_a_limit_of_cost_needs_the_prices_of_the_models(model: Any, limits: Limits) -> None:
    with pytest.raises(DefinitionError, match=r"agent 'a' has a limit of cost_usd, and no price of '.*my-model'"):
        Agent("a", model, limits=limits)
    Agent("a", model, limits=Limits(tokens=1))
    register_price("openai:my-model", input=1, output=1)
    register_price("anthropic:my-model", input=1, output=1)
    Agent("a", model, limits=limits)


def test_so_does_a_model_that_sums_up() -> None:
    compaction = Compaction.summarise(at=1000, model="anthropic:my-model")
    with pytest.raises(DefinitionError, match="no price of 'anthropic:my-model'"):
        Agent("a", "openai:gpt-5", limits=Limits(cost_usd=1), compaction=compaction)
    Agent("a", "openai:gpt-5", compaction=compaction)


def test_what_models_of_others_cost_is_not_known_yet() -> None:
    Agent("a", ScriptedProvider(["Done."]), limits=Limits(cost_usd=1))
