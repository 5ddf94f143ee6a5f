"""Every operation on the tables, as a plain function over a ``Database``.

An adapter opens the transaction and runs one function in it; every function here is safe to run again.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ..errors import MemoryChangedError, TranscriptCorruptedError
from ..ports import AgentRow, Claim, Commit, EventBatch, MemoryWrite, Node, RunRow, TurnRow, UsageRow
from ..ports.surfaces import WriteOptions
from ..types.run_ids import build_run_id_error
from . import event_log, migrations, retention
from .schema import (
    MAX_KEYS,
    TABLES,
    Database,
    as_bytes,
    bind_keys,
    build_insert,
    build_upsert,
    run_for_keys,
    shorten_key,
)

# ---
# Operations on the memory that conversations share.


INSERT_MEMORY = build_insert("memory")
LOCK_MEMORY = """
    UPDATE memory SET updated_at = :now WHERE namespace = :namespace AND key = :key AND value = :before"""
UPSERT_MEMORY = build_upsert("memory", "namespace", "key")
DELETE_MEMORY = "DELETE FROM memory WHERE namespace = :namespace AND key = :key"
SELECT_MEMORY_VALUE = "SELECT value FROM memory WHERE namespace = :namespace AND key = :key"
SELECT_MEMORY_VALUES = """
    SELECT key, value FROM memory WHERE namespace = :namespace AND key >= :prefix {before_end}
    ORDER BY key LIMIT :limit"""


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
            database.run(DELETE_MEMORY, **name)
        else:
            database.run(UPSERT_MEMORY, **name, value=write.value, updated_at=now, key_id=key_id)


def _lock_memory(database: Database, name: dict[str, str], before: bytes | None, now: str) -> bool:
    """Lock the row of a value until the transaction ends; false if the value is not ``before`` (None: no value)."""
    if before is None:
        return database.run(INSERT_MEMORY, **name, value=b"", updated_at=now, key_id=None).rowcount == 1
    return database.run(LOCK_MEMORY, **name, before=before, now=now).rowcount == 1


def recall(database: Database, namespace: str, key: str) -> bytes | None:
    """Return one value of the memory, or None."""
    row = database.run(SELECT_MEMORY_VALUE, namespace=namespace, key=key).fetchone()
    return None if row is None else as_bytes(row[0])


def recall_all(database: Database, namespace: str, prefix: str, limit: int) -> dict[str, bytes]:
    """Return the values whose key begins with ``prefix``; a range query, since it needs no escaping of patterns."""
    select, values = build_memory_select(prefix)
    rows = database.run(select, namespace=namespace, limit=limit, **values)
    return {key: as_bytes(value) for key, value in rows}


def build_memory_select(prefix: str) -> tuple[str, dict[str, str]]:
    """Return the statement that reads the values whose key begins with ``prefix``, and the values of its range."""
    prefix_end = _find_prefix_end(prefix)
    if prefix_end is None:
        return SELECT_MEMORY_VALUES.format(before_end=""), {"prefix": prefix}
    return SELECT_MEMORY_VALUES.format(before_end="AND key < :prefix_end"), {"prefix": prefix, "prefix_end": prefix_end}


def _find_prefix_end(prefix: str) -> str | None:
    """Return the first text, by code points, after all that begin with ``prefix``; None if there is none."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return None
    next_code_point = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if next_code_point == 0xD800 else next_code_point)  # surrogates are not valid text


# ---
# Operations on journal, transcripts, runs and turns.


SELECT_OUTCOMES = "SELECT key, outcome FROM journal WHERE key IN (:keys)"
# The update of an existing row changes nothing and locks it, so that two retries do not take over one claim.
INSERT_OR_LOCK_CLAIM = build_insert(
    "journal", "(key) DO UPDATE SET key = excluded.key RETURNING owner, starts, outcome"
)
TAKE_OVER_CLAIM = "UPDATE journal SET owner = :owner, starts = :starts, claimed_at = :now WHERE key = :key"
RELEASE_CLAIM = """
    DELETE FROM journal WHERE key = :key AND owner = :owner AND starts = 1 AND outcome IS NULL RETURNING key"""
RECORD_OUTCOME = build_insert(
    "journal",
    """(key) DO UPDATE SET kind = excluded.kind, outcome = excluded.outcome, done_at = excluded.done_at,
        key_id = excluded.key_id
    WHERE journal.outcome IS NULL""",
)
MISSING_NODE_HINT = (
    "Restore it from a backup of the store and `resume` the run, or fork the run from a head that is intact. If the "
    "store is itself a backup older than the run: `perdure resume ID --from-store` goes on from what it has."
)
_RENEW = "(hash) DO UPDATE SET used_on = excluded.used_on WHERE excluded.used_on > {table}.used_on"
INSERT_NODE = build_insert("nodes", _RENEW.format(table="nodes"))
INSERT_BLOB = build_insert("blobs", _RENEW.format(table="blobs"))
# Not the row of another's run: _write_run finds out.
UPSERT_RUN = f"""
    {build_upsert("runs", "context_id")}
    AND runs.tenant IS NOT DISTINCT FROM excluded.tenant AND runs.user_id IS NOT DISTINCT FROM excluded.user_id"""
