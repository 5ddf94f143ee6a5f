"""What a worker may use: the limits per provider, the rate of its task queue, and the bytes of its caches."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ..agent import Agent
from ..errors import DefinitionError
from ..providers.registry import ALIASES, known_providers
from ..providers.throttle import Throttle
from ..types.limits import RateLimit


def checked_limits(limits: Any, agents: Iterable[Agent]) -> dict[str, RateLimit]:
    """``provider_limits`` by the names of providers, or of the classes of agents' own. Raises ``DefinitionError``."""
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise DefinitionError(
            f"provider_limits must be a dictionary by the names of providers, not {limits!r:.100}",
            hint='For instance provider_limits={"anthropic": RateLimit(concurrent=8, per_minute=50)}.',
        )
    own = {model.provider for agent in agents for model in agent.chain if model.own is not None}
    known = sorted({*known_providers(), *own})
    for name, limit in limits.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            raise DefinitionError(
                f"provider_limits names {name!r}, which is no provider. Known providers: {', '.join(known)}.",
                hint=f"Did you mean {close[0]!r}?" if close else "register_provider(name, provider) makes one known.",
            )
        if not isinstance(limit, RateLimit):
            raise DefinitionError(
                f"provider_limits[{name!r}] must be a RateLimit, not {limit!r:.100}",
                hint="For instance RateLimit(concurrent=8, per_minute=50).",
            )
    return dict(limits)


def throttles(limits: Mapping[str, RateLimit]) -> dict[str, Throttle]:
    """One for each limit, found by each name of its provider."""
    made = {name: Throttle(name, limit) for name, limit in limits.items()}
    for alias, name in ALIASES.items():
        if (found := made.get(name) or made.get(alias)) is not None:
            made[name] = made[alias] = found
    return made


def checked_rate(rate: Any) -> float | None:
    """``calls_per_second``: a number above zero. Raises ``DefinitionError``."""
    if rate is None or (isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0):
        return rate
    raise DefinitionError(
        f"calls_per_second must be a number above zero, not {rate!r:.100}",
        hint="For instance calls_per_second=20; leave it out for no limit.",
    )


def checked_cache(cache: Any) -> int:
    """``cache``: a number of bytes. Raises ``DefinitionError``."""
    if isinstance(cache, int) and not isinstance(cache, bool) and cache >= 0:
        return cache
    raise DefinitionError(
        f"cache must be a number of bytes, not {cache!r:.100}", hint="For instance cache=64 * 1024 * 1024."
    )
