"""What a call cost, by the price list that genai-prices ships. No network, and never an error."""

from __future__ import annotations

from functools import lru_cache

from ..types.messages import Usage

_PRICED_AS = {"openai-chat": "openai", "openai-responses": "openai"}
_UNIT = 1_000_000
"""Tokens that a rate is asked for: prices are per million, so nothing is rounded."""


def cost_usd(provider: str, model: str, usage: Usage) -> float | None:
    """US dollars, or None where the price list does not have the model (or is not installed)."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    try:
        rates = _rates(provider, model)
        if rates is None:
            return _price(provider, model, usage.input_tokens, usage.output_tokens, cached)
        fee, fresh_rate, cached_rate, output_rate = rates
        tokens = (usage.input_tokens - cached) * fresh_rate + cached * cached_rate + usage.output_tokens * output_rate
        return fee + tokens / _UNIT
    except Exception:
        # A price is a comment on the run: whatever is wrong with it, the reply that was paid for counts.
        return None


@lru_cache(maxsize=256)
def _rates(provider: str, model: str) -> tuple[float, float, float, float] | None:
    """Dollars per call, and per million tokens of input, cached input and output; None where that is not the price.

    Kept, because a look at the list takes 80 µs of CPU, in a worker 0.2 ms and more. Prices with tiers, or of a time of
    day, are looked up each time. An unknown model raises, and is not kept: the list may learn of it.
    """
    import genai_prices
    from genai_prices.types import ModelPrice, TieredPrices

    found = genai_prices.calc_price(genai_prices.Usage(), model, provider_id=_PRICED_AS.get(provider, provider))
    prices = found.model.prices
    if not isinstance(prices, ModelPrice) or any(isinstance(value, TieredPrices) for value in vars(prices).values()):
        return None
    fee = _price(provider, model, 0, 0, 0)
    counts = ((_UNIT, 0, 0), (_UNIT, 0, _UNIT), (0, _UNIT, 0))
    fresh, cached, output = (_price(provider, model, *count) - fee for count in counts)
    return fee, fresh, cached, output


def _price(provider: str, model: str, input_tokens: int, output_tokens: int, cached_tokens: int) -> float:
    import genai_prices

    usage = genai_prices.Usage(input_tokens=input_tokens, output_tokens=output_tokens, cache_read_tokens=cached_tokens)
    priced = genai_prices.calc_price(usage, model, provider_id=_PRICED_AS.get(provider, provider))
    return float(priced.total_price)
