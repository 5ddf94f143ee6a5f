from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from genai_prices.data import providers

from perdure.providers import cost
from perdure.providers.cost import cost_usd
from perdure.types.messages import Usage


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    cost._rates.cache_clear()


USAGE = Usage(input_tokens=1_000_000, output_tokens=1000)


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "openai-responses"])
def test_a_known_model_has_a_price(provider: str) -> None:
    cost = cost_usd(provider, "gpt-4o", USAGE)
    assert cost is not None
    assert 0.1 < cost < 100


def test_cached_tokens_are_cheaper() -> None:
    cached = Usage(input_tokens=1_000_000, output_tokens=1000, cached_tokens=900_000)
    assert (cost_usd("openai", "gpt-4o", cached) or 9) < (cost_usd("openai", "gpt-4o", USAGE) or 0)


@pytest.mark.parametrize(("provider", "model"), [("openai", "my-model"), ("mine", "gpt-4o"), ("openai", ""), ("", "")])
def test_what_has_no_price(provider: str, model: str) -> None:
    assert cost_usd(provider, model, USAGE) is None


def test_rates_that_are_kept_give_the_same_price_as_the_list() -> None:
    """Every model of the list, whether its price is a plain product or has tiers."""
    dice = random.Random(7)
    plain = 0
    for provider, model in [(maker.id, model.id) for maker in providers for model in maker.models][::5]:
        total = dice.randrange(300_000)
        usage = Usage(input_tokens=total, output_tokens=dice.randrange(20_000), cached_tokens=dice.randrange(total + 1))
        try:
            counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens
            listed: float | None = cost._price(provider, model, *counts)
            plain += cost._rates(provider, model) is not None
        except Exception:
            listed = None
        assert cost_usd(provider, model, usage) == (None if listed is None else pytest.approx(listed)), model
    assert plain > 100


def test_odd_usage_raises_nothing() -> None:
    assert cost_usd("openai", "gpt-4o", Usage(input_tokens=1, cached_tokens=5)) is not None


def test_without_the_price_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    cost._rates.cache_clear()
    assert cost_usd("openai", "gpt-4o", USAGE) is None
