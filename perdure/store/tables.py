"""All tables of a store in a database: what both adapters inherit."""

from __future__ import annotations

from .audit import AuditTables
from .bulk_actions import BulkTables
from .decisions import DecisionTables
from .encrypted_bodies import EncryptedBodyTables
from .failures import FailureTables
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
    FailureTables,
    DecisionTables,
    OutboxTables,
    WebhookTables,
    BulkTables,
    AuditTables,
    IdempotencyTables,
    EncryptedBodyTables,
    TokenTables,
    GrantTables,
    UsageTables,
    SqlRetention,
):
    """The methods of :class:`perdure.ports.store.Store` that need one statement of both databases, or few.

    An adapter adds how statements are run, and the methods that write what a call has done.
    """