SELECT_LABELS = "SELECT tenant, user_id FROM runs WHERE context_id = :context_id"
UPSERT_TURN = build_upsert("turns", "context_id", "task_id")
INSERT_SENT_MESSAGE = build_insert("sent")
# From ``head`` towards the root, in any order. UNION, not UNION ALL, over hashes alone: it terminates even if altered
# rows form a circle.
SELECT_CHAIN = """
    WITH RECURSIVE chain (hash, parent) AS (
        SELECT hash, parent FROM nodes WHERE hash = :head
        UNION
        SELECT above.hash, above.parent FROM nodes AS above JOIN chain ON above.hash = chain.parent
        WHERE above.hash NOT IN (:keys)
    )
    SELECT nodes.hash, nodes.parent, nodes.body FROM nodes JOIN chain ON nodes.hash = chain.hash"""
SELECT_BLOBS = "SELECT hash, body FROM blobs WHERE hash IN (:keys)"
SELECT_RUNS = """
    SELECT runs.context_id, agent, scope, head, status, iterations, {result}, asked_at, created_at, updated_at,
        feeds.root, tenant, user_id
    FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id"""
SELECT_RUN = f"{SELECT_RUNS.format(result='result')} WHERE runs.context_id = :context_id"
SELECT_RUNS_BY_ID = f"{SELECT_RUNS.format(result='NULL')} WHERE runs.context_id IN (:keys)"
NEWEST_RUNS_FIRST = "ORDER BY created_at DESC, runs.context_id DESC LIMIT :limit"
SELECT_TURN = """
    SELECT status, head, result, asked_at FROM turns WHERE context_id = :context_id AND task_id = :task_id"""
SELECT_TURNS = """
    SELECT context_id, task_id, status, head, asked_at, created_at, updated_at FROM turns
    WHERE context_id = :context_id {after} ORDER BY created_at DESC, task_id DESC LIMIT :limit"""
SELECT_TURN_OF_MESSAGE = "SELECT task_id FROM sent WHERE context_id = :context_id AND message_id = :message_id"
INSERT_STORE_ID = build_insert("meta")
SELECT_STORE_ID = "SELECT store_id FROM meta"


def assign_store_id(database: Database, proposed: str, now: str, usable_from: str = migrations.USABLE_FROM) -> str:
    """Return the recorded ``store_id``, or record ``proposed`` as such."""
    database.run(INSERT_STORE_ID, id=1, store_id=proposed, created_at=now, usable_from=usable_from)
    return str(database.run(SELECT_STORE_ID).fetchone()[0])


def read_store_id(database: Database) -> str | None:
    """Return the recorded ``store_id``, if any."""
    row = database.run(SELECT_STORE_ID).fetchone()
    return None if row is None else str(row[0])


