"""What refers to what in the store, and the deletion of what nothing refers to any more. See decision 039.

Writers note in two small tables which blobs and older transcripts a node or a run refers to, and renew the day on which
they were used (``used_on``), in the transaction of the reference. The collector deletes rows of an old day
that nothing refers to; the day in the condition of its DELETE is what a writer changes, so one of the two waits for the
other and sees what it did.

The operations of the collector are generators that yield statements and are sent their rows: an adapter runs each in
one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..errors import TranscriptCorruptedError
from ..ports.retention import Collectable, OldRun, RunTree
from ..ports.store import Commit, Node
from ..ports.times import format_utc_now
from .schema import Database, run_for_keys, split_keys
from .statements import Statement, load_statements

SQL = load_statements("retention")

T = TypeVar("T")

RUN_TABLES = ("journal", "runs", "turns", "sent", "decisions", "bulk_runs")
"""The tables whose rows go with the run of their ``context_id``, in the order in which writers lock them. A new table
of that kind is added here, or to ``OTHER_TABLES``."""
OTHER_TABLES = {
    "events": "deleted with the root of their tree, in whose stream they are",
    "feeds": "deleted last, with their events: their locks order the writers",
    "nodes": "shared by forks: deleted when nothing refers to them",
    "blobs": "shared by all: deleted when nothing refers to them",
    "waits": "deleted behind the feeds, whose locks their writers hold",
    "failing_calls": "deleted behind the feeds, as the waits are",
    "failed_attempts": "counts of no single run: what failed stays, as what was paid does",
    "run_references": "deleted behind the feeds, as the waits are",
    "node_references": "deleted with their node",
    "usage": "what was paid stays when its run is deleted",
    "agents": "definitions by hash, which no run owns",
    "outbox": "deleted with the events that they name",
    "audit": "who did what stays when its run is deleted",
    "idempotency": "deleted when their time is over",
    "memory": "belongs to the authors, who delete it, but for ``RUN_NAMESPACES``",
    "meta": "one row",
    "api_tokens": "no run's",
    "console_logins": "deleted when their time is over",
    "grants": "no run's: they are the tenant's or the user's, and ``perdure mcp logout`` deletes them",
    "sign_ins": "deleted when their time is over",
    "webhooks": "no run's",
    "deleted_runs": "the ids of deleted runs, which are not given again",
    "webhook_deliveries": "deleted after 30 days by themselves",
    "bulk_actions": "of many runs; deleted 30 days after its end",
}
"""The tables whose rows do not go with the run of their ``context_id``, and why."""
RUN_NAMESPACES = ("artifacts:", "paid:")
"""What namespaces of the memory begin with that belong to a run, before its id: its artifacts, and kept replies."""

# ---
# References: what writers note.


_HASH_MARK, _HEAD_MARK = b'"hash":', b'"head":'
_HASHES = re.compile(rb'"hash": ?"([0-9a-f]{64})"')
_HEADS = re.compile(rb'"head": ?"([0-9a-f]{64})"')


class Reference(NamedTuple):
    """A reference to a blob or a node, of a node, of a run, or (neither) of the memory."""

    target: str
    node: str | None = None
    context_id: str | None = None


def find_blob_references(body: bytes | None) -> set[str]:
    """Find the hashes of blobs in JSON that perdure wrote. Text of authors may look like one: then there is no such
    blob, or it is kept for longer."""
    if body is None or _HASH_MARK not in body:
        return set()
    return {match.decode() for match in _HASHES.findall(body)}


def find_node_references(node: Node) -> set[str]:
    """Find the blobs, and the heads of replaced transcripts, that the messages of ``node`` name."""
    heads = {match.decode() for match in _HEADS.findall(node.body)} if _HEAD_MARK in node.body else set()
    return find_blob_references(node.body) | heads


def find_references(commit: Commit) -> list[Reference]:
    """Find what ``commit`` refers to, but for its events: most commits refer to nothing."""
    references = [Reference(target, node=node.hash) for node in commit.nodes for target in find_node_references(node)]
    outcome, run, turn = commit.outcome, commit.run, commit.turn
    bodies = [row.result for row in (run, turn) if row is not None]
    for body in (outcome.body if outcome is not None else None, *bodies):
        if targets := find_blob_references(body):
            context_id = get_context_id(commit)
            references += [Reference(target, context_id=context_id) for target in targets]
    for write in commit.memory:
        references += [Reference(target) for target in find_blob_references(write.value)]
    return sorted(set(references), key=str)  # None is not sorted with texts


def get_context_id(commit: Commit) -> str | None:
    """Return the run that ``commit`` belongs to."""
    part = commit.events or commit.run or commit.turn
    return None if part is None else part.context_id


def write_references(database: Database, references: Sequence[Reference], today: str) -> None:
    """Note ``references`` whose targets exist, and renew these."""
    targets = sorted({reference.target for reference in references})
    for statement in (SQL.renew_blobs, SQL.renew_nodes):
        _run_updates(database, statement, targets, today)
    known = {name for (name,) in run_for_keys(database, SQL.find_targets, targets)}
    for target, node, context_id in references:
        if target in known and node is not None:
            database.run(SQL.insert_node_reference, target=target, node=node)
        if target in known and context_id is not None:
            database.run(SQL.insert_run_reference, target=target, context_id=context_id)


def renew_parents(database: Database, commit: Commit, today: str) -> None:
    """Renew the nodes that ``commit`` builds on. Raises ``TranscriptCorruptedError`` if one is missing, but for the
    commit of a run, which must be able to end on a corrupt transcript too."""
    new = {node.hash for node in commit.nodes}
    parents = {node.parent for node in commit.nodes if node.parent is not None} - new
    heads = {row.head for row in (commit.run, commit.turn) if row is not None and row.head is not None} - new
    if not parents and not heads:
        return
    found = dict(run_for_keys(database, SQL.list_days, sorted(parents | heads)))
    if (missing := sorted(parents - found.keys())) and commit.run is None:
        raise build_missing_parent_error(missing[0])
    _run_updates(database, SQL.renew_nodes, [name for name, day in found.items() if day < today], today)


def build_missing_parent_error(name: str) -> TranscriptCorruptedError:
    """Build the error of a commit whose node follows one that is not there."""
    return TranscriptCorruptedError(
        f"node {name} of the transcript is missing from the store, and nothing can follow it",
        hint="Restore it from a backup and `resume` the run, or fork the run from a head that is intact.",
    )


def _run_updates(database: Database, statement: Statement, keys: Sequence[str], today: str) -> None:
    for some in split_keys(keys):
        database.run(statement, keys=some, today=today, before=today)


# ---
# The collector's operations, as generators of statements.


class Query(NamedTuple):
    """A statement of a step, with its values."""

    statement: Statement
    values: dict[str, Any]


Step = Generator[Query, list[Any], T]
"""An operation in one transaction: yields statements, is sent their rows, and returns its result."""


class TreeChangedError(Exception):
    """The tree was written to since it was read: its deletion is rolled back."""


def _run_for_keys(statement: Statement, keys: Iterable[str], **values: Any) -> Step[list[Any]]:
    rows: list[Any] = []
    for some in split_keys(keys):
        rows += yield Query(statement, {"keys": some, **values})
    return rows


def read_old_runs(before: str, after: tuple[str, str], limit: int) -> Step[list[OldRun]]:
    """See :meth:`perdure.ports.retention.Retention.read_old_runs`."""
    page = {"before": before, "created_at": after[0], "after": after[1], "limit": limit}
    return [OldRun(*row) for row in (yield Query(SQL.read_old_runs, page))]


def read_tree(root: str) -> Step[RunTree]:
    """See :meth:`perdure.ports.retention.Retention.read_tree`."""
    [*feed] = yield Query(SQL.get_feed_seq, {"root": root})
    rows = yield Query(SQL.read_tree, {"root": root})
    statuses = {root: None} | {row[0]: row[1] for row in rows}
    turn_heads = yield from _run_for_keys(SQL.list_turn_heads, statuses)
    heads = {row[2] for row in rows if row[2] is not None} | {head for (head,) in turn_heads}
    updated_at = max((row[3] for row in rows if row[3] is not None), default="")
    return RunTree(root, statuses, tuple(sorted(heads)), updated_at, feed[0][0] if feed else None)


def delete_tree(tree: RunTree, grace_day: str, deleted_at: str | None = None) -> Step[None]:
    """Delete a tree of runs, if it is as it was read. Raises ``TreeChangedError``.

    With ``deleted_at`` its ids are not given again: noted first, so that a writer that waits for the feeds' locks sees
    it once it has them.

    What only it refers to can be deleted from ``grace_day`` on, not now: a call that has read it a moment ago may
    still continue from it.
    """
    ids = list(tree.statuses)
    for name in sorted(ids) if deleted_at is not None else ():
        yield Query(SQL.insert_deleted_run, {"context_id": name, "deleted_at": deleted_at})
    targets = yield from _run_for_keys(SQL.list_run_targets, ids)
    renewed = {"today": grace_day, "before": grace_day}
    yield from _run_for_keys(SQL.renew_blobs, sorted(target for (target,) in targets), **renewed)
    yield from _run_for_keys(SQL.renew_nodes, tree.heads, **renewed)
    updated_at = ""
    for table in RUN_TABLES:
        if table == "runs":
            rows = yield from _run_for_keys(SQL.delete_runs, ids)
            updated_at = max((row[0] for row in rows), default="")
        else:
            yield from _run_for_keys(SQL[f"delete_{table}"], ids)
    yield from _run_for_keys(SQL.delete_memory, [prefix + name for prefix in RUN_NAMESPACES for name in ids])
    yield Query(SQL.delete_child_feeds, {"root": tree.root})
    feed = yield Query(SQL.delete_root_feed, {"root": tree.root})
    yield Query(SQL.delete_events, {"root": tree.root})
    yield Query(SQL.delete_outbox, {"root": tree.root})
    for table in ("waits", "failing_calls", "run_references"):
        yield from _run_for_keys(SQL[f"delete_{table}"], ids)
    if updated_at != tree.updated_at or (feed[0][0] if feed else None) != tree.seq:
        raise TreeChangedError


def find_deleted(ids: Sequence[str]) -> Step[set[str]]:
    """See :meth:`perdure.ports.retention.Retention.find_deleted`."""
    return {name for (name,) in (yield from _run_for_keys(SQL.find_deleted_runs, ids))}


def renew(hashes: Sequence[str], before_day: str, today: str) -> Step[None]:
    """See :meth:`perdure.ports.retention.Retention.renew`."""
    for statement in (SQL.renew_blobs, SQL.renew_nodes):
        yield from _run_for_keys(statement, sorted(hashes), today=today, before=before_day)


def read_memory_references(after: tuple[str, str], limit: int) -> Step[tuple[tuple[str, str] | None, set[str]]]:
    """See :meth:`perdure.ports.retention.Retention.read_memory_references`."""
    rows = yield Query(SQL.read_memory, {"namespace": after[0], "after": after[1], "limit": limit})
    targets: set[str] = set()
    for _, _, value in rows:
        targets |= find_blob_references(value.encode() if isinstance(value, str) else bytes(value))
    return ((rows[-1][0], rows[-1][1]) if len(rows) == limit else None), targets


def read_old_nodes(before_day: str, after: tuple[str, str], limit: int) -> Step[list[Collectable]]:
    """See :meth:`perdure.ports.retention.Retention.read_old_nodes`."""
    return (yield from _read_page(SQL.read_old_nodes, before_day, after, limit))


def read_old_blobs(before_day: str, after: tuple[str, str], limit: int) -> Step[list[Collectable]]:
    """See :meth:`perdure.ports.retention.Retention.read_old_blobs`."""
    return (yield from _read_page(SQL.read_old_blobs, before_day, after, limit))


def _read_page(statement: Statement, before_day: str, after: tuple[str, str], limit: int) -> Step[list[Collectable]]:
    rows = yield Query(statement, {"before": before_day, "used_on": after[0], "after": after[1], "limit": limit})
    return [Collectable(row[0], row[1], row[2], row[3], bool(row[4])) for row in rows]


def read_nodes_above(nodes: Sequence[Collectable], before_day: str) -> Step[list[Collectable]]:
    """See :meth:`perdure.ports.retention.Retention.read_nodes_above`."""
    replaced = yield from _run_for_keys(SQL.list_node_targets, [node.hash for node in nodes])
    names = {node.parent for node in nodes if node.parent is not None} | {target for (target,) in replaced}
    rows = yield from _run_for_keys(SQL.read_nodes, sorted(names), before=before_day)
    return [Collectable(*row) for row in rows]


def read_holders(names: Sequence[str]) -> Step[dict[str, set[str]]]:
    """See :meth:`perdure.ports.retention.Retention.read_holders`."""
    holders: dict[str, set[str]] = {}
    for target, holder in (yield from _run_for_keys(SQL.read_holders, names)):
        holders.setdefault(target, set()).add(holder)
    return holders


def delete_nodes(names: Sequence[str], before_day: str) -> Step[list[Collectable]]:
    """See :meth:`perdure.ports.retention.Retention.delete_nodes`."""
    rows = yield from _run_for_keys(SQL.delete_nodes, sorted(names), before=before_day)
    deleted = [Collectable(*row) for row in rows]
    yield from _run_for_keys(SQL.delete_node_references, [node.hash for node in deleted])
    return deleted


def delete_blobs(names: Sequence[str], before_day: str) -> Step[list[Collectable]]:
    """See :meth:`perdure.ports.retention.Retention.delete_blobs`."""
    rows = yield from _run_for_keys(SQL.delete_blobs, sorted(names), before=before_day)
    return [Collectable(*row) for row in rows]


def find_blobs(names: Sequence[str]) -> Step[set[str]]:
    """See :meth:`perdure.ports.retention.Retention.find_blobs`."""
    return {name for (name,) in (yield from _run_for_keys(SQL.find_blobs, names))}


# ---
# How an adapter runs them.


def run_step(database: Database, step: Step[T]) -> T:
    """Run the statements of ``step`` on ``database``, and return its result."""
    try:
        query = next(step)
        while True:
            query = step.send(list(database.run(query.statement, **query.values)))
    except StopIteration as end:
        result: T = end.value
        return result


class SqlRetention:
    """``Retention`` of a store in an SQL database; see there for its methods."""

    async def _run_step(self, make_step: Callable[[], Step[T]], *, write: bool = False) -> T:
        """Run the step in a transaction of its own; ``make_step`` is called again for another try."""
        raise NotImplementedError

    async def read_old_runs(self, before: str, after: tuple[str, str], limit: int) -> list[OldRun]:
        return await self._run_step(lambda: read_old_runs(before, after, limit))

    async def read_tree(self, root: str) -> RunTree:
        return await self._run_step(lambda: read_tree(root))

    async def delete_tree(self, tree: RunTree, grace_day: str, *, for_good: bool = False) -> bool:
        deleted_at = format_utc_now() if for_good else None
        try:
            await self._run_step(lambda: delete_tree(tree, grace_day, deleted_at), write=True)
        except TreeChangedError:
            return False
        return True

    async def find_deleted(self, ids: Sequence[str]) -> set[str]:
        return await self._run_step(lambda: find_deleted(ids))

    async def renew(self, hashes: Sequence[str], before_day: str, today: str) -> None:
        if hashes:
            await self._run_step(lambda: renew(hashes, before_day, today), write=True)

    async def read_memory_references(
        self, after: tuple[str, str], limit: int
    ) -> tuple[tuple[str, str] | None, set[str]]:
        return await self._run_step(lambda: read_memory_references(after, limit))

    async def read_old_nodes(self, before_day: str, after: tuple[str, str], limit: int) -> list[Collectable]:
        return await self._run_step(lambda: read_old_nodes(before_day, after, limit))

    async def read_nodes_above(self, nodes: Sequence[Collectable], before_day: str) -> list[Collectable]:
        return await self._run_step(lambda: read_nodes_above(nodes, before_day))

    async def read_old_blobs(self, before_day: str, after: tuple[str, str], limit: int) -> list[Collectable]:
        return await self._run_step(lambda: read_old_blobs(before_day, after, limit))

    async def read_holders(self, names: Sequence[str]) -> dict[str, set[str]]:
        return await self._run_step(lambda: read_holders(names))

    async def delete_nodes(self, names: Sequence[str], before_day: str) -> list[Collectable]:
        return await self._run_step(lambda: delete_nodes(names, before_day), write=True)

    async def delete_blobs(self, names: Sequence[str], before_day: str) -> list[Collectable]:
        return await self._run_step(lambda: delete_blobs(names, before_day), write=True)

    async def find_blobs(self, names: Sequence[str]) -> set[str]:
        return await self._run_step(lambda: find_blobs(names))
