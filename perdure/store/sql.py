"""Every operation on the tables, as a plain function over a ``Database``.

An adapter opens the transaction and runs one function in it; every function here is safe to run again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Dialect, bindparam
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ClauseElement

from ..errors import MemoryChangedError, TranscriptCorruptedError
from ..ports import Claim, Commit, EventBatch, MemoryWrite, Node, RunRow, TurnRow
from . import event_log
from .schema import (
    Database,
    KeyListStatement,
    Statement,
    as_bytes,
    blobs_table,
    build_insert,
    build_insert_missing,
    build_upsert,
    journal_table,
    memory_table,
    meta_table,
    nodes_table,
    runs_table,
    sent_messages_table,
    turns_table,
)

# ---
# Operations on the memory that conversations share.


def _build_recall_all(bounded: bool) -> Statement:
    query = sa.select(memory_table.c.key, memory_table.c.value).where(
        memory_table.c.namespace == bindparam("namespace"), memory_table.c.key >= bindparam("prefix")
    )
    if bounded:
        query = query.where(memory_table.c.key < bindparam("prefix_end"))
    return Statement(query.order_by(memory_table.c.key).limit(bindparam("limit", type_=sa.Integer)))


_IS_MEMORY_KEY = memory_table.c.namespace == bindparam("namespace"), memory_table.c.key == bindparam("key")
INSERT_MEMORY = build_insert_missing(memory_table)
LOCK_MEMORY = Statement(
    sa.update(memory_table)
    .values(updated_at=bindparam("now"))
    .where(*_IS_MEMORY_KEY, memory_table.c.value == bindparam("before"))
)
UPSERT_MEMORY = Statement(lambda dialect: build_upsert(dialect, memory_table))
DELETE_MEMORY = Statement(sa.delete(memory_table).where(*_IS_MEMORY_KEY))
SELECT_MEMORY_VALUE = Statement(sa.select(memory_table.c.value).where(*_IS_MEMORY_KEY))
SELECT_MEMORY_VALUES = {bounded: _build_recall_all(bounded) for bounded in (False, True)}


def write_memory(database: Database, writes: Sequence[MemoryWrite], now: str) -> None:
    """Write the memory changes; the last one of a key counts. Raises ``MemoryChangedError``; the caller rolls the
    transaction back."""
    last_writes = {(write.namespace, write.key): write for write in writes}
    for namespace, key in sorted(last_writes):
        write = last_writes[namespace, key]
        name = {"namespace": namespace, "key": key}
        if write.checked and not _lock_memory(database, name, write.before, now):
            raise MemoryChangedError(f"memory {namespace!r}, key {key!r} was changed by another call")
        if write.value is None:
            DELETE_MEMORY.run(database, **name)
        else:
            UPSERT_MEMORY.run(database, **name, value=write.value, updated_at=now)


def _lock_memory(database: Database, name: dict[str, str], before: bytes | None, now: str) -> bool:
    """Lock the row of a value until the transaction ends; false if the value is not ``before`` (None: no value)."""
    if before is None:
        return INSERT_MEMORY.run(database, **name, value=b"", updated_at=now).rowcount == 1
    return LOCK_MEMORY.run(database, **name, before=before, now=now).rowcount == 1


def recall(database: Database, namespace: str, key: str) -> bytes | None:
    """Return one value of the memory, or None."""
    row = SELECT_MEMORY_VALUE.run(database, namespace=namespace, key=key).fetchone()
    return None if row is None else as_bytes(row[0])


def recall_all(database: Database, namespace: str, prefix: str, limit: int) -> dict[str, bytes]:
    """Return the values whose key begins with ``prefix``; a range query, since it needs no escaping of patterns."""
    prefix_end = _find_prefix_end(prefix)
    statement = SELECT_MEMORY_VALUES[prefix_end is not None]
    rows = statement.run(database, namespace=namespace, prefix=prefix, prefix_end=prefix_end, limit=limit)
    return {key: as_bytes(value) for key, value in rows}


def _find_prefix_end(prefix: str) -> str | None:
    """Return the first text, by code points, after all that begin with ``prefix``; None if there is none."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return None
    next_code_point = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if next_code_point == 0xD800 else next_code_point)  # surrogates are not valid text


def _build_record_outcome(dialect: Dialect) -> Insert:
    """Build the statement that records an outcome in a journal entry, unless it has one."""
    new_row = build_insert(dialect, journal_table)
    new = {name: new_row.excluded[name] for name in ("kind", "outcome", "done_at")}
    return new_row.on_conflict_do_update(index_elements=["key"], set_=new, where=journal_table.c.outcome.is_(None))


