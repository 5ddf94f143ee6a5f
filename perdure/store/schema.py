"""The columns of the store's tables, and what its SQL needs: statements that SQLite and PostgreSQL both take.

Parameters are named (``:name``), and the driver runs the statements: SQLAlchemy costs about 25 µs of CPU more for each,
and they run in every iteration. It is used for migrations only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

TABLES = {
    "meta": ("id", "store_id", "created_at", "usable_from"),
    "nodes": ("hash", "parent", "body", "key_id", "used_on"),
    "blobs": ("hash", "body", "key_id", "used_on"),
    "journal": ("key", "kind", "owner", "starts", "outcome", "claimed_at", "done_at", "key_id", "context_id"),
    "runs": (
        *("context_id", "agent", "scope", "head", "status", "iterations", "result", "asked_at"),
        *("created_at", "updated_at", "tenant", "user_id", "key_id"),
    ),
    "turns": ("context_id", "task_id", "status", "head", "result", "asked_at", "created_at", "updated_at", "key_id"),
    "sent": ("context_id", "message_id", "task_id"),
    "memory": ("namespace", "key", "value", "updated_at", "key_id"),
    "events": ("context_id", "seq", "task_id", "type", "key", "body", "spans", "child", "key_id"),
    "feeds": ("context_id", "seq", "token", "open", "first_delta", "root", "path"),
    "usage": (  # in the order of the fields of UsageRow
        *("context_id", "agent", "purpose", "provider", "model", "status", "requests", "input_tokens", "output_tokens"),
        *("cached_tokens", "cache_write_tokens", "reasoning_tokens", "cost_usd", "milliseconds", "task_id", "root"),
        *("tenant", "user_id", "key", "created_at"),
    ),
    "agents": ("hash", "name", "body", "created_at", "seen_at"),
    "waits": ("context_id", "call_id", "root", "seq", "kind", "agent", "tool", "hash", "created_at", "expires_at"),
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
        *("secrets", "key_id", "created_by", "created_at", "updated_at"),
    ),
    "webhook_deliveries": (  # in the order of the fields of DeliveryRow
        *("id", "webhook_id", "message_id", "type", "stream", "seq", "context_id", "url", "attempt", "outcome"),
        *("status", "error", "answer", "milliseconds", "next_at", "created_at"),
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

    def run(self, sql: str, /, **values: Any) -> Rows:
        """Execute ``sql`` with the values of its parameters."""
        ...


MAX_KEYS = 512
"""Keys in one statement; SQLite takes 32,766 parameters, PostgreSQL 32,767."""


def bind_keys(sql: str, keys: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return ``sql`` with parameters for at most ``MAX_KEYS`` keys in the place of ``:keys``, and their values.

    They are padded to a power of two, so that few statements are prepared. Without keys one is bound that matches no
    row.
    """
    count = 1 << max(len(keys) - 1, 0).bit_length()
    padded = [*keys, *[keys[-1] if keys else ""] * (count - len(keys))]
    values = {f"k{index}": key for index, key in enumerate(padded)}
    return sql.replace(":keys", ", ".join(f":{name}" for name in values)), values


def run_for_keys(database: Database, sql: str, keys: Iterable[str], **values: Any) -> Iterator[Any]:
    """Yield the rows of ``sql``, whose ``:keys`` are any number of keys."""
    unique = list(dict.fromkeys(keys))
    for start in range(0, len(unique), MAX_KEYS):
        statement, key_values = bind_keys(sql, unique[start : start + MAX_KEYS])
        yield from database.run(statement, **key_values, **values)


def build_in(column: str, name: str, values: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Build the condition that ``column`` has one of ``values``, and its parameters: ``name`` with a number."""
    named = {f"{name}{index}": value for index, value in enumerate(values)}
    listed = ", ".join(f":{key}" for key in named)
    return (f"{column} IN ({listed})" if named else "false"), named


def build_insert(table: str, on_conflict: str = "DO NOTHING") -> str:
    """Build the INSERT of a whole row, its columns as parameters."""
    columns = TABLES[table]
    values = ", ".join(f":{column}" for column in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) ON CONFLICT {on_conflict}"  # noqa: S608  # names of the schema


def build_upsert(table: str, *key: str, keep_created: bool = True) -> str:
    """Build an upsert by primary key that keeps ``created_at``, and a row with a later ``asked_at``."""
    unchanged = (*key, "created_at") if keep_created else key
    columns = TABLES[table]
    new_values = [f"{column} = excluded.{column}" for column in columns if column not in unchanged]
    not_older = f" WHERE excluded.asked_at >= {table}.asked_at" if "asked_at" in columns else ""
    return build_insert(table, f"({', '.join(key)}) DO UPDATE SET {', '.join(new_values)}{not_older}")


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