def read_outcomes(database: Database, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the recorded outcomes among ``keys``."""
    rows = run_for_keys(database, SELECT_OUTCOMES, keys)
    return {key: as_bytes(outcome) for key, outcome in rows if outcome is not None}


def claim_call(
    database: Database, key: str, owner: str, again: bool, now: str, events: EventBatch | None, options: WriteOptions
) -> Claim:
    """Record the intent to act; see :meth:`perdure.ports.Journal.claim`."""
    context_id = None if events is None else events.context_id
    claim = _claim_journal_key(database, key, owner, again, now, context_id)
    if events is not None and claim.state == "new":
        event_log.append_batch(database, events, now, options)
    return claim


def _claim_journal_key(
    database: Database, key: str, owner: str, again: bool, now: str, context_id: str | None
) -> Claim:
    entry = {"key": key, "kind": None, "owner": owner, "starts": 1, "outcome": None, "key_id": None}
    entry["context_id"] = context_id
    [(claimed_by, starts, outcome)] = database.run(INSERT_OR_LOCK_CLAIM, **entry, claimed_at=now, done_at=None)
    if outcome is not None:
        return Claim("done", as_bytes(outcome))
    if claimed_by == owner:
        return Claim("new", starts=starts)
    if not again:
        return Claim("begun", starts=starts, begun_by=claimed_by)
    database.run(TAKE_OVER_CLAIM, key=key, owner=owner, starts=starts + 1, now=now)
    return Claim("new", starts=starts + 1, begun_by=claimed_by)


def write_commit(database: Database, commit: Commit, now: str, options: WriteOptions) -> bytes | None:
    """Write all of ``commit``; see :meth:`perdure.ports.Journal.commit`."""
    key_id = options.key_id
    # In the same order everywhere, so that two transactions on PostgreSQL never deadlock.
    for blob in sorted(commit.blobs, key=lambda blob: blob.hash):
        database.run(INSERT_BLOB, hash=blob.hash, body=blob.body, used_on=now[:10], key_id=key_id)
    for node in sorted(commit.nodes, key=lambda node: node.hash):
        row = {"hash": node.hash, "parent": node.parent, "body": node.body}
        database.run(INSERT_NODE, **row, used_on=now[:10], key_id=key_id)
    retention.renew_parents(database, commit, now[:10])
    if references := retention.find_references(commit):
        retention.write_references(database, references, now[:10])
    outcome = commit.outcome
    if outcome is not None:
        entry = {"key": outcome.key, "kind": outcome.kind, "outcome": outcome.body, "done_at": now, "key_id": key_id}
        new_entry = {"owner": None, "starts": 0, "claimed_at": None, "context_id": retention.get_context_id(commit)}
        if database.run(RECORD_OUTCOME, **entry, **new_entry).rowcount == 0:
            return read_outcomes(database, [outcome.key])[outcome.key]
    if commit.run is not None:
        _write_run(database, commit.run, now, key_id)
    if commit.turn is not None:
        _write_turn(database, commit.turn, now, key_id)
    if commit.memory:
        write_memory(database, commit.memory, now, key_id)
    if commit.events is not None:
        event_log.append_batch(database, commit.events, now, options, recorded=True)
    if commit.usage is not None and outcome is not None:
        values = read_usage_values(commit.usage)
        row = dict(zip(TABLES["usage"], (*values, outcome.key, now), strict=True))
        database.run(INSERT_USAGE, **row)
    return outcome.body if outcome is not None else None


def _write_run(database: Database, run: RunRow, now: str, key_id: str | None) -> None:
    names = {"context_id": run.context_id, "agent": run.agent, "scope": run.scope, "asked_at": run.asked_at}
    row = {"head": run.head, "status": run.status, "iterations": run.iterations, "result": run.result}
    labels = {"tenant": run.tenant, "user_id": run.user}
    times = {"created_at": now, "updated_at": now}
    if database.run(UPSERT_RUN, **names, **row, **labels, **times, key_id=key_id).rowcount:
        return
    found = database.run(SELECT_LABELS, context_id=run.context_id).fetchone()
    if tuple(found) != (run.tenant, run.user):  # else it is late
        raise build_run_id_error()


def _write_turn(database: Database, turn: TurnRow, now: str, key_id: str | None) -> None:
    """Write the turn and its messages. A row that is too late leaves no messages either."""
    names = {"context_id": turn.context_id, "task_id": turn.task_id}
    row = {"status": turn.status, "head": turn.head, "result": turn.result, "asked_at": turn.asked_at}
    if database.run(UPSERT_TURN, **names, **row, created_at=now, updated_at=now, key_id=key_id).rowcount == 0:
        return
    for message_id in sorted(set(turn.messages)):
        database.run(INSERT_SENT_MESSAGE, **names, message_id=shorten_key(message_id))


def read_nodes(database: Database, head: str, until: Sequence[str]) -> list[Node]:
    """Return the chain that ends in ``head``, root first; see :meth:`perdure.ports.Transcripts.read_nodes`."""
    if head in until:
        return []
    select, values = bind_keys(SELECT_CHAIN, until[:MAX_KEYS])
    return order_chain(database.run(select, head=head, **values), head, until)


def order_chain(rows: Iterable[Any], head: str, until: Sequence[str]) -> list[Node]:
    """Return the nodes of ``rows`` (hash, parent, body; in any order) that lead to ``head``, root first, without those
    of ``until`` and before. Raises ``TranscriptCorruptedError`` when one is missing."""
    known_nodes = set(until)
    nodes = {name: Node(name, parent, as_bytes(body)) for name, parent, body in rows}
    chain: list[Node] = []
    name: str | None = head
    while name is not None and name not in known_nodes:
        node = nodes.pop(name, None)  # popped, so that a circle ends here too
        if node is None:
            raise TranscriptCorruptedError(
                f"node {name} of the transcript that ends in {head} is missing from the store",
                hint=MISSING_NODE_HINT,
            )
        chain.append(node)
        name = node.parent
    return chain[::-1]


def read_blobs(database: Database, hashes: Sequence[str]) -> dict[str, bytes]:
    """Return the blobs that exist."""
    return {name: as_bytes(body) for name, body in run_for_keys(database, SELECT_BLOBS, hashes)}


def read_run(database: Database, context_id: str) -> RunRow | None:
    """Return one row of the runs, or None."""
    row = database.run(SELECT_RUN, context_id=context_id).fetchone()
    return None if row is None else RunRow(*row)


def read_turn(database: Database, context_id: str, task_id: str) -> TurnRow | None:
    """Return one row of the turns, or None."""
    row = database.run(SELECT_TURN, context_id=context_id, task_id=task_id).fetchone()
    if row is None:
        return None
    status, head, result, asked_at = row
    return TurnRow(context_id, task_id, status, head, result, asked_at=asked_at)


def find_turn_of_message(database: Database, context_id: str, message_id: str) -> str | None:
    """Return the ``task_id`` of the first turn that took a message."""
    message_key = shorten_key(message_id)
    row = database.run(SELECT_TURN_OF_MESSAGE, context_id=context_id, message_id=message_key).fetchone()
    return None if row is None else str(row[0])


class ListTables:
    """The lists of :class:`perdure.ports.Runs` and :class:`perdure.ports.Turns`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]:
        """Return the rows of a statement that reads."""

    async def get_runs(self, context_ids: Sequence[str]) -> dict[str, RunRow]:
        """See :class:`perdure.ports.Runs`."""
        unique, found = list(dict.fromkeys(context_ids)), dict[str, RunRow]()
        for start in range(0, len(unique), MAX_KEYS):
            statement, keys = bind_keys(SELECT_RUNS_BY_ID, unique[start : start + MAX_KEYS])
            found |= {row[0]: RunRow(*row) for row in await self._select_rows(statement, **keys)}
        return found

    async def list_runs(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        roots: bool = False,
        created_from: str | None = None,
        created_before: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """See :class:`perdure.ports.Runs`."""
        given = {"agent": agent, "status": status, "tenant": tenant, "user_id": user}
        filters = {name: value for name, value in given.items() if value is not None}
        conditions = [f"{name} = :{name}" for name in filters] + (["feeds.root IS NULL"] if roots else [])
        if created_from is not None:
            conditions.append("created_at >= :created_from")
            filters["created_from"] = created_from
        if created_before is not None:
            conditions.append("created_at < :created_before")
            filters["created_before"] = created_before
        if after is not None:
            conditions.append("(created_at, runs.context_id) < (:at, :after)")
            filters |= {"at": after[0], "after": after[1]}
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = f"{SELECT_RUNS.format(result='NULL')} {where} {NEWEST_RUNS_FIRST}"
        return [RunRow(*row) for row in await self._select_rows(statement, **filters, limit=limit)]

    async def list_turns(
        self, context_id: str, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[TurnRow]:
        """See :class:`perdure.ports.Turns`."""
        values: dict[str, Any] = {"context_id": context_id, "limit": limit}
        if after is not None:
            values |= {"at": after[0], "after": after[1]}
        condition = "" if after is None else "AND (created_at, task_id) < (:at, :after)"
        rows = await self._select_rows(SELECT_TURNS.format(after=condition), **values)
        return [
            TurnRow(run_id, task_id, status, head, asked_at=asked_at, created_at=created_at, updated_at=updated_at)
            for run_id, task_id, status, head, asked_at, created_at, updated_at in rows
        ]


# ---
# Writes of the usage of model calls (its reads: usage.py), and operations on the definitions of agents.


read_usage_values = attrgetter(*(field.name for field in fields(UsageRow) if field.name not in ("key", "created_at")))
"""Returns the values of a :class:`UsageRow` in the order of the columns, without those that the store sets."""
INSERT_USAGE = build_insert("usage")
UPSERT_AGENT = build_insert("agents", "(hash) DO UPDATE SET seen_at = excluded.seen_at")
SELECT_AGENTS = """
    SELECT hash, name, body, created_at, seen_at FROM agents WHERE name = coalesce(:name, name)
    ORDER BY name, seen_at DESC, hash"""


def write_agents(database: Database, agents: Sequence[AgentRow], now: str) -> None:
    """Record the definitions, or that they were seen."""
    for agent in sorted(agents, key=attrgetter("hash")):
        row = {"hash": agent.hash, "name": agent.name, "body": agent.body}
        database.run(UPSERT_AGENT, **row, created_at=now, seen_at=now)


def read_agents(database: Database, name: str | None) -> list[AgentRow]:
    """Return all definitions, or those of ``name``, by name, those of one name the latest seen first."""
    return [
        AgentRow(definition_hash, agent, as_bytes(body), created_at, seen_at)
        for definition_hash, agent, body, created_at, seen_at in database.run(SELECT_AGENTS, name=name)
    ]
