"""Reads and changes the tables of webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.webhooks import DeliveryRow, DeliveryState, RowCursor, WebhookRow
from .schema import TABLES, Tables
from .statements import load_statements

SQL = load_statements("webhooks")


class WebhookTables(Tables):
    """The methods of :class:`perdure.ports.webhooks.Webhooks`, for a store in a database."""

    async def create_webhook(self, row: WebhookRow) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return bool(await self._change_rows(SQL.insert_webhook, **_encode_webhook(row)))

    async def update_webhook(self, row: WebhookRow, before: str) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        values = _encode_webhook(row)
        del values["created_at"]
        return bool(await self._change_rows(SQL.update_webhook, **values, before=before))

    async def get_webhook(self, id: str) -> WebhookRow | None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._select_rows(SQL.get_webhook, id=id)
        return _decode_webhook(rows[0]) if rows else None

    async def list_webhooks(
        self, *, enabled: bool | None = None, after: RowCursor | None = None, limit: int = 100
    ) -> list[WebhookRow]:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        last_at, last_id = after or (None, None)
        chosen = None if enabled is None else int(enabled)
        rows = await self._select_rows(SQL.list_webhooks, enabled=chosen, last_at=last_at, last_id=last_id, limit=limit)
        return [_decode_webhook(row) for row in rows]

    async def delete_webhook(self, id: str) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        deleted = bool(await self._change_rows(SQL.delete_webhook, id=id))
        await self._change_rows(SQL.delete_deliveries, id=id)
        return deleted

    async def disable_webhook(self, id: str, reason: str, now: str) -> bool:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return bool(await self._change_rows(SQL.disable_webhook, id=id, reason=reason, now=now))

    async def note_webhook_failure(self, id: str, now: str) -> str | None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._change_rows(SQL.note_failure, id=id, now=now)
        return str(rows[0][0]) if rows else None

    async def note_webhook_success(self, id: str) -> None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._select_rows(SQL.get_failing_since, id=id)  # nearly always NULL, and to read is cheaper
        if rows and rows[0][0] is not None:
            await self._change_rows(SQL.note_success, id=id)

    async def record_delivery(self, row: DeliveryRow) -> None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        await self._change_rows(SQL.insert_delivery, **asdict(row))

    async def get_delivery(self, id: str) -> DeliveryRow | None:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        rows = await self._select_rows(SQL.get_delivery, id=id)
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
        last_at, last_id = after or (None, None)
        rows = await self._select_rows(
            SQL.list_deliveries,
            webhook_id=webhook_id,
            message_id=message_id,
            latest=latest,
            state=state,
            last_at=last_at,
            last_id=last_id,
            limit=limit,
        )
        return [DeliveryRow(*row) for row in rows]

    async def delete_old_deliveries(self, before: str, limit: int = 1000) -> int:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return len(await self._change_rows(SQL.delete_old_deliveries, before=before, limit=limit))

    async def find_outbox_targets(self, targets: Sequence[str]) -> set[str]:
        """See :class:`perdure.ports.webhooks.Webhooks`."""
        return {target for target in targets if await self._select_rows(SQL.find_outbox_target, target=target)}


def _encode_webhook(row: WebhookRow) -> dict[str, Any]:
    return asdict(row) | {"enabled": int(row.enabled)}


def _decode_webhook(values: Sequence[Any]) -> WebhookRow:
    named = dict(zip(TABLES["webhooks"], values, strict=True))
    return WebhookRow(**named | {"enabled": bool(named["enabled"])})
