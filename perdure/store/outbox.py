"""Takes and deletes rows of the outbox. They are written with their events, in ``event_log.py``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ..ports.surfaces import OutboxRow, add_seconds

OUTBOX_COLUMNS = "stream, seq, target, context_id, type, created_at, taken"
# Rows that another deliverer is about to take are left out on PostgreSQL; on SQLite there is one writer at a time.
# In WITH: a plan may run a subquery again for each row, and would take more than the limit.
TAKE_OUTBOX = f"""
    WITH free AS (
        SELECT stream, seq, target FROM outbox WHERE target = :target AND leased_until <= :now
        ORDER BY created_at, stream, seq LIMIT :limit {{skip_locked}}
    )
    UPDATE outbox SET owner = :owner, leased_until = :until, taken = taken + 1
    WHERE (stream, seq, target) IN (SELECT stream, seq, target FROM free)
    RETURNING {OUTBOX_COLUMNS}"""  # noqa: S608  # a constant
DELETE_OUTBOX = """
    DELETE FROM outbox WHERE stream = :stream AND seq = :seq AND target = :target AND owner = :owner RETURNING seq"""


class OutboxTables:
    """The methods of :class:`perdure.ports.surfaces.Outbox`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _read_clock(self) -> str: ...

    skip_locked = ""

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int = 100) -> list[OutboxRow]:
        """See :class:`perdure.ports.surfaces.Outbox`."""
        now = await self._read_clock()
        rows = await self._change_rows(
            TAKE_OUTBOX.format(skip_locked=self.skip_locked),
            owner=owner,
            target=target,
            now=now,
            until=add_seconds(now, lease_seconds),
            limit=limit,
        )
        taken = [OutboxRow(*row) for row in rows]
        return sorted(taken, key=lambda row: (row.created_at, row.stream, row.seq))

    async def delete_outbox(self, owner: str, rows: Sequence[OutboxRow]) -> int:
        """See :class:`perdure.ports.surfaces.Outbox`."""
        deleted = 0
        for row in rows:
            name = {"stream": row.stream, "seq": row.seq, "target": row.target}
            deleted += len(await self._change_rows(DELETE_OUTBOX, **name, owner=owner))
        return deleted
