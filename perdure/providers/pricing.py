"""The cost of a call, by registered prices and the price list of genai-prices. No network, and never an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DefinitionError
from ..types.messages import Usage
from .endpoint import Endpoint, is_host_of
from .registry import PROVIDER_ALIASES, get_provider, runs_in_process

if TYPE_CHECKING:
    import genai_prices
    from genai_prices.types import PriceCalculation


# ---
# Prices that an author registers: of models that are not in the price list, or that have another price here.


ANY_MODEL = "*"
"""Instead of a model's name: every model of the provider that has no price of its own."""
_TOKENS_PER_PRICE = 1_000_000
"""Prices are per this many tokens; the price list is asked for as many, so nothing is rounded."""
_registered_prices: dict[tuple[str, str], Price] = {}


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cached: float
    cache_write: float

    def calculate_cost(self, usage: Usage) -> float:
        """The cost of a call, in dollars."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        fresh = usage.input_tokens - cached - written
        dollars = fresh * self.input + cached * self.cached + written * self.cache_write
        return (dollars + usage.output_tokens * self.output) / _TOKENS_PER_PRICE


def register_price(
    model: str,
    *,
    input: float,  # the usual name
    output: float,
    cached: float | None = None,
    cache_write: float | None = None,
) -> None:
    """Register the price of ``model``: US dollars per million tokens. It precedes the price list and earlier prices.

        register_price("local:llama-3.3-70b", input=0.1, output=0.4)
        register_price("local:*", input=0, output=0)  # every other model of that provider

    ``cached`` and ``cache_write`` are the prices of input tokens that were read from the provider's cache, or written
    into it; by default that of ``input``. Call it where agents are defined and where workers run: a call's cost is
    calculated once, and recorded. Raises ``DefinitionError`` that names the invalid value.
    """
    provider, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if not colon or not provider.strip() or not name.strip():
        hint = 'For instance register_price("local:llama-3.3-70b", input=0.1, output=0.4).'
        raise DefinitionError(f"A price must be of provider:model, or of provider:*, not of {model!r:.100}.", hint=hint)
    price = {
        "input": input,
        "output": output,
        "cached": input if cached is None else cached,
        "cache_write": input if cache_write is None else cache_write,
    }
    for field, value in price.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            problem = f"The price of {model!r}: {field} must be a number of dollars, 0 or more, not {value!r:.100}."
            raise DefinitionError(problem, hint="Dollars per million tokens, for instance 0.1.")
    price = {field: float(value) for field, value in price.items()}
    _registered_prices[PROVIDER_ALIASES.get(provider, provider), name] = Price(**price)


def _find_registered_price(provider: str, models: Sequence[str]) -> Price | None:
    """The price of the first name of ``models`` that has one, or of every model of the provider."""
    provider = PROVIDER_ALIASES.get(provider, provider)
    prices = (_registered_prices.get((provider, name)) for name in (*models, ANY_MODEL))
    return next((price for price in prices if price is not None), None)


# ---
# The price list.


_PRICE_LIST_IDS = {"openai-chat": "openai", "openai-responses": "openai"}
_BUILT_IN_PROVIDERS = ("openai", "openai-chat", "openai-responses", "anthropic", "google")
UNLISTED_SECONDS = 60.0
"""Seconds until the list is asked again for an unknown model: it may have been added."""
_MAX_UNLISTED = 256
"""Entries of ``_unlisted_until`` before it is cleared."""


class _PriceSource(NamedTuple):
    """The prices to use: those of a name in the list, or those of the API with the address."""

    id: str | None
    url: str | None = None


_unlisted_until: dict[tuple[_PriceSource, str], float] = {}


def calculate_cost_usd(provider: str, model: str, usage: Usage, requested_model: str | None = None) -> float | None:
    """US dollars, or None if no price is registered and the price list does not have the model.

    ``provider`` is a registered name; one that is not in the list is priced as the API behind it. ``model`` is the
    API's name of the model, and ``requested_model`` the agent's: a price is registered by that name.
    """
    names = (model,) if requested_model in (None, model) else (model, requested_model)
    if (registered_price := _find_registered_price(provider, names)) is not None:
        return registered_price.calculate_cost(usage)
    if runs_in_process(provider):
        return 0.0
    costs = (_calculate_listed_cost(provider, name, usage) for name in names)
    return next((cost for cost in costs if cost is not None), None)


def has_price(provider: str, model: str) -> bool:
    """Whether calls of the model have a cost, as far as its name alone shows.

    Other providers may be registered later, and name their models freely: True.
    """
    return provider not in _BUILT_IN_PROVIDERS or calculate_cost_usd(provider, model, Usage()) is not None


def _calculate_listed_cost(provider: str, model: str, usage: Usage) -> float | None:
    if len(_unlisted_until) > _MAX_UNLISTED:
        _unlisted_until.clear()
    for source in _find_price_sources(provider):
        if _unlisted_until.get((source, model), 0.0) > monotonic():
            continue
        try:
            if (listed := _load_price(source, model)) is None:
                return _query_cost(source, model, usage)
            fee, price = listed
            return fee + price.calculate_cost(usage)
        except Exception:  # a price only annotates the run: the reply that was paid for counts
            _unlisted_until[source, model] = monotonic() + UNLISTED_SECONDS
    return None


def _find_price_sources(provider: str) -> list[_PriceSource]:
    """The sources that may have the price of a provider's models, the likeliest first."""
    named = [_PriceSource(_PRICE_LIST_IDS.get(provider, provider))]
    if provider in _BUILT_IN_PROVIDERS:
        return named
    try:
        endpoint = get_provider(provider)
    except Exception:
        return named
    if not isinstance(endpoint, Endpoint):
        return named
    if is_host_of(endpoint.host, endpoint.official_hosts):
        return [_PriceSource(_PRICE_LIST_IDS.get(endpoint.format, endpoint.format))]
    return [_PriceSource(None, endpoint.base_url), *named]


