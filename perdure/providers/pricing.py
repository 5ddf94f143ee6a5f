"""What a call cost, by prices that are registered, and the list that genai-prices ships. No network, never an error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DefinitionError
from ..types.messages import Usage
from .endpoint import Endpoint, is_host_of
from .registry import PROVIDER_ALIASES, get_provider

if TYPE_CHECKING:
    import genai_prices
    from genai_prices.types import PriceCalculation


# ---
# Prices that an author gives: of models that the price list does not have, or that cost something else here.


ANY_MODEL = "*"
"""In the place of a model's name: every model of the provider that has no price of its own."""
_TOKENS_PER_PRICE = 1_000_000
_registered_prices: dict[tuple[str, str], Price] = {}


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cached: float
    cache_write: float

    def calculate_cost(self, usage: Usage) -> float:
        """What a call cost, in dollars."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        fresh = usage.input_tokens - cached - written
        dollars = fresh * self.input + cached * self.cached + written * self.cache_write
        return (dollars + usage.output_tokens * self.output) / _TOKENS_PER_PRICE


def register_price(
    model: str,
    *,
    input: float,  # as it is called everywhere
    output: float,
    cached: float | None = None,
    cache_write: float | None = None,
) -> None:
    """What ``model`` costs: US dollars per million tokens. It comes before the price list, and replaces what was given.

        register_price("local:llama-3.3-70b", input=0.1, output=0.4)
        register_price("local:*", input=0, output=0)  # every other model of that provider

    ``cached`` and ``cache_write`` are of input tokens that were read from the provider's cache, or written into it; as
    ``input`` without. To be called where agents are defined and where workers run: a call's cost is worked out once,
    and recorded. Raises ``DefinitionError`` that names what is wrong.
    """
    provider, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if not colon or not provider.strip() or not name.strip():
        raise DefinitionError(
            f"A price is of provider:model, or of provider:*, not of {model!r:.100}.",
            hint='For instance register_price("local:llama-3.3-70b", input=0.1, output=0.4).',
        )
    given = {"input": input, "output": output, "cached": cached, "cache_write": cache_write}
    for what, value in given.items():
        if value is None and what in ("cached", "cache_write"):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise DefinitionError(
                f"The price of {model!r}: {what} is a number of dollars from 0 on, not {value!r:.100}.",
                hint="Dollars per million tokens, for instance 0.1.",
            )
    price = Price(
        float(input),
        float(output),
        float(input if cached is None else cached),
        float(input if cache_write is None else cache_write),
    )
    _registered_prices[PROVIDER_ALIASES.get(provider, provider), name] = price


def find_registered_price(provider: str, *models: str) -> Price | None:
    """The price that an author gave; ``models``: the names of one model, the likeliest first."""
    provider = PROVIDER_ALIASES.get(provider, provider)
    found = (_registered_prices.get((provider, name)) for name in (*models, ANY_MODEL))
    return next((price for price in found if price is not None), None)


_PRICE_LIST_IDS = {"openai-chat": "openai", "openai-responses": "openai"}
_BUILT_IN_PROVIDERS = ("openai", "openai-chat", "openai-responses", "anthropic", "google")
UNLISTED_SECONDS = 60.0
"""Seconds until the list is asked again for a model that it does not know: it may learn of it."""
_MAX_UNLISTED = 256
"""Tokens that a rate is asked for: prices are per million, so nothing is rounded."""


class _PriceSource(NamedTuple):
    """Whose prices count: a name in the list, or else the one whose API has the address."""

    id: str
    url: str | None


_unlisted_until: dict[tuple[_PriceSource, str], float] = {}


class _TokenCounts(NamedTuple):
    """What is paid for; ``cached`` and ``written`` are parts of ``input``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0


class _TokenRates(NamedTuple):
    """Dollars per call, and per million tokens of each kind."""

    fee: float
    fresh: float
    cached: float
    written: float
    output: float


def calculate_cost_usd(provider: str, model: str, usage: Usage, asked: str | None = None) -> float | None:
    """US dollars, or None where no price is registered and the price list does not have the model.

    ``provider`` is a registered name. One that the list does not know is priced as the API behind it. ``model`` is what
    the API calls it, and ``asked`` what the agent does: a price is registered by that name.
    """
    names = (model,) if asked is None or asked == model else (model, asked)
    if (own := find_registered_price(provider, *names)) is not None:
        return own.calculate_cost(usage)
    prices = (_calculate_listed_cost(provider, name, usage) for name in names)
    return next((price for price in prices if price is not None), None)


