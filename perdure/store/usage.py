"""Reads the usage of model calls: rows, and their sums. Every statement is one of both databases.

A row is written in the transaction of its call's outcome, see ``journal.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ..ports.store import UsageFilter, UsageKey, UsageRow, UsageSum, UsageSums, sort_sums
from .schema import TABLES, build_in, build_insert

read_usage_values = attrgetter(*(field.name for field in fields(UsageRow) if field.name not in ("key", "created_at")))
"""Returns the values of a :class:`UsageRow` in the order of the columns, without those that the store sets."""
INSERT_USAGE = build_insert("usage")
SELECT_USAGE = f"""
    SELECT {", ".join(TABLES["usage"])} FROM usage WHERE created_at >= :since {{filters}}
    ORDER BY created_at DESC, key LIMIT :limit"""  # noqa: S608  # names of the schema
MODEL = "provider || ':' || model"
KEYS: dict[UsageKey, str] = {
    "day": "substr(created_at, 1, 10)",
    # Not the column alone: SQLite would read its index from end to end, whatever the time, and the rows in its order.
    "agent": "agent || ''",
    "model": MODEL,
    "tenant": "tenant",
    "run": "coalesce(root, context_id)",
}
COUNTS = ("calls", "errors", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "unpriced_calls")
COLUMNS = ", ".join((*COUNTS, "milliseconds"))
# One pass over the rows of the time, by the index of created_at; sums are few, and are read twice for their total.
SELECT_SUMS = f"""
    WITH sums AS (
        SELECT {{key}} AS name, count(*) AS calls, sum(CASE WHEN status = 'completed' THEN 0 ELSE 1 END) AS errors,
            sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens,
            sum(output_tokens) AS output_tokens, sum(cost_usd) AS cost_usd,
            count(*) - count(cost_usd) AS unpriced_calls, sum(milliseconds) AS milliseconds
        FROM usage WHERE {{conditions}} GROUP BY 1
    ), listed AS (
        SELECT 1 AS part, name, {COLUMNS} FROM sums ORDER BY {{order}} LIMIT :limit
    )
    SELECT 0 AS part, CAST(count(*) AS TEXT) AS name, {", ".join(f"sum({name})" for name in COUNTS)}, sum(milliseconds)
    FROM sums
    UNION ALL SELECT part, name, {COLUMNS} FROM listed"""  # noqa: S608  # constants
BY_COST = "cost_usd DESC NULLS LAST, input_tokens + output_tokens DESC, name"


class UsageTables:
    """The methods of :class:`perdure.ports.store.UsageLog`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]:
        """Return the rows of a statement that reads."""

    async def list_usage(
        self, *, tenant: str | None = None, agent: str | None = None, since: str = "", limit: int = 1000
    ) -> list[UsageRow]:
        """See :class:`perdure.ports.store.UsageLog`."""
        given = {name: value for name, value in (("tenant", tenant), ("agent", agent)) if value is not None}
        sql = SELECT_USAGE.format(filters=" ".join(f"AND {name} = :{name}" for name in given))
        return [UsageRow(*row) for row in await self._select_rows(sql, **given, since=since, limit=limit)]

    async def sum_usage(self, key: UsageKey, filter: UsageFilter, *, limit: int = 100) -> UsageSums:
        """See :class:`perdure.ports.store.UsageLog`."""
        conditions, values = _build_conditions(filter)
        order = "name DESC" if key == "day" else BY_COST
        sql = SELECT_SUMS.format(key=KEYS[key], conditions=" AND ".join(conditions), order=order)
        rows = await self._select_rows(sql, **values, limit=limit)
        if not rows:  # there is no store yet
            return UsageSums([], UsageSum(None), 0)
        [total] = [row for row in rows if row[0] == 0]
        sums = [_build_sum(row[1], row[2:]) for row in rows if row[0] == 1]
        return UsageSums(sort_sums(key, sums), _build_sum(None, total[2:]), int(total[1]))


def _build_sum(key: str | None, values: Sequence[Any]) -> UsageSum:
    named = dict(zip((*COUNTS, "milliseconds"), values, strict=True))
    cost = named.pop("cost_usd")
    counts = {name: int(value or 0) for name, value in named.items()}
    return UsageSum(key, **counts, cost_usd=None if cost is None else float(cost))


def _build_conditions(filter: UsageFilter) -> tuple[list[str], dict[str, Any]]:
    conditions, values = ["created_at >= :since"], dict[str, Any](since=filter.since)
    for condition, name, value in (
        ("created_at < :until", "until", filter.until or None),
        ("agent = :agent", "agent", filter.agent),
        (f"{MODEL} = :model", "model", filter.model),
        ("tenant = :tenant", "tenant", filter.tenant or None),
    ):
        if value is not None:
            conditions.append(condition)
            values[name] = value
    if filter.tenant == "":
        conditions.append("tenant IS NULL")
    for column, names in (("tenant", filter.tenants), ("agent", filter.agents)):
        if names is not None:
            condition, named = build_in(column, f"{column}_", names)
            conditions.append(condition)
            values |= named
    if filter.sessions is not None:
        own, values_of = build_in("context_id", "session", filter.sessions)
        below = [f"substr(context_id, 1, {len(one) + 1}) = :below{n}" for n, one in enumerate(filter.sessions)]
        conditions.append(f"({' OR '.join([own, *below])})")
        values |= values_of | {f"below{n}": f"{one}/" for n, one in enumerate(filter.sessions)}
    return conditions, values
