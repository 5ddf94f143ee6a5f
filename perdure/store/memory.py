"""Operations on the memory that conversations share."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import MemoryChangedError
from ..ports.store import MemoryWrite
from .schema import Database, as_bytes
from .statements import load_statements

SQL = load_statements("memory")


def write_memory(database: Database, writes: Sequence[MemoryWrite], now: str, key_id: str | None) -> None:
    """Write the memory changes; the last one of a key counts. Raises ``MemoryChangedError``; the caller rolls the
    transaction back."""
    last_writes = {(write.namespace, write.key): write for write in writes}
    for namespace, key in sorted(last_writes):
        write = last_writes[namespace, key]
        name = {"namespace": namespace, "key": key}
        if write.checked and not _lock_memory(database, name, write.before, now):
            raise MemoryChangedError(f"memory {namespace!r}, key {key!r} was changed by another call")
        if write.value is None:
            database.run(SQL.delete_value, **name)
        else:
            database.run(SQL.write_value, **name, value=write.value, updated_at=now, key_id=key_id)


def _lock_memory(database: Database, name: dict[str, str], before: bytes | None, now: str) -> bool:
    """Lock the row of a value until the transaction ends; false if the value is not ``before`` (None: no value)."""
    if before is None:
        return database.run(SQL.insert_value, **name, value=b"", updated_at=now, key_id=None).rowcount == 1
    return database.run(SQL.lock_value, **name, before=before, now=now).rowcount == 1


def recall(database: Database, namespace: str, key: str) -> bytes | None:
    """Return one value of the memory, or None."""
    row = database.run(SQL.recall, namespace=namespace, key=key).fetchone()
    return None if row is None else as_bytes(row[0])


def recall_all(database: Database, namespace: str, prefix: str, limit: int) -> dict[str, bytes]:
    """Return the values whose key begins with ``prefix``; a range query, since it needs no escaping of patterns."""
    end = find_prefix_end(prefix)
    rows = database.run(SQL.recall_all, namespace=namespace, prefix=prefix, prefix_end=end, limit=limit)
    return {key: as_bytes(value) for key, value in rows}


def find_prefix_end(prefix: str) -> str | None:
    """Return the first text, by code points, after all that begin with ``prefix``; None if there is none."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return None
    next_code_point = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if next_code_point == 0xD800 else next_code_point)  # surrogates are not valid text
