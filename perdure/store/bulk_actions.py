"""Reads and changes the tables of bulk actions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..ports.bulk_actions import BulkOutcome, BulkRow, BulkRunRow, BulkState
from ..ports.webhooks import RowCursor
from .retention import Query, SqlRetention, Step
from .schema import TABLES, Tables, split_keys
from .statements import load_statements

SQL = load_statements("bulk_actions")

_INSERTED_RUNS = 500
"""Runs of one statement."""
_DELETED_BULKS = 50
"""Bulk actions that are deleted in one transaction."""


def _create_bulk(values: dict[str, Any], runs: Sequence[BulkRunRow]) -> Step[None]:
    """Insert a bulk action with all of its runs, or neither: the same request may come twice at once."""
    if not (yield Query(SQL.insert_bulk, values)):
        return
    for start in range(0, len(runs), _INSERTED_RUNS):
        some = {run.context_id: asdict(run) for run in runs[start : start + _INSERTED_RUNS]}
        yield Query(SQL.insert_bulk_runs, {"bulk_id": values["id"], "rows": json.dumps(some)})


class BulkTables(Tables, SqlRetention):
    """The methods of :class:`perdure.ports.bulk_actions.BulkActions`, for a store in a database."""

    async def create_bulk(self, row: BulkRow, runs: Sequence[BulkRunRow]) -> None:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        values = asdict(row) | {"created_at": await self._read_clock()}
        values["user_id"] = values.pop("user")
        await self._run_step(lambda: _create_bulk(values, runs), write=True)

    async def get_bulk(self, id: str) -> BulkRow | None:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        rows = await self._select_rows(SQL.get_bulk, id=id)
        return _decode_bulk(rows[0]) if rows else None

    async def list_bulks(self, *, after: RowCursor | None = None, limit: int = 100) -> list[BulkRow]:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        last_at, last_id = after or (None, None)
        rows = await self._select_rows(SQL.list_bulks, last_at=last_at, last_id=last_id, limit=limit)
        return [_decode_bulk(row) for row in rows]

    async def end_bulk(self, id: str, state: BulkState, by: str | None = None) -> bool:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        return bool(await self._change_rows(SQL.end_bulk, id=id, state=state, by=by, now=await self._read_clock()))

    async def list_bulk_runs(
        self, id: str, *, outcome: BulkOutcome | None = None, after: int = -1, limit: int = 100
    ) -> list[BulkRunRow]:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        values = {"outcome": outcome, "after": after, "limit": limit}
        rows = await self._select_rows(SQL.list_bulk_runs, bulk_id=id, **values)
        return [BulkRunRow(*row) for row in rows]

    async def count_bulk_runs(self, ids: Sequence[str]) -> Mapping[str, Mapping[BulkOutcome, int]]:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        counts: dict[str, dict[BulkOutcome, int]] = {name: {} for name in ids}
        for keys in split_keys(ids):
            for name, outcome, number in await self._select_rows(SQL.count_bulk_runs, keys=keys):
                counts[name][outcome] = number
        return counts

    async def begin_bulk_run(self, id: str, context_id: str) -> int | None:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        rows = await self._change_rows(SQL.begin_bulk_run, bulk_id=id, context_id=context_id)
        return int(rows[0][0]) if rows else None

    async def settle_bulk_run(self, id: str, context_id: str, outcome: BulkOutcome, detail: str | None = None) -> bool:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        names, now = {"bulk_id": id, "context_id": context_id}, await self._read_clock()
        return bool(await self._change_rows(SQL.settle_bulk_run, **names, outcome=outcome, detail=detail, now=now))

    async def delete_old_bulks(self, before: str) -> int:
        """See :class:`perdure.ports.bulk_actions.BulkActions`."""
        deleted = 0
        while rows := await self._select_rows(SQL.find_old_bulks, before=before, limit=_DELETED_BULKS):
            keys = [name for (name,) in rows]
            await self._change_rows(SQL.delete_bulk_runs_of, keys=keys)
            deleted += len(await self._change_rows(SQL.delete_bulks, keys=keys))
        return deleted


def _decode_bulk(row: Sequence[Any]) -> BulkRow:
    values = dict(zip(TABLES["bulk_actions"], row, strict=True))
    values["user"] = values.pop("user_id")
    return BulkRow(**values)
