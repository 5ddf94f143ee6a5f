"""Records and lists the audit trail."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.surfaces import AuditRow, build_refusal_row, cut_audit_row
from ..ports.webhooks import RowCursor
from .schema import TABLES, build_in


def _build_audit_insert(on_conflict: str) -> str:
    """Build the INSERT of a row of the audit trail, with the labels of its subject's run, where the store has that."""
    values = [
        f"coalesce((SELECT {column} FROM runs WHERE context_id = :subject), :{column})"  # noqa: S608  # a constant
        if column in ("agent", "tenant", "user_id")
        else f":{column}"
        for column in TABLES["audit"]
    ]
    columns = ", ".join(TABLES["audit"])
    return f"INSERT INTO audit ({columns}) VALUES ({', '.join(values)}) ON CONFLICT {on_conflict}"  # noqa: S608  # constants


INSERT_AUDIT = _build_audit_insert("DO NOTHING")
COUNT_REFUSED = _build_audit_insert(
    "(id) DO UPDATE SET refused = excluded.refused, count = audit.count + 1, last_at = excluded.last_at"
)
DELETE_AUDIT = "DELETE FROM audit WHERE id = :id RETURNING id"
SELECT_AUDIT = (
    f"SELECT {', '.join(TABLES['audit'])} FROM audit WHERE {{conditions}} ORDER BY at DESC, id DESC LIMIT :limit"  # noqa: S608  # constants
)


class AuditTables:
    """The methods of :class:`perdure.ports.surfaces.Audit`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _read_clock(self) -> str: ...

    async def record_audit(self, row: AuditRow) -> None:
        """See :class:`perdure.ports.surfaces.Audit`."""
        await self._change_rows(INSERT_AUDIT, **_get_audit_values(row))

    async def record_refused_audit(self, row: AuditRow) -> None:
        """See :class:`perdure.ports.surfaces.Audit`."""
        await self._change_rows(COUNT_REFUSED, **_get_audit_values(build_refusal_row(row)))
        await self._change_rows(DELETE_AUDIT, id=row.id)

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
        """See :class:`perdure.ports.surfaces.Audit`."""
        conditions, values = ["at >= :since"], dict[str, Any](since=since, limit=limit)
        prefix = verb[:-1] if verb is not None and verb.endswith("*") else None
        for condition, name, value in (
            ("subject = :subject", "subject", subject),
            ("by = :by", "by", by),
            ("verb = :verb", "verb", verb if prefix is None else None),
            (f"substr(verb, 1, {len(prefix or '')}) = :prefix", "prefix", prefix),
            ("at < :until", "until", until or None),
        ):
            if value is not None:
                conditions.append(condition)
                values[name] = value
        if refused:
            conditions.append("refused IS NOT NULL")
        if tenants is not None:
            own, names = build_in("tenant", "tenant", tenants)
            conditions.append(own)
            values |= names
        if after is not None:
            conditions.append("(at, id) < (:last_at, :last_id)")
            values |= {"last_at": after[0], "last_id": after[1]}
        rows = await self._select_rows(SELECT_AUDIT.format(conditions=" AND ".join(conditions)), **values)
        return [AuditRow(*row) for row in rows]


def _get_audit_values(row: AuditRow) -> dict[str, Any]:
    values = asdict(cut_audit_row(row))
    return values | {"user_id": values.pop("user")}
