"""Reads and changes the table of decisions that can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.decisions import DecisionRow
from ..ports.times import add_seconds
from .schema import TABLES, Tables, as_bytes, split_keys
from .statements import load_statements

SQL = load_statements("decisions")


class DecisionTables(Tables):
    """The methods of :class:`perdure.ports.decisions.Decisions`, for a store in a database."""

    async def defer_decision(self, row: DecisionRow, seconds: float) -> DecisionRow:
        """See :class:`perdure.ports.decisions.Decisions`."""
        now = await self._read_clock()
        values = asdict(row) | {"created_at": now, "due_at": add_seconds(now, seconds)}
        values["user_id"] = values.pop("user")
        while True:
            await self._change_rows(SQL.defer_decision, **values)
            rows = await self._select_rows(SQL.get_decision, context_id=row.context_id, call_id=row.call_id)
            if rows:  # else the earlier one was taken back meanwhile
                return _decode_row(rows[0])

    async def take_back_decision(self, context_id: str, call_id: str, id: str) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return bool(await self._change_rows(SQL.take_back_decision, context_id=context_id, call_id=call_id, id=id))

    async def take_decisions(self, owner: str, *, lease_seconds: float, limit: int = 100) -> list[DecisionRow]:
        """See :class:`perdure.ports.decisions.Decisions`."""
        now = await self._read_clock()
        rows = await self._change_rows(
            SQL.take_decisions,
            owner=owner,
            now=now,
            until=add_seconds(now, lease_seconds),
            limit=limit,
        )
        return sorted(map(_decode_row, rows), key=lambda row: (row.due_at, row.context_id, row.call_id))

    async def postpone_decision(
        self, owner: str, row: DecisionRow, note: str, seconds: float, *, has_begun: bool
    ) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        until = add_seconds(await self._read_clock(), seconds)
        values = {"note": note, "until": until, "next_owner": owner if has_begun else ""}
        changes = values | {"attempts": row.attempts if has_begun else 0}
        return bool(await self._change_rows(SQL.postpone_decision, **_name(row), owner=owner, **changes))

    async def settle_decision(self, owner: str, row: DecisionRow, answer: bytes) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return bool(await self._change_rows(SQL.settle_decision, **_name(row), owner=owner, answer=answer))

    async def list_decisions(self, context_ids: Sequence[str]) -> list[DecisionRow]:
        """See :class:`perdure.ports.decisions.Decisions`."""
        found: list[DecisionRow] = []
        for keys in split_keys(context_ids):
            found += map(_decode_row, await self._select_rows(SQL.list_decisions, keys=keys))
        return sorted(found, key=lambda row: (row.context_id, row.call_id))

    async def has_open_decisions(self) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return bool(await self._select_rows(SQL.find_open_decision))

    async def delete_settled_decisions(self, before: str) -> int:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return len(await self._change_rows(SQL.delete_settled_decisions, before=before))


def _name(row: DecisionRow) -> dict[str, str]:
    return {"context_id": row.context_id, "call_id": row.call_id, "id": row.id}


def _decode_row(row: Sequence[Any]) -> DecisionRow:
    values = dict(zip(TABLES["decisions"], row, strict=True))
    values["user"] = values.pop("user_id")
    values["body"] = as_bytes(values["body"])
    values["answer"] = None if values["answer"] is None else as_bytes(values["answer"])
    return DecisionRow(**values)
