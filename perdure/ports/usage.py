"""The port of the usage of model calls: what each cost, and sums of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What a model call has used, as the provider reported it; a summary of a long conversation may take several
    requests, which are one row."""

    context_id: str
    agent: str
    purpose: str
    """``call``, ``force_finish`` (a model call that has to answer), or ``compact``."""
    provider: str
    """Of a chain of models, the provider that answered last; ``model`` is the model's name, as the provider gave it."""
    model: str
    status: str
    """completed; rejected, for an answer that does not fit the output type; failed, for a reply that ends the run."""
    requests: int = 1
    """Requests that were answered."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Part of the input, as are ``cache_write_tokens``; ``reasoning_tokens`` are part of the output."""
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    """None if a price is unknown."""
    milliseconds: int = 0
    """From the first request to the last reply, with waits for a provider's limits; without hooks."""
    task_id: str | None = None
    root: str | None = None
    """As in :class:`RunRow`."""
    tenant: str | None = None
    user: str | None = None
    key: str = ""
    """The journal key of the outcome; set by the store."""
    created_at: str = ""
    """When the outcome was recorded; set by the store."""


UsageKey = Literal["hour", "day", "agent", "model", "tenant", "run"]
"""What rows of usage are summed by. ``hour`` and ``day`` of UTC: the first 13 and 10 characters of ``created_at``,
``2026-11-28T23``. ``model``: provider and model, ``openai:gpt-5``. ``run``: the root run."""
TIME_KEYS: frozenset[UsageKey] = frozenset({"hour", "day"})


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which rows of usage. None and "" are all."""

    since: str = ""
    """Recorded at this time (:func:`timestamp`) or later."""
    until: str = ""
    """Recorded before this time."""
    agent: str | None = None
    model: str | None = None
    """As in :data:`UsageKey`."""
    tenant: str | None = None
    """"" for rows without one."""
    tenants: Sequence[str] | None = None
    """Only rows of these tenants, of these ``agents``, and of these ``sessions`` and the runs below them."""
    agents: Sequence[str] | None = None
    sessions: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The sums of some rows of usage."""

    key: str | None
    """What they have in common, by :data:`UsageKey`; None for rows without a tenant, and for a total."""
    calls: int = 0
    """Model calls, that is rows."""
    errors: int = 0
    """Those of them that are not ``completed``."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Part of the input."""
    output_tokens: int = 0
    cost_usd: float | None = None
    """Of the calls whose price is known; None if there are none."""
    unpriced_calls: int = 0
    """Calls whose price is unknown."""
    milliseconds: int = 0
    """Of all calls, one after the other."""


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Sums by a key: the first ones in their order, and the total of all."""

    sums: Sequence[UsageSum]
    total: UsageSum
    count: int
    """Number of keys."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run and all runs below it have used so far."""

    calls: int
    tokens: int
    """Of input and output."""
    cost_usd: float | None
    """Of the calls whose price is known; None if there are none."""


def sort_sums(key: UsageKey, sums: Sequence[UsageSum]) -> list[UsageSum]:
    """Sort sums: by cost, then by tokens, the most first; hours and days the newest first."""
    if key in TIME_KEYS:
        return sorted(sums, key=lambda one: one.key or "", reverse=True)

    def get_rank(one: UsageSum) -> tuple[bool, float, int, str]:
        cost, tokens = one.cost_usd, one.input_tokens + one.output_tokens
        return cost is None, -(cost or 0), -tokens, one.key or ""

    return sorted(sums, key=get_rank)


class UsageLog(Protocol):
    """The ``usage`` table. Its rows are part of a :class:`Commit`."""

    async def list_usage(
        self, *, tenant: str | None = None, agent: str | None = None, since: str = "", limit: int = 1000
    ) -> list[UsageRow]:
        """List rows, the newest first. ``since``: only those recorded then or later (:func:`timestamp`)."""

    async def sum_run_usage(self, context_ids: Sequence[str]) -> dict[str, RunUsage]:
        """Sum what each of these root runs has used so far; without rows a run is left out."""

    async def sum_usage(self, key: UsageKey, filter: UsageFilter, *, limit: int = 100) -> UsageSums:
        """Sum rows by ``key``, in the order of cost, then of tokens, the most first; hours and days the newest
        first. At most ``limit`` sums; ``total`` has all rows of ``filter``."""