def _build_select_chain(until: list[Any]) -> ClauseElement:
    """Select the nodes from ``head`` towards the root, in any order.

    UNION, not UNION ALL, over hashes alone: it terminates even if altered rows form a circle.
    """
    head = sa.select(nodes_table.c.hash, nodes_table.c.parent).where(nodes_table.c.hash == bindparam("head"))
    chain = head.cte("chain", recursive=True)
    parents = nodes_table.alias("above")
    parent = sa.select(parents.c.hash, parents.c.parent).join(chain, parents.c.hash == chain.c.parent)
    chain = chain.union(parent.where(parents.c.hash.not_in(until)))
    return sa.select(nodes_table).join(chain, nodes_table.c.hash == chain.c.hash)


def _build_select_runs(*filters: str) -> Statement:
    newest_first = runs_table.c.created_at.desc(), runs_table.c.context_id.desc()
    return Statement(
        sa.select(runs_table)
        .where(*[runs_table.c[name] == bindparam(name) for name in filters])
        .order_by(*newest_first)
        .limit(bindparam("limit", type_=sa.Integer))
    )


_IS_JOURNAL_KEY = journal_table.c.key == bindparam("key")
SELECT_OUTCOMES = KeyListStatement(
    lambda keys: sa.select(journal_table.c.key, journal_table.c.outcome).where(journal_table.c.key.in_(keys))
)
INSERT_CLAIM = build_insert_missing(journal_table)
# The lock prevents two retries on PostgreSQL from taking over one claim; SQLite has one writer and ignores it.
SELECT_CLAIM = Statement(
    sa.select(journal_table.c.owner, journal_table.c.starts, journal_table.c.outcome)
    .where(_IS_JOURNAL_KEY)
    .with_for_update()
)
TAKE_OVER_CLAIM = Statement(
    sa.update(journal_table)
    .values(owner=bindparam("owner"), starts=bindparam("starts"), claimed_at=bindparam("now"))
    .where(_IS_JOURNAL_KEY)
)
RECORD_OUTCOME = Statement(_build_record_outcome)
INSERT_NODE = build_insert_missing(nodes_table)
INSERT_BLOB = build_insert_missing(blobs_table)
UPSERT_RUN = Statement(lambda dialect: build_upsert(dialect, runs_table))
UPSERT_TURN = Statement(lambda dialect: build_upsert(dialect, turns_table))
INSERT_SENT_MESSAGE = build_insert_missing(sent_messages_table)
SELECT_CHAIN = KeyListStatement(_build_select_chain)
SELECT_BLOBS = KeyListStatement(lambda keys: sa.select(blobs_table).where(blobs_table.c.hash.in_(keys)))
SELECT_RUN = Statement(sa.select(runs_table).where(runs_table.c.context_id == bindparam("context_id")))
SELECT_RUNS: dict[tuple[str, ...], Statement] = {
    filters: _build_select_runs(*filters) for filters in ((), ("agent",), ("status",), ("agent", "status"))
}
SELECT_TURN = Statement(
    sa.select(turns_table.c.status, turns_table.c.head, turns_table.c.result, turns_table.c.asked_at).where(
        turns_table.c.context_id == bindparam("context_id"), turns_table.c.task_id == bindparam("task_id")
    )
)
SELECT_TURN_OF_MESSAGE = Statement(
    sa.select(sent_messages_table.c.task_id).where(
        sent_messages_table.c.context_id == bindparam("context_id"),
        sent_messages_table.c.message_id == bindparam("message_id"),
    )
)
INSERT_STORE_ID = build_insert_missing(meta_table)
SELECT_STORE_ID = Statement(sa.select(meta_table.c.store_id))


def assign_store_id(database: Database, proposed: str, now: str) -> str:
    """Return the recorded ``store_id``, or record ``proposed`` as such."""
    INSERT_STORE_ID.run(database, id=1, store_id=proposed, created_at=now)
    return str(SELECT_STORE_ID.run(database).fetchone()[0])


def read_store_id(database: Database) -> str | None:
    """Return the recorded ``store_id``, if any."""
    row = SELECT_STORE_ID.run(database).fetchone()
    return None if row is None else str(row[0])