def _calculate_listed_cost(provider: str, model: str, usage: Usage) -> float | None:
    """By the price list."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - cached)
    counts = _TokenCounts(usage.input_tokens, usage.output_tokens, cached, written)
    for seller in _find_price_sources(provider):
        if _is_unlisted(seller, model):
            continue
        try:
            rates = _load_token_rates(seller, model)
            if rates is None:
                return _query_price(seller, model, counts)
        except Exception:  # a price is a comment on the run: the reply that was paid for counts
            _unlisted_until[seller, model] = monotonic() + UNLISTED_SECONDS
            continue
        tokens = (
            (counts.input - cached - written) * rates.fresh
            + cached * rates.cached
            + written * rates.written
            + counts.output * rates.output
        )
        return rates.fee + tokens / _TOKENS_PER_PRICE
    return None


def has_price(provider: str, model: str) -> bool:
    """Whether calls of the model have a cost, as far as its name alone tells.

    Providers of others are registered when somebody likes, and what their models are called is theirs to say.
    """
    return provider not in _BUILT_IN_PROVIDERS or calculate_cost_usd(provider, model, Usage()) is not None


def _is_unlisted(seller: _PriceSource, model: str) -> bool:
    """Whether the list did not know the model a short while ago."""
    if len(_unlisted_until) > _MAX_UNLISTED:
        _unlisted_until.clear()
    return _unlisted_until.get((seller, model), 0.0) > monotonic()


def _find_price_sources(provider: str) -> list[_PriceSource]:
    """Who may have the price of a provider's models, the likeliest first."""
    named = [_PriceSource(_PRICE_LIST_IDS.get(provider, provider), None)]
    if provider in _BUILT_IN_PROVIDERS:
        return named
    try:
        endpoint = get_provider(provider)
    except Exception:
        return named
    if not isinstance(endpoint, Endpoint):
        return named
    if is_host_of(endpoint.host, endpoint.official_hosts):
        return [_PriceSource(_PRICE_LIST_IDS.get(endpoint.format, endpoint.format), None)]
    return [_PriceSource("", endpoint.base_url), *named]


@lru_cache(maxsize=256)
def _load_token_rates(seller: _PriceSource, model: str) -> _TokenRates | None:
    """What a million tokens cost; None where the price is not a plain product of them.

    Kept, because a look at the list takes 80 µs of CPU, in a worker 0.2 ms and more. Prices with tiers, or of a time of
    day, are looked up each time. An unknown model raises.
    """
    import genai_prices  # takes a while: with the first price, not with perdure
    from genai_prices.types import ModelPrice, TieredPrices

    prices = _query_price_list(seller, model, genai_prices.Usage()).model.prices
    if not isinstance(prices, ModelPrice) or any(isinstance(value, TieredPrices) for value in vars(prices).values()):
        return None
    fee = _query_price(seller, model, _TokenCounts())
    each = (
        _TokenCounts(input=_TOKENS_PER_PRICE),
        _TokenCounts(input=_TOKENS_PER_PRICE, cached=_TOKENS_PER_PRICE),
        _TokenCounts(input=_TOKENS_PER_PRICE, written=_TOKENS_PER_PRICE),
        _TokenCounts(output=_TOKENS_PER_PRICE),
    )
    return _TokenRates(fee, *(_query_price(seller, model, counts) - fee for counts in each))


def _query_price(seller: _PriceSource, model: str, counts: _TokenCounts) -> float:
    import genai_prices

    usage = genai_prices.Usage(
        input_tokens=counts.input,
        output_tokens=counts.output,
        cache_read_tokens=counts.cached,
        cache_write_tokens=counts.written,
    )
    return float(_query_price_list(seller, model, usage).total_price)


def _query_price_list(seller: _PriceSource, model: str, usage: genai_prices.Usage) -> PriceCalculation:
    import genai_prices

    if seller.url is None:
        return genai_prices.calc_price(usage, model, provider_id=seller.id)
    return genai_prices.calc_price(usage, model, provider_api_url=seller.url)
