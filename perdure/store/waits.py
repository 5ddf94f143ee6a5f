"""Reads and changes the table of the calls that wait for a person or a client; what events change: `event_log.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ..ports.run_lists import lower_ascii
from ..ports.waits import RunWaits, WaitCursor, WaitGroup, WaitOrder, WaitRow
from ..types.approvals import PendingKind
from .schema import Tables, as_bytes, split_keys
from .statements import load_statements

SQL = load_statements("waits")


class WaitTables(Tables):
    """The methods of :class:`perdure.ports.waits.Waits`, for a store in a database."""

    async def list_waits(
        self,
        *,
        agent: str | None = None,
        kind: PendingKind | None = None,
        tool: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        text: str | None = None,
        order: WaitOrder = "since",
        group: WaitGroup | None = None,
        after: WaitCursor | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """See :class:`perdure.ports.waits.Waits`."""
        place: dict[str, Any] = {}
        if after is not None:
            place = {"place": order if group is None else f"{group}_{order}", "name": after.name}
            place |= {"less": -_parse_amount(after.at)} if order == "amount" else {"time": after.at}
            place |= {"context_id": after.context_id, "call_id": after.call_id}
        pattern = None if text is None else f"%{_escape_pattern(lower_ascii(text))}%"
        filters = {"agent": agent, "kind": kind, "tool": tool, "tenant": tenant, "user": user, "text": pattern}
        rows = await self._select_rows(SQL.list_waits, **filters, order=order, group=group, limit=limit, **place)
        return [replace(WaitRow(*row[:-1]), body=None if row[-1] is None else as_bytes(row[-1])) for row in rows]

    async def count_wait_groups(
        self, group: WaitGroup, *, agent: str | None = None, kind: PendingKind | None = None, limit: int = 100
    ) -> dict[str, int]:
        """See :class:`perdure.ports.waits.Waits`."""
        rows = await self._select_rows(SQL.count_wait_groups, group=group, agent=agent, kind=kind, limit=limit)
        return {str(name): int(count) for name, count in rows}

    async def list_run_waits(self, context_ids: Sequence[str], *, limit: int = 1000) -> dict[str, RunWaits]:
        """See :class:`perdure.ports.waits.Waits`."""
        found: dict[str, list[WaitRow]] = {context_id: [] for context_id in context_ids}
        at_work: set[str] = set()
        for keys in split_keys(context_ids):
            for context_id, *row in await self._select_rows(SQL.list_run_waits, context_ids=keys, limit=limit):
                found[context_id].append(WaitRow(*row))
            at_work |= {row[0] for row in await self._select_rows(SQL.list_runs_at_work, context_ids=keys)}
        return {
            context_id: RunWaits(tuple(rows), is_at_work=context_id in at_work) for context_id, rows in found.items()
        }

    async def count_waits(self, *, agent: str | None = None) -> int:
        """See :class:`perdure.ports.waits.Waits`."""
        rows = await self._select_rows(SQL.count_waits, agent=agent)
        return int(rows[0][0]) if rows else 0

    async def put_wait(self, row: WaitRow) -> None:
        """See :class:`perdure.ports.waits.Waits`."""
        values = {name: value for name, value in asdict(row).items() if name not in ("body", "tenant", "user")}
        await self._change_rows(SQL.put_wait, **values, seq=0)

    async def remove_wait(self, context_id: str, call_id: str, hash: str | None = None) -> None:
        """See :class:`perdure.ports.waits.Waits`."""
        await self._change_rows(SQL.remove_wait, context_id=context_id, call_id=call_id, hash=hash)


def _escape_pattern(text: str) -> str:
    """Return ``text`` as it stands for itself in a pattern of LIKE."""
    return "".join(f"!{char}" if char in "!%_" else char for char in text)


def _parse_amount(text: str) -> float:
    """Return the amount of a cursor; 0 for another text, which only another client has made."""
    try:
        amount = float(text)
    except ValueError:
        return 0.0
    return amount if math.isfinite(amount) else 0.0
