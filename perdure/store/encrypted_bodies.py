"""Counts the rows whose bodies are encrypted, by key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .schema import TABLES, Tables


def build_key_counts_select(tables: Collection[str] = TABLES.keys()) -> str:
    """Build the statement that counts the encrypted rows of those ``tables`` that have a key, by table and key. It
    reads indexes that have no other rows."""
    # Built, not in a file: the tables are those that a store of an older schema has.
    return " UNION ALL ".join(
        f"SELECT '{table}', key_id, count(*) FROM {table} WHERE key_id IS NOT NULL GROUP BY key_id"  # noqa: S608  # names of the schema
        for table, columns in TABLES.items()
        if "key_id" in columns and table in tables
    )


def group_by_key(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, int]]:
    """Return the rows of that statement as the counts of each key, by table."""
    counts: dict[str, dict[str, int]] = {}
    for table, key_id, count in rows:
        counts.setdefault(key_id, {})[table] = count
    return counts


class EncryptedBodyTables(Tables):
    """The methods of :class:`perdure.ports.encrypted_bodies.EncryptedBodies`, for a store in a database."""

    async def count_keys(self) -> dict[str, dict[str, int]]:
        """See :class:`perdure.ports.encrypted_bodies.EncryptedBodies`."""
        return group_by_key(await self._select_rows(build_key_counts_select()))
