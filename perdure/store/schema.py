"""The columns of the store's tables, and what runs its statements (``statements.py``).

The driver runs them: SQLAlchemy costs about 25 µs of CPU more for each, and they run in every iteration. It is used for
migrations only.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from .statements import Statement

TABLES = {
    "meta": ("id", "store_id", "created_at", "usable_from"),
    "nodes": ("hash", "parent", "body", "key_id", "used_on"),
    "blobs": ("hash", "body", "key_id", "used_on"),
    "journal": ("key", "kind", "owner", "starts", "outcome", "claimed_at", "done_at", "key_id", "context_id"),
    "runs": (
        *("context_id", "agent", "scope", "head", "status", "iterations", "result", "asked_at"),
        *("created_at", "updated_at", "tenant", "user_id", "key_id", "first_message", "error_type", "error"),
    ),
    "turns": ("context_id", "task_id", "status", "head", "result", "asked_at", "created_at", "updated_at", "key_id"),
    "sent": ("context_id", "message_id", "task_id"),
    "memory": ("namespace", "key", "value", "updated_at", "key_id"),
    "events": ("context_id", "seq", "task_id", "type", "key", "body", "spans", "child", "key_id"),
    "feeds": ("context_id", "seq", "token", "open", "first_delta", "root", "path", "failing"),
    "usage": (  # in the order of the fields of UsageRow
        *("context_id", "agent", "purpose", "provider", "model", "status", "requests", "input_tokens", "output_tokens"),
        *("cached_tokens", "cache_write_tokens", "reasoning_tokens", "cost_usd", "milliseconds", "task_id", "root"),
        *("tenant", "user_id", "key", "created_at"),
    ),
    "agents": ("hash", "name", "body", "created_at", "seen_at"),
    "waits": (
        *("context_id", "call_id", "root", "seq", "kind", "agent", "tool", "hash", "created_at", "expires_at"),
        *("summary", "amount"),
    ),
    "failing_calls": (  # in the order of the fields of FailingCall
        *("context_id", "call", "root", "agent", "tenant", "user_id", "kind", "source", "error_type", "error"),
        *("status", "attempts", "since", "last_at", "next_at", "held_up_at"),
    ),
    "failed_attempts": (
        *("key", "hour", "agent", "tenant", "user_id", "kind", "source", "status", "error_type", "attempts", "ended"),
    ),
    "outbox": ("stream", "seq", "target", "context_id", "type", "created_at", "taken", "owner", "leased_until"),
    "audit": (
        "id",
        "at",
        "by",
        "auth",
        "origin",
        "subject",
        "verb",
        "call_id",
        "detail",
        "refused",
        "count",
        "last_at",
        "agent",
        "tenant",
        "user_id",
    ),
    "idempotency": ("key", "request_hash", "owner", "leased_until", "answer", "created_at", "expires_at"),
    "decisions": (  # in the order of the fields of DecisionRow
        *("id", "context_id", "call_id", "hash", "agent", "tool", "tenant", "user_id", "by", "auth", "origin", "body"),
        *("created_at", "due_at", "owner", "leased_until", "attempts", "note", "answer"),
    ),
    "api_tokens": (  # in the order of the fields of TokenRow
        *("id", "hash", "name", "role", "created_at", "created_by", "tenants", "agents", "sessions", "expires_at"),
        *("revoked_at", "last_used_at"),
    ),
    "console_logins": ("id", "hash", "token_id", "created_at", "expires_at"),  # in the order of the fields of LoginRow
    "grants": (  # in the order of the fields of GrantRow
        *("tenant", "user_id", "server", "version", "sealed", "key_id", "owner", "leased_until", "created_at"),
        *("created_by", "updated_at"),
    ),
    "sign_ins": ("id", "sealed", "expires_at"),  # in the order of the fields of SignInRow
    "webhooks": (  # in the order of the fields of WebhookRow
        *("id", "url", "events", "agent", "tenant", "session", "enabled", "disabled_reason", "failing_since"),
        *("secrets", "key_id", "created_by", "created_at", "updated_at", "allowed"),
    ),
    "webhook_deliveries": (  # in the order of the fields of DeliveryRow
        *("id", "webhook_id", "message_id", "type", "stream", "seq", "context_id", "url", "attempt", "outcome"),
        *("status", "error", "answer", "milliseconds", "next_at", "created_at"),
    ),
    "bulk_actions": (  # in the order of the fields of BulkRow
        *("id", "verb", "filter", "tenant", "user_id", "by", "auth", "origin", "total", "per_second", "concurrency"),
        *("state", "created_at", "ended_at", "stopped_by"),
    ),
    "bulk_runs": (
        *("bulk_id", "context_id", "position", "execution", "agent", "tenant", "user_id", "outcome", "detail"),
        *("attempts", "done_at"),
    ),
    "node_references": ("target", "node"),
    "run_references": ("target", "context_id"),
    "deleted_runs": ("context_id", "deleted_at"),
}
"""The tables and columns of the newest schema, which ``migrations/`` creates and describes."""

SQLITE_TABLES = {"nudges": ("run_id", "nudged_at")}
"""Tables of a SQLite file alone, which are not copied: PostgreSQL has NOTIFY."""


class Rows(Protocol):
    """The result of a statement: a driver's cursor."""

    @property
    def rowcount(self) -> int:
        """Number of rows written."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, None after the last."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""
        ...


class Database(Protocol):
    """A connection in a transaction."""

    def run(self, statement: Statement | str, /, **values: Any) -> Rows:
        """Execute ``statement`` with the values of its parameters."""
        ...


class Tables(ABC):
    """What the methods for a table, which both databases share, run their statements with."""

    _now: Callable[[], str]

    @abstractmethod
    async def _select_rows(self, statement: Statement | str, **values: Any) -> list[Sequence[Any]]:
        """Return the rows of a statement that reads."""

    @abstractmethod
    async def _change_rows(self, statement: Statement, **values: Any) -> list[Sequence[Any]]:
        """Run a statement that writes, in a transaction of its own, and return its rows."""

    async def _read_clock(self) -> str:
        """Return the time that all processes of the store agree on: leases are compared with it. Processes of one
        machine have one clock."""
        return self._now()


MAX_KEYS = 512
"""Keys in one statement; SQLite takes 32,766 parameters."""


def split_keys(keys: Iterable[str], size: int = MAX_KEYS) -> Iterator[list[str]]:
    """Yield the keys, each once, in lists that one statement takes."""
    unique = list(dict.fromkeys(keys))
    for start in range(0, len(unique), size):
        yield unique[start : start + size]


def run_for_keys(database: Database, statement: Statement, keys: Iterable[str], **values: Any) -> Iterator[Any]:
    """Yield the rows of ``statement``, whose ``:keys`` are any number of keys."""
    for some in split_keys(keys):
        yield from database.run(statement, keys=some, **values)


def encode_sessions(sessions: Iterable[str] | None) -> str | None:
    """Return the ids of sessions as statements read them: an object with them as its keys. None stands for all."""
    # No run has an id with NUL; neither database reads it from JSON: SQLite ends the text there, which is another id.
    return None if sessions is None else json.dumps({name: 1 for name in sessions if "\0" not in name})


MAX_KEY_BYTES = 500
"""A longer key of an event, or id of a message, is stored by its hash: an entry of an index of PostgreSQL takes up to
2,700 bytes."""


def shorten_key(key: str | None) -> str | None:
    """Return the key, or its hash if it is too long for an index."""
    if key is None or len(key) * 4 <= MAX_KEY_BYTES:
        return key
    encoded = key.encode(errors="surrogatepass")
    if len(encoded) <= MAX_KEY_BYTES:
        return key
    return f"sha256/{hashlib.sha256(encoded).hexdigest()}"


def as_bytes(value: Any) -> bytes:
    """Return ``value`` as bytes: SQLite has a type per value, so bytes that were altered by hand may come back as
    text."""
    return value.encode() if isinstance(value, str) else bytes(value)