@lru_cache(maxsize=256)
def _load_price(source: _PriceSource, model: str) -> tuple[float, Price] | None:
    """The fee of a call and the price of its tokens; None if the cost is not a plain product of them.

    Cached, because a query of the list takes 80 µs of CPU, in a worker 0.2 ms and more. Prices with tiers, or of a time
    of day, are queried each time. Raises for an unknown model.
    """
    import genai_prices  # takes a while: with the first price, not with perdure
    from genai_prices.types import ModelPrice, TieredPrices

    prices = _query_price_list(source, model, genai_prices.Usage()).model.prices
    if not isinstance(prices, ModelPrice) or any(isinstance(value, TieredPrices) for value in vars(prices).values()):
        return None
    fee, tokens = _query_cost(source, model, Usage()), _TOKENS_PER_PRICE
    kinds = (
        Usage(input_tokens=tokens),
        Usage(output_tokens=tokens),
        Usage(input_tokens=tokens, cached_tokens=tokens),
        Usage(input_tokens=tokens, cache_write_tokens=tokens),
    )
    return fee, Price(*(_query_cost(source, model, usage) - fee for usage in kinds))


def _query_cost(source: _PriceSource, model: str, usage: Usage) -> float:
    import genai_prices

    cached = min(usage.cached_tokens, usage.input_tokens)
    counts = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=cached,
        cache_write_tokens=min(usage.cache_write_tokens, usage.input_tokens - cached),
    )
    return float(_query_price_list(source, model, counts).total_price)


def _query_price_list(source: _PriceSource, model: str, usage: genai_prices.Usage) -> PriceCalculation:
    import genai_prices

    if source.url is None:
        return genai_prices.calc_price(usage, model, provider_id=source.id)
    return genai_prices.calc_price(usage, model, provider_api_url=source.url)
