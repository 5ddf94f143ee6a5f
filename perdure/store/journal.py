"""Claims of calls, their outcomes, and the commit of all that a call writes, in one transaction. Every function here is
safe to run again."""

from __future__ import annotations

from collections.abc import Sequence

from ..ports.outbox import WriteOptions
from ..ports.store import Claim, Commit, EventBatch
from . import event_log, nodes, retention, usage
from .memory import write_memory
from .runs import write_run, write_turn
from .schema import TABLES, Database, as_bytes, run_for_keys
from .statements import load_statements

SQL = load_statements("journal")


def read_outcomes(database: Database, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the recorded outcomes among ``keys``."""
    rows = run_for_keys(database, SQL.find_outcomes, keys)
    return {key: as_bytes(outcome) for key, outcome in rows if outcome is not None}


def claim_call(
    database: Database, key: str, owner: str, again: bool, now: str, events: EventBatch | None, options: WriteOptions
) -> Claim:
    """Record the intent to act; see :meth:`perdure.ports.store.Journal.claim`."""
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
    [(claimed_by, starts, outcome)] = database.run(SQL.claim, **entry, claimed_at=now, done_at=None)
    if outcome is not None:
        return Claim("done", as_bytes(outcome))
    if claimed_by == owner:
        return Claim("new", starts=starts)
    if not again:
        return Claim("begun", starts=starts, begun_by=claimed_by)
    database.run(SQL.take_over_claim, key=key, owner=owner, starts=starts + 1, now=now)
    return Claim("new", starts=starts + 1, begun_by=claimed_by)


def write_commit(database: Database, commit: Commit, now: str, options: WriteOptions) -> bytes | None:
    """Write all of ``commit``; see :meth:`perdure.ports.store.Journal.commit`."""
    key_id = options.key_id
    # In the same order everywhere, so that two transactions on PostgreSQL never deadlock.
    for blob in sorted(commit.blobs, key=lambda blob: blob.hash):
        database.run(nodes.SQL.insert_blob, hash=blob.hash, body=blob.body, used_on=now[:10], key_id=key_id)
    for node in sorted(commit.nodes, key=lambda node: node.hash):
        row = {"hash": node.hash, "parent": node.parent, "body": node.body}
        database.run(nodes.SQL.insert_node, **row, used_on=now[:10], key_id=key_id)
    retention.renew_parents(database, commit, now[:10])
    if references := retention.find_references(commit):
        retention.write_references(database, references, now[:10])
    outcome = commit.outcome
    if outcome is not None:
        entry = {"key": outcome.key, "kind": outcome.kind, "outcome": outcome.body, "done_at": now, "key_id": key_id}
        new_entry = {"owner": None, "starts": 0, "claimed_at": None, "context_id": retention.get_context_id(commit)}
        if database.run(SQL.record_outcome, **entry, **new_entry).rowcount == 0:
            return read_outcomes(database, [outcome.key])[outcome.key]
    if commit.run is not None:
        write_run(database, commit.run, now, key_id)
    if commit.turn is not None:
        write_turn(database, commit.turn, now, key_id)
    if commit.memory:
        write_memory(database, commit.memory, now, key_id)
    if commit.events is not None:
        event_log.append_batch(database, commit.events, now, options, recorded=True)
    if commit.usage is not None and outcome is not None:
        values = usage.read_usage_values(commit.usage)
        row = dict(zip(TABLES["usage"], (*values, outcome.key, now), strict=True))
        database.run(usage.SQL.insert_usage, **row)
    return outcome.body if outcome is not None else None
