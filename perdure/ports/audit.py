"""The port of the audit trail: who has steered a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from ..types.messages import RUN_ID_CHARS, clean_text
from .webhooks import RowCursor

AUDIT_TEXT_CHARS = 500
"""Most characters of each text of an audit row, but for the id of its subject; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A request that steers a run or a schedule, recorded before it was sent."""

    id: str
    at: str
    """ISO 8601, UTC, microseconds."""
    by: str
    """Who asked for it, as the client was told."""
    auth: str
    """How that is known: ``os-user`` for the user of the operating system, ``given`` for a name that the program gave
    without a proof; a service writes its own, for instance ``token:<id>``."""
    origin: str
    """Where from: ``<host>/<process id>``, or the address of the caller of a service."""
    subject: str
    """Id of the run or schedule."""
    verb: str
    """``approve``, ``send``, ``schedule.pause`` …"""
    call_id: str | None = None
    detail: str | None = None
    """For people: what was asked for, without the contents of messages."""
    refused: str | None = None
    """The error that it was refused with, by class and message. None: it was accepted, or the process ended before it
    knew."""
    count: int = 1
    """How many refused requests it stands for; ``at``, ``call_id``, ``detail`` and ``origin`` are those of the first,
    ``refused`` is that of the last."""
    last_at: str | None = None
    """When the last of them was refused."""
    agent: str | None = None
    """Agent, tenant and user of the subject when the row was written: of a run those of the store's row, where there is
    one. They never change, whatever the id stands for later."""
    tenant: str | None = None
    user: str | None = None


def build_refusal_row(row: AuditRow) -> AuditRow:
    """Return the row that the refused request ``row`` is counted in: one for each day (UTC), caller, verb and subject.
    A caller that is refused again and again adds no rows."""
    shared = json.dumps([row.at[:10], row.by, row.auth, row.subject, row.verb, row.tenant])
    digest = hashlib.sha256(shared.encode()).hexdigest()[:32]
    return replace(row, id=f"refused-{digest}", last_at=row.at)


def cut_audit_row(row: AuditRow) -> AuditRow:
    """Return ``row`` with texts that can be stored."""
    limits = {"subject": RUN_ID_CHARS}  # it is looked for
    texts: dict[str, Any] = {
        name: clean_text(text)[: limits.get(name, AUDIT_TEXT_CHARS)]
        for name, text in asdict(row).items()
        if isinstance(text, str)
    }
    return replace(row, **texts)


class Audit(Protocol):
    """The audit trail. All methods raise ``StoreError`` when the store fails."""

    async def record_audit(self, row: AuditRow) -> None:
        """Record a request that is about to be sent; nothing if it is recorded."""

    async def record_refused_audit(self, row: AuditRow) -> None:
        """Count the request in the row of its caller's refusals (:func:`build_refusal_row`), and delete its own."""

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
        """List requests from the time ``since`` on and before ``until``, the newest first. ``after``: ``at`` and ``id``
        of the last row of the page before.

        ``verb`` is one verb, or with ``*`` at its end the beginning of some (``schedule.*``). ``tenants``: only rows of
        these tenants, which leaves out those without one.
        """
