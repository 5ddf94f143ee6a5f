"""All tables of a store in a database: what both adapters inherit."""

from __future__ import annotations

from collections.abc import Callable

from ..ports.store import format_utc_now, timestamp
from .audit import AuditTables
from .decisions import DecisionTables
from .encrypted_bodies import EncryptedBodyTables
from .grants import GrantTables
from .idempotency import IdempotencyTables
from .outbox import OutboxTables
from .retention import SqlRetention
from .runs import ListTables
from .tokens import TokenTables
from .usage import UsageTables
from .waits import WaitTables
from .webhooks import WebhookTables


class StoreTables(
    ListTables,
    WaitTables,
    DecisionTables,
    OutboxTables,
    WebhookTables,
    AuditTables,
    IdempotencyTables,
    EncryptedBodyTables,
    TokenTables,
    GrantTables,
    UsageTables,
    SqlRetention,
):
    """The methods of :class:`perdure.ports.Store` that need one statement of both databases, or few.

    An adapter adds how statements are run, and the methods that write what a call has done.
    """

    _now: Callable[[], str]

    clock = ""
    """Reads the clock that leases are compared with; "" for this machine's: processes of a file are on one machine."""

    async def _read_clock(self) -> str:
        """Return the time that all processes of the store agree on: machines may differ by more than a lease."""
        rows = (
            await self._select_rows(self.clock) if self.clock and self._now is format_utc_now else []
        )  # else a test's
        return timestamp(rows[0][0]) if rows else self._now()
