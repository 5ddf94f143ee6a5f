"""Subscriptions of webhooks, and the log of their deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

WEBHOOK_TARGET = "perdure.webhooks"
"""Target of the outbox rows that workers deliver. ``PERDURE_OUTBOX`` cannot name it: its rows are conditional."""
WEBHOOK_EVENT_TYPES = frozenset(
    {
        *("approval.requested", "approval.reminded", "approval.decided", "approval.revoked"),
        *("question.asked", "question.answered", "run", "turn"),
    }
)
"""Types of the events that webhooks deliver, as in the event log."""


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """A subscription. Its texts are stored as they are; ``client.webhook_subscriptions`` gives them their meaning."""

    id: str
    url: str
    events: str
    """Patterns of types, separated by spaces."""
    agent: str | None
    tenant: str | None
    session: str | None
    enabled: bool
    disabled_reason: str | None
    failing_since: str | None
    """When the first delivery failed after the last that succeeded; None if the last one succeeded."""
    secrets: str
    """JSON: the secrets, each with the time until which it signs, sealed where ``key_id`` is set."""
    key_id: str | None
    """Id of the key that the secrets are sealed with; None: in plain."""
    created_by: str
    created_at: str
    """ISO 8601, UTC, microseconds; so are the other times."""
    updated_at: str
    """Of the last change of anything but ``failing_since``."""
    allowed: str = ""
    """Hosts and networks, separated by commas, that the endpoint is in and may be although they are not public."""


DeliveryState = Literal["delivered", "retrying", "failed"]
"""What an attempt has left: ``retrying`` if another one is due, ``failed`` if none is."""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """An attempt to deliver an event."""

    id: str
    webhook_id: str
    message_id: str
    """Header ``webhook-id``: the same for each attempt, and when the event is sent again."""
    type: str
    stream: str
    """With ``seq``, the event; "" and 0 for a ``ping``."""
    seq: int
    context_id: str
    url: str
    attempt: int
    """From 1."""
    outcome: str
    """``succeeded``, ``failed``, ``gone`` (status 410) or ``stopped`` (not sent: the subscription was disabled)."""
    status: int | None
    """HTTP status of the answer; None without an answer."""
    error: str | None
    """Why it failed, for people."""
    answer: str | None
    """Beginning of the answer's body."""
    milliseconds: int
    next_at: str | None
    """When the next attempt is due; None for the last one."""
    created_at: str

    @property
    def state(self) -> DeliveryState:
        """What the attempt has left."""
        if self.outcome == "succeeded":
            return "delivered"
        return "failed" if self.next_at is None else "retrying"


RowCursor = tuple[str, str]
"""``created_at`` and ``id`` of the last row of a page."""


class Webhooks(Protocol):
    """Subscriptions and deliveries. All methods raise ``StoreError`` when the store fails."""

    async def create_webhook(self, row: WebhookRow) -> bool:
        """Add a subscription; False if one of its id exists."""

    async def update_webhook(self, row: WebhookRow, before: str) -> bool:
        """Replace the subscription whose ``updated_at`` is ``before``; False if it was changed or deleted meanwhile."""

    async def get_webhook(self, id: str) -> WebhookRow | None:
        """Return one subscription."""

    async def list_webhooks(
        self, *, enabled: bool | None = None, after: RowCursor | None = None, limit: int = 100
    ) -> list[WebhookRow]:
        """List subscriptions, the oldest first."""

    async def delete_webhook(self, id: str) -> bool:
        """Delete a subscription and its log; False if there is none."""

    async def disable_webhook(self, id: str, reason: str, now: str) -> bool:
        """Disable a subscription; False if it is disabled or deleted already."""

    async def note_webhook_failure(self, id: str, now: str) -> str | None:
        """Note that a delivery failed at ``now``, and return since when all have; None if there is no subscription."""

    async def note_webhook_success(self, id: str) -> None:
        """Note that a delivery succeeded."""

    async def record_delivery(self, row: DeliveryRow) -> None:
        """Add an attempt to the log."""

    async def get_delivery(self, id: str) -> DeliveryRow | None:
        """Return one attempt."""

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
        """List the attempts of a subscription, the newest first; with ``latest`` only the last one of each message."""

    async def delete_old_deliveries(self, before: str, limit: int = 1000) -> int:
        """Delete attempts from before that time; return how many."""

    async def find_outbox_targets(self, targets: Sequence[str]) -> set[str]:
        """Return those of ``targets`` that have rows in the outbox, also taken ones. A read, where to take is a
        write."""
