"""Takes and deletes rows of the outbox; apart because its statements are in `outbox.sql`. Events write the rows."""

from __future__ import annotations

from collections.abc import Sequence

from ..ports.outbox import OutboxRow
from ..ports.times import add_seconds
from .schema import Tables
from .statements import load_statements

SQL = load_statements("outbox")


class OutboxTables(Tables):
    """The methods of :class:`perdure.ports.outbox.Outbox`, for a store in a database."""

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int = 100) -> list[OutboxRow]:
        """See :class:`perdure.ports.outbox.Outbox`."""
        now = await self._read_clock()
        rows = await self._change_rows(
            SQL.take_outbox,
            owner=owner,
            target=target,
            now=now,
            until=add_seconds(now, lease_seconds),
            limit=limit,
        )
        taken = [OutboxRow(*row) for row in rows]
        return sorted(taken, key=lambda row: (row.created_at, row.stream, row.seq))

    async def delete_outbox(self, owner: str, rows: Sequence[OutboxRow]) -> int:
        """See :class:`perdure.ports.outbox.Outbox`."""
        deleted = 0
        for row in rows:
            name = {"stream": row.stream, "seq": row.seq, "target": row.target}
            deleted += len(await self._change_rows(SQL.delete_outbox, **name, owner=owner))
        return deleted
