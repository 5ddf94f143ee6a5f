"""The tables of ``perdure.ports.webhooks`` in memory, for :class:`.store.MemoryStore`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from ..ports.outbox import OutboxRow
from ..ports.webhooks import DeliveryRow, DeliveryState, RowCursor, WebhookRow


class MemoryWebhooks:
    """The methods of :class:`perdure.ports.webhooks.Webhooks`. A test may access everything."""

    outbox: dict[tuple[str, int, str], tuple[OutboxRow, str, str]]

    def __init__(self) -> None:
        super().__init__()
        self.webhooks: dict[str, WebhookRow] = {}
        self.deliveries: dict[str, DeliveryRow] = {}

    @abstractmethod
    def _raise_failure(self) -> None: ...

    def has_enabled_webhook(self) -> bool:
        """Whether events get outbox rows for webhooks."""
        return any(row.enabled for row in self.webhooks.values())

    async def create_webhook(self, row: WebhookRow) -> bool:
        """Add a subscription."""
        self._raise_failure()
        return self.webhooks.setdefault(row.id, row) is row

    async def update_webhook(self, row: WebhookRow, before: str) -> bool:
        """Replace a subscription that has not changed since ``before``."""
        self._raise_failure()
        old = self.webhooks.get(row.id)
        if old is None or old.updated_at != before:
            return False
        self.webhooks[row.id] = replace(row, created_at=old.created_at)
        return True

    async def get_webhook(self, id: str) -> WebhookRow | None:
        """Return one subscription."""
        self._raise_failure()
        return self.webhooks.get(id)

    async def list_webhooks(
        self, *, enabled: bool | None = None, after: RowCursor | None = None, limit: int = 100
    ) -> list[WebhookRow]:
        """List subscriptions, the oldest first."""
        self._raise_failure()
        ordered = sorted(self.webhooks.values(), key=lambda row: (row.created_at, row.id))
        rows = [row for row in ordered if enabled in (None, row.enabled)]
        return [row for row in rows if after is None or (row.created_at, row.id) > after][:limit]

    async def delete_webhook(self, id: str) -> bool:
        """Delete a subscription and its log."""
        self._raise_failure()
        self.deliveries = {name: row for name, row in self.deliveries.items() if row.webhook_id != id}
        return self.webhooks.pop(id, None) is not None

    async def disable_webhook(self, id: str, reason: str, now: str) -> bool:
        """Disable a subscription."""
        self._raise_failure()
        row = self.webhooks.get(id)
        if row is None or not row.enabled:
            return False
        self.webhooks[id] = replace(row, enabled=False, disabled_reason=reason, updated_at=now)
        return True

    async def note_webhook_failure(self, id: str, now: str) -> str | None:
        """Note that a delivery failed."""
        self._raise_failure()
        if id not in self.webhooks:
            return None
        row = self.webhooks[id]
        self.webhooks[id] = replace(row, failing_since=row.failing_since or now)
        return self.webhooks[id].failing_since

    async def note_webhook_success(self, id: str) -> None:
        """Note that a delivery succeeded."""
        self._raise_failure()
        if id in self.webhooks:
            self.webhooks[id] = replace(self.webhooks[id], failing_since=None)

    async def record_delivery(self, row: DeliveryRow) -> None:
        """Add an attempt to the log."""
        self._raise_failure()
        self.deliveries.setdefault(row.id, row)

    async def get_delivery(self, id: str) -> DeliveryRow | None:
        """Return one attempt."""
        self._raise_failure()
        return self.deliveries.get(id)

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
        """List the attempts of a subscription, the newest first."""
        self._raise_failure()
        rows = [row for row in self.deliveries.values() if row.webhook_id == webhook_id]
        newest = sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)
        last = {row.message_id: row.id for row in reversed(newest)}
        return [
            row
            for row in newest
            if message_id in (None, row.message_id)
            and (not latest or last[row.message_id] == row.id)
            and state in (None, row.state)
            and (after is None or (row.created_at, row.id) < after)
        ][:limit]

    async def delete_old_deliveries(self, before: str, limit: int = 1000) -> int:
        """Delete attempts from before that time."""
        self._raise_failure()
        old = sorted((row.created_at, row.id) for row in self.deliveries.values() if row.created_at < before)[:limit]
        for _, name in old:
            del self.deliveries[name]
        return len(old)

    async def find_outbox_targets(self, targets: Sequence[str]) -> set[str]:
        """Return those that have rows in the outbox."""
        self._raise_failure()
        return {row.target for row, _, _ in self.outbox.values()} & set(targets)