def read_outcomes(database: Database, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the recorded outcomes among ``keys``."""
    return {key: as_bytes(outcome) for key, outcome in SELECT_OUTCOMES.iter_rows(database, keys) if outcome is not None}


def claim_call(
    database: Database, key: str, owner: str, again: bool, now: str, events: EventBatch | None = None
) -> Claim:
    """Record the intent to act; see :meth:`perdure.ports.Journal.claim`."""
    claim = _claim_journal_key(database, key, owner, again, now)
    if events is not None and claim.state == "new":
        event_log.append_batch(database, events, now)
    return claim


def _claim_journal_key(database: Database, key: str, owner: str, again: bool, now: str) -> Claim:
    entry = {"key": key, "kind": None, "owner": owner, "starts": 1, "outcome": None}
    if INSERT_CLAIM.run(database, **entry, claimed_at=now, done_at=None).rowcount == 1:
        return Claim("new")
    claimed_by, starts, outcome = SELECT_CLAIM.run(database, key=key).fetchone()
    if outcome is not None:
        return Claim("done", as_bytes(outcome))
    if claimed_by == owner:
        return Claim("new", starts=starts)
    if not again:
        return Claim("begun", starts=starts)
    TAKE_OVER_CLAIM.run(database, key=key, owner=owner, starts=starts + 1, now=now)
    return Claim("new", starts=starts + 1)


def write_commit(database: Database, commit: Commit, now: str) -> bytes | None:
    """Write all of ``commit``; see :meth:`perdure.ports.Journal.commit`."""
    # In the same order everywhere, so that two transactions on PostgreSQL never deadlock.
    for blob in sorted(commit.blobs, key=lambda blob: blob.hash):
        INSERT_BLOB.run(database, hash=blob.hash, body=blob.body)
    for node in sorted(commit.nodes, key=lambda node: node.hash):
        INSERT_NODE.run(database, hash=node.hash, parent=node.parent, body=node.body)
    outcome = commit.outcome
    if outcome is not None:
        entry = {"key": outcome.key, "kind": outcome.kind, "outcome": outcome.body, "done_at": now}
        if RECORD_OUTCOME.run(database, **entry, owner=None, starts=0, claimed_at=None).rowcount == 0:
            return as_bytes(SELECT_CLAIM.run(database, key=outcome.key).fetchone()[-1])
    if commit.run is not None:
        UPSERT_RUN.run(database, **asdict(replace(commit.run, created_at=now, updated_at=now)))
    if commit.turn is not None:
        _write_turn(database, commit.turn, now)
    if commit.memory:
        write_memory(database, commit.memory, now)
    if commit.events is not None:
        event_log.append_batch(database, commit.events, now, recorded=True)
    return outcome.body if outcome is not None else None


def _write_turn(database: Database, turn: TurnRow, now: str) -> None:
    """Write the turn and its messages. A row that is too late leaves no messages either."""
    names = {"context_id": turn.context_id, "task_id": turn.task_id}
    row = {"status": turn.status, "head": turn.head, "result": turn.result, "asked_at": turn.asked_at}
    if UPSERT_TURN.run(database, **names, **row, created_at=now, updated_at=now).rowcount == 0:
        return
    for message_id in sorted(set(turn.messages)):
        INSERT_SENT_MESSAGE.run(database, **names, message_id=message_id)


def read_nodes(database: Database, head: str, until: Sequence[str]) -> list[Node]:
    """Return the chain that ends in ``head``, root first; see :meth:`perdure.ports.Transcripts.read_nodes`."""
    known = set(until)
    if head in known:
        return []
    rows = SELECT_CHAIN.run(database, list(until[: KeyListStatement.MAX_KEYS]), head=head)
    nodes = {name: Node(name, parent, as_bytes(body)) for name, parent, body in rows}
    chain: list[Node] = []
    name: str | None = head
    while name is not None and name not in known:
        node = nodes.pop(name, None)  # popped, so that a circle ends here too
        if node is None:
            raise TranscriptCorruptedError(
                f"node {name} of the transcript that ends in {head} is missing from the store",
                hint="Restore it from a backup of the store, or fork the run from a head that is intact.",
            )
        chain.append(node)
        name = node.parent
    return chain[::-1]


def read_blobs(database: Database, hashes: Sequence[str]) -> dict[str, bytes]:
    """Return the blobs that exist."""
    return {name: as_bytes(body) for name, body in SELECT_BLOBS.iter_rows(database, hashes)}


def read_run(database: Database, context_id: str) -> RunRow | None:
    """Return one row of the runs, or None."""
    row = SELECT_RUN.run(database, context_id=context_id).fetchone()
    return None if row is None else RunRow(*row)


def read_runs(database: Database, agent: str | None, status: str | None, limit: int) -> list[RunRow]:
    """Return rows of the runs, the newest first."""
    filters = {name: value for name, value in (("agent", agent), ("status", status)) if value is not None}
    return [RunRow(*row) for row in SELECT_RUNS[tuple(filters)].run(database, **filters, limit=limit)]


def read_turn(database: Database, context_id: str, task_id: str) -> TurnRow | None:
    """Return one row of the turns, or None."""
    row = SELECT_TURN.run(database, context_id=context_id, task_id=task_id).fetchone()
    if row is None:
        return None
    status, head, result, asked_at = row
    return TurnRow(context_id, task_id, status, head, result, asked_at=asked_at)


def find_turn_of_message(database: Database, context_id: str, message_id: str) -> str | None:
    """Return the ``task_id`` of the first turn that took a message."""
    row = SELECT_TURN_OF_MESSAGE.run(database, context_id=context_id, message_id=message_id).fetchone()
    return None if row is None else str(row[0])
