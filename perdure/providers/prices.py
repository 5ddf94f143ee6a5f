"""Prices that an author gives: of models that the price list does not have, or that cost something else here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import DefinitionError
from ..types.messages import Usage
from .registry import ALIASES

ANY = "*"
"""In the place of a model's name: every model of the provider that has no price of its own."""
_UNIT = 1_000_000
_prices: dict[tuple[str, str], Price] = {}


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cached: float
    cache_write: float

    def of(self, usage: Usage) -> float:
        """What a call cost, in dollars."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        fresh = usage.input_tokens - cached - written
        dollars = fresh * self.input + cached * self.cached + written * self.cache_write
        return (dollars + usage.output_tokens * self.output) / _UNIT


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
    _prices[ALIASES.get(provider, provider), name] = price


def registered(provider: str, *models: str) -> Price | None:
    """The price that an author gave; ``models``: the names of one model, the likeliest first."""
    provider = ALIASES.get(provider, provider)
    found = (_prices.get((provider, name)) for name in (*models, ANY))
    return next((price for price in found if price is not None), None)
