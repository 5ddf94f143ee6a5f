"""The memory that conversations share: its operations, as :mod:`.sql` has those on the other tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import bindparam

from ..errors import MemoryChangedError
from ..ports import MemoryWrite
from .statement import Database, Statement, as_bytes, insert_missing, upsert
from .tables import memory


def _recall_all(bounded: bool) -> Statement:
    query = sa.select(memory.c.key, memory.c.value).where(
        memory.c.namespace == bindparam("namespace"), memory.c.key >= bindparam("prefix")
    )
    if bounded:
        query = query.where(memory.c.key < bindparam("behind"))
    return Statement(lambda _: query.order_by(memory.c.key).limit(bindparam("limit", type_=sa.Integer)))


_BY_NAME = memory.c.namespace == bindparam("namespace"), memory.c.key == bindparam("key")
INSERT_MEMORY = insert_missing(memory)
REPLACE_MEMORY = Statement(
    lambda _: (
        sa.update(memory)
        .values(value=bindparam("new"), updated_at=bindparam("now"))
        .where(*_BY_NAME, memory.c.value == bindparam("before"))
    )
)
UPSERT_MEMORY = Statement(lambda dialect: upsert(dialect, memory))
DELETE_MEMORY = Statement(lambda _: sa.delete(memory).where(*_BY_NAME))
RECALL = Statement(lambda _: sa.select(memory.c.value).where(*_BY_NAME))
RECALL_ALL = {bounded: _recall_all(bounded) for bounded in (False, True)}


def write_memory(database: Database, writes: Sequence[MemoryWrite], now: str) -> None:
    """Carry them out; of a key the last counts. Raises ``MemoryChangedError``."""
    last = {(write.namespace, write.key): write for write in writes}
    for (namespace, key), write in sorted(last.items(), key=lambda item: item[0]):
        value = write.value
        if write.checked and value is not None:
            _replace_memory(database, write, value, now)
        elif value is None:
            DELETE_MEMORY.run(database, namespace=namespace, key=key)
        else:
            UPSERT_MEMORY.run(database, namespace=namespace, key=key, value=value, updated_at=now)


def _replace_memory(database: Database, write: MemoryWrite, value: bytes, now: str) -> None:
    """Raises ``MemoryChangedError``; whoever runs the transaction takes it back."""
    name = {"namespace": write.namespace, "key": write.key}
    if write.before is None:
        rows = INSERT_MEMORY.run(database, **name, value=value, updated_at=now)
    else:
        rows = REPLACE_MEMORY.run(database, **name, new=value, now=now, before=write.before)
    if rows.rowcount == 0:
        raise MemoryChangedError(f"memory {write.namespace!r}, key {write.key!r} was changed by somebody else")


def recall(database: Database, namespace: str, key: str) -> bytes | None:
    """One value of the memory."""
    row = RECALL.run(database, namespace=namespace, key=key).fetchone()
    return None if row is None else as_bytes(row[0])


def recall_all(database: Database, namespace: str, prefix: str, limit: int) -> dict[str, bytes]:
    """The values whose key begins with ``prefix``; a range, since no pattern has to be escaped in it."""
    behind = _behind(prefix)
    statement = RECALL_ALL[behind is not None]
    rows = statement.run(database, namespace=namespace, prefix=prefix, behind=behind, limit=limit)
    return {key: as_bytes(value) for key, value in rows}


def _behind(prefix: str) -> str | None:
    """The first text, by code points, behind all that begin with ``prefix``; None if nothing is."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # surrogates are no text
