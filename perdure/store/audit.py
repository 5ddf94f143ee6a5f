"""Records and lists the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.audit import AuditRow, build_refusal_row, cut_audit_row
from ..ports.webhooks import RowCursor
from .schema import Tables
from .statements import load_statements

SQL = load_statements("audit")


class AuditTables(Tables):
    """The methods of :class:`perdure.ports.audit.Audit`, for a store in a database."""

    async def record_audit(self, row: AuditRow) -> None:
        """See :class:`perdure.ports.audit.Audit`."""
        await self._change_rows(SQL.record_audit, **_get_audit_values(row))

    async def record_refused_audit(self, row: AuditRow) -> None:
        """See :class:`perdure.ports.audit.Audit`."""
        await self._change_rows(SQL.count_refused, **_get_audit_values(build_refusal_row(row)))
        await self._change_rows(SQL.delete_audit, id=row.id)

    async def list_audit(
        self,
        *,
        subject: str | None = None,
        by: str | None = None,
        verb: str | None = None,
        since: str = "",
        until: str = "",
        refused: bool = False,
        tenants: Sequence[str] | None = None,
        after: RowCursor | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        """See :class:`perdure.ports.audit.Audit`."""
        prefix = verb[:-1] if verb is not None and verb.endswith("*") else None
        last_at, last_id = after or (None, None)
        rows = await self._select_rows(
            SQL.list_audit,
            subject=subject,
            by=by,
            verb=verb if prefix is None else None,
            prefix=prefix,
            since=since,
            until=until or None,
            refused=refused,
            tenants=tenants,
            last_at=last_at,
            last_id=last_id,
            limit=limit,
        )
        return [AuditRow(*row) for row in rows]


def _get_audit_values(row: AuditRow) -> dict[str, Any]:
    values = asdict(cut_audit_row(row))
    return values | {"user_id": values.pop("user")}
