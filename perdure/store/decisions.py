"""Reads and changes the table of decisions that can be taken back: one set of statements for both databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.decisions import DecisionRow
from ..ports.surfaces import add_seconds
from .schema import MAX_KEYS, TABLES, as_bytes, bind_keys, build_insert

_COLUMNS = ", ".join(TABLES["decisions"])
_TAKEN = ", ".join(f"decisions.{column}" for column in TABLES["decisions"])
_KEY = ("context_id", "call_id")
_CHANGES = ", ".join(f"{column} = excluded.{column}" for column in TABLES["decisions"] if column not in _KEY)
# One that has its answer makes room for the next: the call may wait again.
DEFER_DECISION = build_insert(
    "decisions", f"(context_id, call_id) DO UPDATE SET {_CHANGES} WHERE decisions.answer IS NOT NULL RETURNING id"
)
SELECT_DECISION = f"SELECT {_COLUMNS} FROM decisions WHERE context_id = :context_id AND call_id = :call_id"  # noqa: S608  # names of the schema
SELECT_DECISIONS = f"SELECT {_COLUMNS} FROM decisions WHERE context_id IN (:keys)"  # noqa: S608  # names of the schema
TAKE_BACK = """
    DELETE FROM decisions
    WHERE context_id = :context_id AND call_id = :call_id AND id = :id AND owner = '' AND answer IS NULL RETURNING id"""
# As of the outbox: rows that another sender is about to take are left out on PostgreSQL.
TAKE_DECISIONS = f"""
    WITH due AS (
        SELECT context_id, call_id FROM decisions WHERE answer IS NULL AND due_at <= :now AND leased_until <= :now
        ORDER BY due_at, context_id, call_id LIMIT :limit {{skip_locked}}
    )
    UPDATE decisions SET owner = :owner, leased_until = :until, attempts = attempts + 1
    WHERE (context_id, call_id) IN (SELECT context_id, call_id FROM due)
    RETURNING {_TAKEN}"""  # noqa: S608  # names of the schema
_OWN = "WHERE context_id = :context_id AND call_id = :call_id AND id = :id AND owner = :owner AND answer IS NULL"
POSTPONE = f"""
    UPDATE decisions SET note = :note, leased_until = :until, owner = :next_owner, attempts = :attempts {_OWN}
    RETURNING id"""  # noqa: S608  # a constant
SETTLE = f"UPDATE decisions SET answer = :answer, note = NULL {_OWN} RETURNING id"  # noqa: S608  # a constant
SELECT_OPEN = "SELECT 1 FROM decisions WHERE answer IS NULL LIMIT 1"
DELETE_SETTLED = "DELETE FROM decisions WHERE answer IS NOT NULL AND due_at < :before RETURNING id"


class DecisionTables:
    """The methods of :class:`perdure.ports.decisions.Decisions`, for a store in a database."""

    skip_locked = ""
    """Ends a SELECT of rows that are to be changed."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _read_clock(self) -> str: ...

    async def defer_decision(self, row: DecisionRow, seconds: float) -> DecisionRow:
        """See :class:`perdure.ports.decisions.Decisions`."""
        now = await self._read_clock()
        values = asdict(row) | {"created_at": now, "due_at": add_seconds(now, seconds)}
        values["user_id"] = values.pop("user")
        while True:
            await self._change_rows(DEFER_DECISION, **values)
            rows = await self._select_rows(SELECT_DECISION, context_id=row.context_id, call_id=row.call_id)
            if rows:  # else the earlier one was taken back meanwhile
                return _decode_row(rows[0])

    async def take_back_decision(self, context_id: str, call_id: str, id: str) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return bool(await self._change_rows(TAKE_BACK, context_id=context_id, call_id=call_id, id=id))

    async def take_decisions(self, owner: str, *, lease_seconds: float, limit: int = 100) -> list[DecisionRow]:
        """See :class:`perdure.ports.decisions.Decisions`."""
        now = await self._read_clock()
        rows = await self._change_rows(
            TAKE_DECISIONS.format(skip_locked=self.skip_locked),
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
        attempts = row.attempts if has_begun else 0
        return bool(await self._change_rows(POSTPONE, **_name(row), owner=owner, attempts=attempts, **values))

    async def settle_decision(self, owner: str, row: DecisionRow, answer: bytes) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return bool(await self._change_rows(SETTLE, **_name(row), owner=owner, answer=answer))

    async def list_decisions(self, context_ids: Sequence[str]) -> list[DecisionRow]:
        """See :class:`perdure.ports.decisions.Decisions`."""
        unique = list(dict.fromkeys(context_ids))
        found: list[DecisionRow] = []
        for start in range(0, len(unique), MAX_KEYS):
            statement, keys = bind_keys(SELECT_DECISIONS, unique[start : start + MAX_KEYS])
            found += map(_decode_row, await self._select_rows(statement, **keys))
        return sorted(found, key=lambda row: (row.context_id, row.call_id))

    async def has_open_decisions(self) -> bool:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return bool(await self._select_rows(SELECT_OPEN))

    async def delete_settled_decisions(self, before: str) -> int:
        """See :class:`perdure.ports.decisions.Decisions`."""
        return len(await self._change_rows(DELETE_SETTLED, before=before))


def _name(row: DecisionRow) -> dict[str, str]:
    return {"context_id": row.context_id, "call_id": row.call_id, "id": row.id}


def _decode_row(row: Sequence[Any]) -> DecisionRow:
    values = dict(zip(TABLES["decisions"], row, strict=True))
    values["user"] = values.pop("user_id")
    values["body"] = as_bytes(values["body"])
    values["answer"] = None if values["answer"] is None else as_bytes(values["answer"])
    return DecisionRow(**values)
