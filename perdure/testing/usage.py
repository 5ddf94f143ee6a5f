"""The usage of model calls in memory, for :class:`.store.MemoryStore`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ..ports.usage import UsageFilter, UsageKey, UsageRow, UsageSum, UsageSums, sort_sums


class MemoryUsage:
    """The methods of :class:`perdure.ports.usage.UsageLog`. A test may access everything."""

    def __init__(self) -> None:
        super().__init__()
        self.all_usage: dict[str, UsageRow] = {}
        """By the journal key of the call."""

    @abstractmethod
    def _raise_failure(self) -> None: ...

    async def list_usage(
        self, *, tenant: str | None = None, agent: str | None = None, since: str = "", limit: int = 1000
    ) -> list[UsageRow]:
        """Rows, the newest first, recorded at ``since`` or later."""
        self._raise_failure()
        rows = [
            row
            for _, row in sorted(self.all_usage.items())
            if tenant in (None, row.tenant) and agent in (None, row.agent) and row.created_at >= since
        ]
        return sorted(rows, key=lambda row: row.created_at, reverse=True)[:limit]

    async def sum_usage(self, key: UsageKey, filter: UsageFilter, *, limit: int = 100) -> UsageSums:
        """Sum rows by ``key``, those with the highest cost first; days the newest first."""
        self._raise_failure()
        groups: dict[str | None, list[UsageRow]] = {}
        for row in self.all_usage.values():
            if _is_summed(row, filter):
                groups.setdefault(_get_usage_key(row, key), []).append(row)
        sums = sort_sums(key, [_sum_rows(name, rows) for name, rows in groups.items()])
        return UsageSums(sums[:limit], _sum_rows(None, [row for rows in groups.values() for row in rows]), len(sums))


def _get_usage_key(row: UsageRow, key: UsageKey) -> str | None:
    match key:
        case "day":
            return row.created_at[:10]
        case "agent":
            return row.agent
        case "model":
            return f"{row.provider}:{row.model}"
        case "tenant":
            return row.tenant
        case "run":
            return row.root or row.context_id


def _is_summed(row: UsageRow, filter: UsageFilter) -> bool:
    return (
        filter.since <= row.created_at
        and (not filter.until or row.created_at < filter.until)
        and filter.agent in (None, row.agent)
        and filter.model in (None, f"{row.provider}:{row.model}")
        and filter.tenant in (None, row.tenant or "")
        and (filter.tenants is None or row.tenant in filter.tenants)
        and (filter.agents is None or row.agent in filter.agents)
        and (
            filter.sessions is None
            or any(row.context_id == one or row.context_id.startswith(f"{one}/") for one in filter.sessions)
        )
    )


def _sum_rows(key: str | None, rows: Sequence[UsageRow]) -> UsageSum:
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    return UsageSum(
        key,
        calls=len(rows),
        errors=sum(row.status != "completed" for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cost_usd=sum(costs) if costs else None,
        unpriced_calls=len(rows) - len(costs),
        milliseconds=sum(row.milliseconds for row in rows),
    )
