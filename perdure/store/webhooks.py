"""Reads and changes the tables of webhooks. Every statement is one of both databases, as in ``waits.py``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.webhooks import DeliveryRow, DeliveryState, RowCursor, WebhookRow
from .schema import TABLES, build_insert

WEBHOOK_COLUMNS, DELIVERY_COLUMNS = ", ".join(TABLES["webhooks"]), ", ".join(TABLES["webhook_deliveries"])
INSERT_WEBHOOK = build_insert("webhooks", "(id) DO NOTHING RETURNING id")
_CHANGES = ", ".join(f"{name} = :{name}" for name in TABLES["webhooks"] if name not in ("id", "created_at"))
UPDATE_WEBHOOK = f"UPDATE webhooks SET {_CHANGES} WHERE id = :id AND updated_at = :before RETURNING id"  # noqa: S608  # names of the schema
SELECT_WEBHOOKS = f"""
    SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE {{conditions}} ORDER BY created_at, id LIMIT :limit"""  # noqa: S608  # names of the schema
SELECT_WEBHOOK = f"SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE id = :id"  # noqa: S608  # names of the schema
DELETE_WEBHOOK = "DELETE FROM webhooks WHERE id = :id RETURNING id"
DELETE_DELIVERIES_OF = "DELETE FROM webhook_deliveries WHERE webhook_id = :id"
DISABLE_WEBHOOK = """
    UPDATE webhooks SET enabled = 0, disabled_reason = :reason, updated_at = :now WHERE id = :id AND enabled = 1
    RETURNING id"""
NOTE_FAILURE = """
    UPDATE webhooks SET failing_since = coalesce(failing_since, :now) WHERE id = :id RETURNING failing_since"""
NOTE_SUCCESS = "UPDATE webhooks SET failing_since = NULL WHERE id = :id AND failing_since IS NOT NULL"
SELECT_FAILING = "SELECT failing_since FROM webhooks WHERE id = :id"
INSERT_DELIVERY = build_insert("webhook_deliveries")
SELECT_DELIVERY = f"SELECT {DELIVERY_COLUMNS} FROM webhook_deliveries WHERE id = :id"  # noqa: S608  # names of the schema
SELECT_DELIVERIES = f"""
    SELECT {DELIVERY_COLUMNS} FROM webhook_deliveries WHERE {{conditions}}
    ORDER BY created_at DESC, id DESC LIMIT :limit"""  # noqa: S608  # names of the schema
IS_LATEST = """
    NOT EXISTS (
        SELECT 1 FROM webhook_deliveries AS later WHERE later.message_id = webhook_deliveries.message_id
            AND (later.created_at, later.id) > (webhook_deliveries.created_at, webhook_deliveries.id)
    )"""
IN_STATE: dict[DeliveryState, str] = {
    "delivered": "outcome = 'succeeded'",
    "retrying": "outcome <> 'succeeded' AND next_at IS NOT NULL",
    "failed": "outcome <> 'succeeded' AND next_at IS NULL",
}
DELETE_OLD_DELIVERIES = """
    DELETE FROM webhook_deliveries
    WHERE id IN (SELECT id FROM webhook_deliveries WHERE created_at < :before ORDER BY created_at LIMIT :limit)
    RETURNING id"""
SELECT_OUTBOX_TARGET = "SELECT 1 FROM outbox WHERE target = :target LIMIT 1"


class WebhookTables:
    """The methods of :class:`perdure.ports.webhooks.Webhooks`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]:
        """Return the rows of a statement that reads."""

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]:
        """Run a statement that writes, in a transaction of its own, and return its rows."""

    async def create_webhook(self, row: WebhookRow) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return bool(await self._change_rows(INSERT_WEBHOOK, **_encode_webhook(row)))

    async def update_webhook(self, row: WebhookRow, before: str) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        values = _encode_webhook(row)
        del values["created_at"]
        return bool(await self._change_rows(UPDATE_WEBHOOK, **values, before=before))

    async def get_webhook(self, id: str) -> WebhookRow | None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._select_rows(SELECT_WEBHOOK, id=id)
        return _decode_webhook(rows[0]) if rows else None

    async def list_webhooks(
        self, *, enabled: bool | None = None, after: RowCursor | None = None, limit: int = 100
    ) -> list[WebhookRow]:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        conditions, values = ["id IS NOT NULL"], dict[str, Any](limit=limit)
        if enabled is not None:
            conditions.append(f"enabled = {int(enabled)}")
        if after is not None:
            conditions.append("(created_at, id) > (:last_at, :last_id)")
            values |= {"last_at": after[0], "last_id": after[1]}
        rows = await self._select_rows(SELECT_WEBHOOKS.format(conditions=" AND ".join(conditions)), **values)
        return [_decode_webhook(row) for row in rows]

    async def delete_webhook(self, id: str) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        deleted = bool(await self._change_rows(DELETE_WEBHOOK, id=id))
        await self._change_rows(DELETE_DELIVERIES_OF, id=id)
        return deleted

    async def disable_webhook(self, id: str, reason: str, now: str) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return bool(await self._change_rows(DISABLE_WEBHOOK, id=id, reason=reason, now=now))

    async def note_webhook_failure(self, id: str, now: str) -> str | None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._change_rows(NOTE_FAILURE, id=id, now=now)
        return str(rows[0][0]) if rows else None

    async def note_webhook_success(self, id: str) -> None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._select_rows(SELECT_FAILING, id=id)  # nearly always NULL, and to read is cheaper
        if rows and rows[0][0] is not None:
            await self._change_rows(NOTE_SUCCESS, id=id)

    async def record_delivery(self, row: DeliveryRow) -> None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        await self._change_rows(INSERT_DELIVERY, **asdict(row))

    async def get_delivery(self, id: str) -> DeliveryRow | None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._select_rows(SELECT_DELIVERY, id=id)
        return DeliveryRow(*rows[0]) if rows else None

    async def list_deliveries(
        self,
        webhook_id: str,
        *,
        message_id: str | None = None,
        latest: bool = False,
        state: DeliveryState | None = None,
        after: RowCursor | None = None,
        limit: int = 100,
    ) -> list[DeliveryRow]:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        conditions, values = ["webhook_id = :webhook_id"], dict[str, Any](webhook_id=webhook_id, limit=limit)
        conditions += [IS_LATEST] if latest else []
        conditions += [IN_STATE[state]] if state is not None else []
        if message_id is not None:
            conditions.append("message_id = :message_id")
            values["message_id"] = message_id
        if after is not None:
            conditions.append("(created_at, id) < (:last_at, :last_id)")
            values |= {"last_at": after[0], "last_id": after[1]}
        rows = await self._select_rows(SELECT_DELIVERIES.format(conditions=" AND ".join(conditions)), **values)
        return [DeliveryRow(*row) for row in rows]

    async def delete_old_deliveries(self, before: str, limit: int = 1000) -> int:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return len(await self._change_rows(DELETE_OLD_DELIVERIES, before=before, limit=limit))

    async def find_outbox_targets(self, targets: Sequence[str]) -> set[str]:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return {target for target in targets if await self._select_rows(SELECT_OUTBOX_TARGET, target=target)}


def _encode_webhook(row: WebhookRow) -> dict[str, Any]:
    return asdict(row) | {"enabled": int(row.enabled)}


def _decode_webhook(values: Sequence[Any]) -> WebhookRow:
    named = dict(zip(TABLES["webhooks"], values, strict=True))
    return WebhookRow(**named | {"enabled": bool(named["enabled"])})
