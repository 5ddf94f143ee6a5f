"""Reads the usage of model calls: rows, and their sums.

A row is written in the transaction of its call's outcome, see ``journal.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ..ports.usage import TIME_KEYS, RunUsage, UsageFilter, UsageKey, UsageRow, UsageSum, UsageSums, sort_sums
from .schema import Tables, encode_sessions, split_keys
from .statements import load_statements

SQL = load_statements("usage")

read_usage_values = attrgetter(*(field.name for field in fields(UsageRow) if field.name not in ("key", "created_at")))
"""Returns the values of a :class:`UsageRow` in the order of the columns, without those that the store sets."""
COUNTS = ("calls", "errors", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "unpriced_calls")


class UsageTables(Tables):
    """The methods of :class:`perdure.ports.usage.UsageLog`, for a store in a database."""

    async def list_usage(
        self, *, tenant: str | None = None, agent: str | None = None, since: str = "", limit: int = 1000
    ) -> list[UsageRow]:
        """See :class:`perdure.ports.usage.UsageLog`."""
        rows = await self._select_rows(SQL.list_usage, tenant=tenant, agent=agent, since=since, limit=limit)
        return [UsageRow(*row) for row in rows]

    async def sum_usage(self, key: UsageKey, filter: UsageFilter, *, limit: int = 100) -> UsageSums:
        """See :class:`perdure.ports.usage.UsageLog`."""
        values = {**_get_values(filter), "key": key, "by_time": key in TIME_KEYS, "limit": limit}
        rows = await self._select_rows(SQL.sum_usage, **values)
        if not rows:  # there is no store yet
            return UsageSums([], UsageSum(None), 0)
        [total] = [row for row in rows if row[0] == 0]
        sums = [_build_sum(row[1], row[2:]) for row in rows if row[0] == 1]
        return UsageSums(sort_sums(key, sums), _build_sum(None, total[2:]), int(total[1]))

    async def sum_run_usage(self, context_ids: Sequence[str]) -> dict[str, RunUsage]:
        """See :class:`perdure.ports.usage.UsageLog`."""
        sums: dict[str, RunUsage] = {}
        for keys in split_keys(context_ids):
            for name, calls, tokens, cost in await self._select_rows(SQL.sum_run_usage, keys=keys):
                sums[name] = RunUsage(int(calls), int(tokens or 0), None if cost is None else float(cost))
        return sums


def _build_sum(key: str | None, values: Sequence[Any]) -> UsageSum:
    named = dict(zip((*COUNTS, "milliseconds"), values, strict=True))
    cost = named.pop("cost_usd")
    counts = {name: int(value or 0) for name, value in named.items()}
    return UsageSum(key, **counts, cost_usd=None if cost is None else float(cost))


def _get_values(filter: UsageFilter) -> dict[str, Any]:
    return {
        "since": filter.since,
        "until": filter.until or None,
        "agent": filter.agent,
        "model": filter.model,
        "tenant": filter.tenant or None,
        "without_tenant": filter.tenant == "",
        "tenants": filter.tenants,
        "agents": filter.agents,
        "sessions": encode_sessions(filter.sessions),
    }
