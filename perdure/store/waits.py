"""Reads and changes the table of the calls that wait for a person or a client; what events change: `event_log.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ..ports.surfaces import RunWaits, WaitCursor, WaitRow
from ..types.approvals import PendingKind
from .schema import MAX_KEYS, TABLES, as_bytes, bind_keys, build_insert

SELECT_WAITS = """
    SELECT waits.context_id, call_id, root, kind, agent, tool, hash, created_at, expires_at, events.body
    FROM waits LEFT JOIN events ON events.context_id = waits.root AND events.seq = waits.seq
    WHERE {conditions} ORDER BY {order}, waits.context_id, call_id LIMIT :limit"""
_WAIT_COLUMNS = ", ".join(f"waits.{column} AS {column}" for column in TABLES["waits"] if column != "seq")
# First the runs' own, then those of the runs below them, whose ids have theirs and a slash before their own; "0" is the
# character after it. CROSS JOIN: SQLite then looks for each run's range in the key of the waits.
SELECT_RUN_WAITS = f"""
    SELECT waits.context_id AS run_id, {_WAIT_COLUMNS} FROM waits WHERE waits.context_id IN (:keys)
    UNION ALL
    SELECT runs.context_id, {_WAIT_COLUMNS} FROM runs CROSS JOIN waits
    WHERE runs.context_id IN (:keys)
        AND waits.context_id > runs.context_id || '/' AND waits.context_id < runs.context_id || '0'
    ORDER BY created_at, context_id, call_id LIMIT :limit"""  # noqa: S608  # names of the schema
SELECT_RUNS_AT_WORK = """
    SELECT runs.context_id FROM runs JOIN feeds ON feeds.context_id = runs.context_id
    WHERE runs.context_id IN (:keys) AND feeds.token > runs.asked_at || '/~'"""
SELECT_WAIT_COUNT = "SELECT count(*) FROM waits"
PUT_WAIT = build_insert("waits", "(context_id, call_id) DO NOTHING RETURNING call_id")
DELETE_WAIT = "DELETE FROM waits WHERE context_id = :context_id AND call_id = :call_id"


class WaitTables:
    """The methods of :class:`perdure.ports.surfaces.Waits`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _read_clock(self) -> str: ...

    async def list_waits(
        self,
        *,
        agent: str | None = None,
        kind: PendingKind | None = None,
        by_expiry: bool = False,
        after: WaitCursor | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """See :class:`perdure.ports.surfaces.Waits`."""
        order = "expires_at" if by_expiry else "created_at"
        conditions = ["expires_at IS NOT NULL" if by_expiry else "true"]
        values: dict[str, Any] = {"limit": limit}
        for name, value in (("agent", agent), ("kind", kind)):
            if value is not None:
                conditions.append(f"{name} = :{name}")
                values[name] = value
        if after is not None:
            conditions.append(f"({order}, waits.context_id, call_id) > (:at, :context_id, :call_id)")
            values |= after._asdict()
        sql = SELECT_WAITS.format(conditions=" AND ".join(conditions), order=order)
        rows = await self._select_rows(sql, **values)
        return [replace(WaitRow(*row[:-1]), body=None if row[-1] is None else as_bytes(row[-1])) for row in rows]

    async def list_run_waits(self, context_ids: Sequence[str], *, limit: int = 1000) -> dict[str, RunWaits]:
        """See :class:`perdure.ports.surfaces.Waits`."""
        unique = list(dict.fromkeys(context_ids))
        found: dict[str, list[WaitRow]] = {context_id: [] for context_id in unique}
        at_work: set[str] = set()
        for start in range(0, len(unique), MAX_KEYS):
            statement, keys = bind_keys(SELECT_RUN_WAITS, unique[start : start + MAX_KEYS])
            for context_id, *row in await self._select_rows(statement, **keys, limit=limit):
                found[context_id].append(WaitRow(*row))
            statement, keys = bind_keys(SELECT_RUNS_AT_WORK, unique[start : start + MAX_KEYS])
            at_work |= {row[0] for row in await self._select_rows(statement, **keys)}
        return {
            context_id: RunWaits(tuple(rows), is_at_work=context_id in at_work) for context_id, rows in found.items()
        }

    async def count_waits(self, *, agent: str | None = None) -> int:
        """See :class:`perdure.ports.surfaces.Waits`."""
        if agent is None:
            rows = await self._select_rows(SELECT_WAIT_COUNT)
        else:
            rows = await self._select_rows(f"{SELECT_WAIT_COUNT} WHERE agent = :agent", agent=agent)
        return int(rows[0][0]) if rows else 0

    async def put_wait(self, row: WaitRow) -> None:
        """See :class:`perdure.ports.surfaces.Waits`."""
        values = {name: value for name, value in asdict(row).items() if name != "body"}
        await self._change_rows(PUT_WAIT, **values, seq=0)

    async def remove_wait(self, context_id: str, call_id: str, hash: str | None = None) -> None:
        """See :class:`perdure.ports.surfaces.Waits`."""
        row = {"context_id": context_id, "call_id": call_id}
        if hash is None:
            await self._change_rows(DELETE_WAIT, **row)
        else:
            await self._change_rows(f"{DELETE_WAIT} AND hash = :hash", **row, hash=hash)
