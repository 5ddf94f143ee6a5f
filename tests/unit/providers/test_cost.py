from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from genai_prices.data import providers

from perdure.providers import pricing, registry
from perdure.providers.openai_chat import OpenAIChat
from perdure.providers.pricing import calculate_cost_usd
from perdure.types.messages import Usage


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    pricing._load_price.cache_clear()


USAGE = Usage(input_tokens=1_000_000, output_tokens=1000)


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "openai-responses"])
def test_a_known_model_has_a_price(provider: str) -> None:
    cost = calculate_cost_usd(provider, "gpt-4o", USAGE)
    assert cost is not None
    assert 0.1 < cost < 100


def test_cached_tokens_are_cheaper() -> None:
    cached = Usage(input_tokens=1_000_000, output_tokens=1000, cached_tokens=900_000)
    assert (calculate_cost_usd("openai", "gpt-4o", cached) or 9) < (calculate_cost_usd("openai", "gpt-4o", USAGE) or 0)


@pytest.mark.parametrize(("provider", "model"), [("openai", "my-model"), ("mine", "gpt-4o"), ("openai", ""), ("", "")])
def test_what_has_no_price(provider: str, model: str) -> None:
    assert calculate_cost_usd(provider, model, USAGE) is None


def test_rates_that_are_kept_give_the_same_price_as_the_list() -> None:
    """Every model of the list, whether its price is a plain product or has tiers."""
    dice = random.Random(7)
    plain = 0
    for provider, model in [(maker.id, model.id) for maker in providers for model in maker.models][::5]:
        total = dice.randrange(300_000)
        cached = dice.randrange(total + 1)
        usage = Usage(
            input_tokens=total,
            output_tokens=dice.randrange(20_000),
            cached_tokens=cached,
            cache_write_tokens=dice.randrange(total - cached + 1),
        )
        try:
            source = pricing._PriceSource(provider)
            listed: float | None = pricing._query_cost(source, model, usage)
            plain += pricing._load_price(source, model) is not None
        except Exception:
            listed = None
        assert calculate_cost_usd(provider, model, usage) == (None if listed is None else pytest.approx(listed)), model
    assert plain > 100


def test_writing_a_cache_costs_more_and_reading_it_less() -> None:
    def price(**counts: int) -> float:
        return calculate_cost_usd("anthropic", "claude-sonnet-5-5", Usage(input_tokens=1000, **counts)) or 0.0

    assert price() > 0
    assert price(cached_tokens=900) < price() < price(cache_write_tokens=900)


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_other_vendors_are_in_the_list(provider: str) -> None:
    model = {"anthropic": "claude-sonnet-5-5", "google": "gemini-2.5-flash"}[provider]
    assert (calculate_cost_usd(provider, model, USAGE) or 0) > 0.1


@pytest.mark.parametrize(
    ("provider", "model", "same_as"),
    [
        (OpenAIChat(), "gpt-4o", "openai"),
        (OpenAIChat(base_url="https://eu.api.openai.com/v1"), "gpt-4o", "openai"),
        (OpenAIChat(base_url="https://api.deepseek.com"), "deepseek-chat", "deepseek"),
        (OpenAIChat(base_url="http://127.0.0.1:1/v1"), "gpt-4o", None),
        (OpenAIChat(base_url="https://api.deepseek.com"), "gpt-4o", None),
    ],
)
def test_a_registered_name_is_priced_as_the_api_behind_it(
    provider: OpenAIChat, model: str, same_as: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_providers", {"mine": provider})
    priced = calculate_cost_usd("mine", model, USAGE)
    assert priced == (calculate_cost_usd(same_as, model, USAGE) if same_as else None)
    assert (priced is None) == (same_as is None)


def test_a_name_of_the_list_is_priced_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_providers", {"groq": OpenAIChat(base_url="http://gateway.internal/v1")})
    assert calculate_cost_usd("groq", "llama-3.3-70b-versatile", USAGE) is not None


def test_odd_usage_raises_nothing() -> None:
    assert calculate_cost_usd("openai", "gpt-4o", Usage(input_tokens=1, cached_tokens=5)) is not None
    odd = Usage(input_tokens=3, cached_tokens=2, cache_write_tokens=9)
    assert calculate_cost_usd("openai", "gpt-4o", odd) is not None


def test_without_the_price_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    pricing._load_price.cache_clear()
    assert calculate_cost_usd("openai", "gpt-4o", USAGE) is None
