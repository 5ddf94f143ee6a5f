"""A store in memory: the public fake of the ``Store`` port, with the semantics of the real ones."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..errors import MemoryChangedError, StoreError, TranscriptCorruptedError
from ..ports import AgentRow, Claim, Commit, EventBatch, EventRow, Node, RunRow, TurnRow, timestamp
from ..ports.retention import Collectable, OldRun, RunTree
from ..ports.waits import find_wait_changes
from ..store.retention import (
    RUN_NAMESPACES,
    build_missing_parent_error,
    find_blob_references,
    find_node_references,
    find_references,
    get_context_id,
)
from ..types.events import encode_event_body
from ..types.run_ids import build_run_id_error
from .feeds import MemoryFeed
from .surfaces import MemoryLists, MemorySurfaces


@dataclass(slots=True)
class JournalEntry:
    """A journal entry: claimed by ``owner``, done once there is an ``outcome``."""

    owner: str | None = None
    starts: int = 0
    outcome: bytes | None = None
    context_id: str | None = None


class _MemoryRetention(MemorySurfaces, MemoryLists):
    """``Retention`` of a :class:`MemoryStore`, which looks for references when they are asked for."""

    all_nodes: dict[str, Node]
    all_blobs: dict[str, bytes]
    used_on: dict[str, str]
    journal: dict[str, JournalEntry]
    all_runs: dict[str, RunRow]
    all_turns: dict[tuple[str, str], TurnRow]
    sent: dict[tuple[str, str], str]
    memory: dict[tuple[str, str], bytes]
    feeds: dict[str, MemoryFeed]
    deleted_runs: dict[str, str]
    """Ids that are not given again, with the time of the deletion."""

    async def read_old_runs(self, before: str, after: tuple[str, str], limit: int) -> list[OldRun]:
        """Runs created before a time."""
        runs = [
            OldRun(run.created_at, name, feed.root or name if (feed := self.feeds.get(name)) else name)
            for name, run in self.all_runs.items()
            if run.created_at < before and (run.created_at, name) > after
        ]
        return sorted(runs, key=lambda run: (run.created_at, run.context_id))[:limit]

    async def read_tree(self, root: str) -> RunTree:
        """The tree of a root run."""
        ids = [root, *(name for name, feed in self.feeds.items() if feed.root == root)]
        runs = {name: self.all_runs.get(name) for name in ids}
        turns = [turn for (name, _), turn in self.all_turns.items() if name in runs]
        heads = {row.head for row in (*runs.values(), *turns) if row is not None and row.head is not None}
        times = [row.updated_at for row in runs.values() if row is not None]
        seq = self.feeds[root].seq if root in self.feeds else None
        statuses = {name: None if row is None else row.status for name, row in runs.items()}
        return RunTree(root, statuses, tuple(sorted(heads)), max(times, default=""), seq)

    async def find_deleted(self, ids: Sequence[str]) -> set[str]:
        """Those that were deleted for good."""
        return {name for name in ids if name in self.deleted_runs}

    async def delete_tree(self, tree: RunTree, grace_day: str, *, for_good: bool = False) -> bool:
        """Delete the tree, unless it was written to."""
        if await self.read_tree(tree.root) != tree:
            return False
        ids = tree.statuses
        self.deleted_runs |= dict.fromkeys(ids if for_good else (), timestamp(datetime.now(UTC)))
        named = {name for name, holders in self._find_holders().items() if holders & ids.keys()}
        await self.renew([*tree.heads, *named], grace_day, grace_day)
        for name in ids:
            self.all_runs.pop(name, None)
            self.feeds.pop(name, None)
        for pair in [pair for pair in (*self.all_turns, *self.sent, *self.waits) if pair[0] in ids]:
            self.all_turns.pop(pair, None)
            self.sent.pop(pair, None)
            self.waits.pop(pair, None)
        self.decisions = {name: row for name, row in self.decisions.items() if name[0] not in ids}
        self.outbox = {name: row for name, row in self.outbox.items() if name[0] != tree.root}
        for key in [key for key, entry in self.journal.items() if entry.context_id in ids]:
            del self.journal[key]
        places = {prefix + name for prefix in RUN_NAMESPACES for name in ids}
        for pair in [pair for pair in self.memory if pair[0] in places]:
            del self.memory[pair]
        return True

    async def renew(self, hashes: Sequence[str], before_day: str, today: str) -> None:
        """Set the day of what is older."""
        for name in hashes:
            if self.used_on.get(name, before_day) < before_day:
                self.used_on[name] = today

    async def read_memory_references(
        self, after: tuple[str, str], limit: int
    ) -> tuple[tuple[str, str] | None, set[str]]:
        """All that the memory names."""
        return None, set().union(*map(find_blob_references, self.memory.values()))

    async def read_old_nodes(self, before_day: str, after: tuple[str, str], limit: int) -> list[Collectable]:
        """Nodes used before a day."""
        return self._read_page(self.all_nodes, before_day, after, limit)

    async def read_old_blobs(self, before_day: str, after: tuple[str, str], limit: int) -> list[Collectable]:
        """Blobs used before a day."""
        return self._read_page(self.all_blobs, before_day, after, limit)

    async def read_nodes_above(self, nodes: Sequence[Collectable], before_day: str) -> list[Collectable]:
        """Nodes to which ``nodes`` refer."""
        above = {name for node in nodes for name in self._find_targets(self.all_nodes[node.hash])}
        names = [name for name in sorted(above) if name in self.all_nodes and self.used_on[name] < before_day]
        return [self._describe(name) for name in names]

    async def read_holders(self, names: Sequence[str]) -> dict[str, set[str]]:
        """What refers to each."""
        holders = self._find_holders()
        return {name: holders[name] for name in names if name in holders}

    async def delete_nodes(self, names: Sequence[str], before_day: str) -> list[Collectable]:
        """Delete nodes to which nothing refers."""
        deleted = [self._describe(name) for name in self._select_unneeded(self.all_nodes, names, before_day)]
        for node in deleted:
            del self.all_nodes[node.hash]
        return deleted

    async def delete_blobs(self, names: Sequence[str], before_day: str) -> list[Collectable]:
        """Delete blobs to which nothing refers."""
        deleted = [self._describe(name) for name in self._select_unneeded(self.all_blobs, names, before_day)]
        for blob in deleted:
            del self.all_blobs[blob.hash]
        return deleted

    async def find_blobs(self, names: Sequence[str]) -> set[str]:
        """Those that exist."""
        return {name for name in names if name in self.all_blobs}

    def _read_page(
        self, rows: Mapping[str, object], before_day: str, after: tuple[str, str], limit: int
    ) -> list[Collectable]:
        holders = self._find_holders()
        old = sorted((self.used_on[name], name) for name in rows if self.used_on[name] < before_day)
        page = [self._describe(name) for day, name in old if (day, name) > after][:limit]
        return [replace(row, is_needed=row.hash in holders) for row in page]

    def _describe(self, name: str) -> Collectable:
        node = self.all_nodes.get(name)
        size = len(self.all_blobs[name]) if node is None else len(node.body)
        return Collectable(name, self.used_on[name], size, None if node is None else node.parent)

    def _select_unneeded(self, rows: Mapping[str, object], names: Sequence[str], before_day: str) -> list[str]:
        holders = self._find_holders()
        return [name for name in names if name in rows and name not in holders and self.used_on[name] < before_day]

    def _find_targets(self, node: Node) -> set[str]:
        return find_node_references(node) | ({node.parent} if node.parent is not None else set())

    def _find_holders(self) -> dict[str, set[str]]:
        """What refers to each node and blob: nodes, and ids of runs."""
        holders: dict[str, set[str]] = {}
        rows: list[RunRow | TurnRow] = [*self.all_runs.values(), *self.all_turns.values()]
        bodies = [
            *((entry.context_id, entry.outcome) for entry in self.journal.values()),
            *((row.context_id, row.result) for row in rows),
            *((row.child, row.body) for feed in self.feeds.values() for row in feed.rows),
        ]
        references = [(node.hash, self._find_targets(node)) for node in self.all_nodes.values()]
        references += [(holder or "", find_blob_references(body)) for holder, body in bodies]
        for holder, targets in references:
            for target in targets:
                holders.setdefault(target, set()).add(holder)
        return holders


class MemoryStore(_MemoryRetention):
    """A ``Store`` in memory, for tests of code that uses one.

    A test may access everything: change ``all_nodes`` or ``all_blobs`` to alter a transcript, set ``failure`` to make
    every call raise, read ``commits`` for the writes, in order, and ``feeds`` for events.
    """

    def __init__(self, *, now: Callable[[], str] | None = None) -> None:
        super().__init__()
        self.place = "memory"
        self.store_id = ""
        self.failure: StoreError | None = None
        self.all_nodes: dict[str, Node] = {}
        self.all_blobs: dict[str, bytes] = {}
        self.used_on: dict[str, str] = {}
        self.journal: dict[str, JournalEntry] = {}
        self.all_runs: dict[str, RunRow] = {}
        self.all_turns: dict[tuple[str, str], TurnRow] = {}
        self.sent: dict[tuple[str, str], str] = {}
        self.memory: dict[tuple[str, str], bytes] = {}
        self.commits: list[Commit] = []
        self.feeds: dict[str, MemoryFeed] = {}
        self.deleted_runs: dict[str, str] = {}
        self.all_agents: dict[str, AgentRow] = {}
        self._waiting: set[tuple[str, int, asyncio.Future[int]]] = set()
        """Conversation, number after which an event is awaited, and the future to resolve, on any event loop."""
        self._now = now or (lambda: timestamp(datetime.now(UTC)))
        self._id = uuid.uuid4().hex

    async def open(self, *, create: bool = True) -> None:
        """Make the ``store_id`` known."""
        self._raise_failure()
        self.store_id = self._id

    async def close(self) -> None:
        """Do nothing; the contents stay."""

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The recorded outcomes among ``keys``."""
        self._raise_failure()
        entries = {key: self.journal[key] for key in keys if key in self.journal}
        return {key: entry.outcome for key, entry in entries.items() if entry.outcome is not None}

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """Record the intent of ``owner`` to act."""
        self._raise_failure()
        claim = self._claim_entry(key, owner, again, None if events is None else events.context_id)
        if events is not None and claim.state == "new":
            self._write_events(events)
        return claim

    def _claim_entry(self, key: str, owner: str, again: bool, context_id: str | None) -> Claim:
        entry = self.journal.setdefault(key, JournalEntry(owner, 1, context_id=context_id))
        if entry.outcome is not None:
            return Claim("done", entry.outcome)
        other = None if entry.owner == owner else entry.owner
        if other is not None and not again:
            return Claim("begun", starts=entry.starts, begun_by=other)
        if other is not None:
            entry.owner, entry.starts = owner, entry.starts + 1
        return Claim("new", starts=entry.starts, begun_by=other)

    async def release_claim(self, key: str, owner: str) -> bool:
        """Delete the claim of an owner who has not acted."""
        self._raise_failure()
        entry = self.journal.get(key)
        if entry is None or (entry.owner, entry.starts, entry.outcome) != (owner, 1, None):
            return False
        del self.journal[key]
        return True

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything at once; the recorded outcome."""
        self._raise_failure()
        self._check_memory(commit)
        self._check_parents(commit)
        self._check_owner(commit)
        self.commits.append(commit)
        for node in commit.nodes:
            if self.all_nodes.setdefault(node.hash, node) is node:
                self.note_key("nodes", node.hash)
        for blob in commit.blobs:
            if blob.hash not in self.all_blobs:
                self.all_blobs[blob.hash] = blob.body
                self.note_key("blobs", blob.hash)
        self._renew_used(commit)
        if commit.outcome is not None:
            entry = self.journal.setdefault(commit.outcome.key, JournalEntry(context_id=get_context_id(commit)))
            if entry.outcome is not None:
                return entry.outcome
            entry.outcome = commit.outcome.body
            self.note_key("journal", commit.outcome.key)
        if commit.run is not None:
            now, old_row = self._now(), self.all_runs.get(commit.run.context_id)
            row = replace(commit.run, created_at=old_row.created_at if old_row else now, updated_at=now)
            if old_row is None or row.asked_at >= old_row.asked_at:
                self.all_runs[row.context_id] = row
                self.note_key("runs", row.context_id)
        if commit.turn is not None:
            self._write_turn(commit.turn)
        for write in commit.memory:
            if write.value is None:
                self.memory.pop((write.namespace, write.key), None)
                self.forget_key("memory", (write.namespace, write.key))
            else:
                self.memory[write.namespace, write.key] = write.value
                self.note_key("memory", (write.namespace, write.key))
        if commit.events is not None:
            self._write_events(commit.events, recorded=True)
        if commit.usage is not None and commit.outcome is not None:
            usage = replace(commit.usage, key=commit.outcome.key, created_at=self._now())
            self.all_usage.setdefault(usage.key, usage)
        return commit.outcome.body if commit.outcome is not None else None

    def _check_owner(self, commit: Commit) -> None:
        """Raise ``RunIdError`` where the id belongs to a deleted run, or to that of another tenant, user or root."""
        entry = self.journal.get(commit.outcome.key) if commit.outcome is not None else None
        if entry is not None and entry.outcome is not None:
            return
        row = None if commit.run is None else self.all_runs.get(commit.run.context_id)
        if (
            row is not None
            and commit.run is not None
            and (row.tenant, row.user) != (commit.run.tenant, commit.run.user)
        ):
            raise build_run_id_error()
        if commit.events is not None:
            self._check_feed(commit.events)

    def _check_feed(self, batch: EventBatch) -> None:
        feed, root = self.feeds.get(batch.context_id), None if batch.lineage is None else batch.lineage.root
        if feed is None and {batch.context_id, root} & self.deleted_runs.keys():
            raise build_run_id_error()
        if feed is not None and root is not None and feed.root != root:
            raise build_run_id_error()

    def _check_parents(self, commit: Commit) -> None:
        known = self.all_nodes.keys() | {node.hash for node in commit.nodes}
        for node in commit.nodes:
            if commit.run is None and node.parent is not None and node.parent not in known:
                raise build_missing_parent_error(node.parent)

    def _renew_used(self, commit: Commit) -> None:
        """Set the day of all that the commit writes or refers to."""
        today = self._now()[:10]
        heads = [row.head for row in (commit.run, commit.turn) if row is not None]
        nodes = [name for node in commit.nodes for name in (node.hash, node.parent)]
        named = [reference.target for reference in find_references(commit)]
        for name in filter(None, (*nodes, *(blob.hash for blob in commit.blobs), *heads, *named)):
            if name in self.all_nodes or name in self.all_blobs:
                self.used_on[name] = max(today, self.used_on.get(name, ""))

    def _check_memory(self, commit: Commit) -> None:
        """Raise ``MemoryChangedError`` if a checked value has changed, unless the commit's outcome is recorded
        already."""
        entry = self.journal.get(commit.outcome.key) if commit.outcome is not None else None
        if entry is not None and entry.outcome is not None:
            return
        last = {(write.namespace, write.key): write for write in commit.memory}
        for (namespace, key), write in last.items():
            if write.checked and self.memory.get((namespace, key)) != write.before:
                raise MemoryChangedError(f"memory {namespace!r}, key {key!r} was changed by another call")

    async def read_nodes(self, head: str, *, until: Sequence[str] = ()) -> list[Node]:
        """The chain that ends in ``head``, root first, without the nodes of ``until`` and those before them."""
        self._raise_failure()
        chain: list[Node] = []
        name: str | None = head
        while name is not None and name not in until:
            if name not in self.all_nodes:
                raise TranscriptCorruptedError(
                    f"node {name} is missing from the store", hint="Fork the run from a head that is intact."
                )
            chain.append(self.all_nodes[name])
            name = chain[-1].parent
        return chain[::-1]

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """The blobs that exist."""
        self._raise_failure()
        return {name: self.all_blobs[name] for name in hashes if name in self.all_blobs}

    async def get_run(self, context_id: str) -> RunRow | None:
        """One row."""
        self._raise_failure()
        row = self.all_runs.get(context_id)
        return None if row is None else replace(row, root=self._find_root(context_id))

    def _is_at_work(self, context_id: str) -> bool:
        feed, row = self.feeds.get(context_id), self.all_runs.get(context_id)
        return feed is not None and row is not None and feed.token > f"{row.asked_at}/~"

    def _find_root(self, context_id: str) -> str | None:
        feed = self.feeds.get(context_id)
        return None if feed is None else feed.root

    async def get_turn(self, context_id: str, task_id: str) -> TurnRow | None:
        """One row, without ``messages``."""
        self._raise_failure()
        row = self.all_turns.get((context_id, task_id))
        return None if row is None else replace(row, created_at="", updated_at="")

    async def find_message_turn(self, context_id: str, message_id: str) -> str | None:
        """The turn that took the message first."""
        self._raise_failure()
        return self.sent.get((context_id, message_id))

    async def recall(self, namespace: str, key: str) -> bytes | None:
        """One value."""
        self._raise_failure()
        return self.memory.get((namespace, key))

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """The values whose key begins with ``prefix``, in the order of their keys."""
        self._raise_failure()
        keys = sorted(key for space, key in self.memory if space == namespace and key.startswith(prefix))
        return {key: self.memory[namespace, key] for key in keys[:limit]}

    async def record_agents(self, agents: Sequence[AgentRow]) -> None:
        """Record the definitions, or that they were seen."""
        self._raise_failure()
        for agent in agents:
            old, now = self.all_agents.get(agent.hash), self._now()
            self.all_agents[agent.hash] = replace(old or agent, created_at=old.created_at if old else now, seen_at=now)

    async def list_agents(self, name: str | None = None) -> list[AgentRow]:
        """All definitions, or those of ``name``, by name, those of one name the latest seen first."""
        self._raise_failure()
        found = [row for row in self.all_agents.values() if name in (None, row.name)]
        rows = sorted(found, key=lambda row: (row.seen_at, row.hash), reverse=True)
        return sorted(rows, key=lambda row: row.name)

    async def append(self, batch: EventBatch) -> bool:
        """Record ``batch``. False if it is too late."""
        self._raise_failure()
        return self._write_events(batch)

    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """Events after number ``after``, in order."""
        self._raise_failure()
        feed = self.feeds.get(context_id)
        return feed.read_after(after, limit, children=children) if feed is not None else []

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """Wait for a number after ``after``; return the last number, 0 after ``timeout`` seconds without one."""
        self._raise_failure()
        feed = self.feeds.get(context_id)
        if feed is not None and feed.seq > after:
            return feed.seq
        next_seq: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiter = context_id, after, next_seq
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                return await next_seq
        except TimeoutError:
            return 0
        finally:
            self._waiting.discard(waiter)

    def _write_events(self, batch: EventBatch, *, recorded: bool = False) -> bool:
        self._check_feed(batch)
        feed, now = self._get_or_create_feed(batch), self._now()
        is_of_lost_worker = "" != (batch.token or batch.scheduled) < feed.token
        events = [new.event for new in batch.events]
        for target in {name for event in events for name in find_blob_references(encode_event_body(event))}:
            self.used_on.update({target: now[:10]} if target in self.all_blobs else {})
        changes = [] if is_of_lost_worker else find_wait_changes(batch.context_id, events, batch.lineage)
        targets = self.write_options.find_targets(events)

        def note_event(index: int, seq: int) -> None:
            stream = feed.root or feed.context_id
            self.change_waits(batch.agent, [change for change in changes if change.position == index], stream, seq)
            for target in [target for position, target in targets if position == index]:
                self.add_outbox_row(stream, seq, target, batch.context_id, batch.events[index].event.type, now)

        old_seq = feed.seq
        written = feed.write(batch, now, note_event, recorded=recorded)
        self._note_event_keys(feed, old_seq)
        for context_id, after, next_seq in tuple(self._waiting):
            awaited = self.feeds.get(context_id)
            if awaited is not None and awaited.stream is feed.stream and after < feed.seq:
                next_seq.get_loop().call_soon_threadsafe(_resolve_future, next_seq, feed.seq)
        return written

    def _note_event_keys(self, feed: MemoryFeed, after: int) -> None:
        """Note the keys of the events after that number, and forget those of deleted deltas."""
        stream, seqs = feed.root or feed.context_id, {row.seq for row in feed.stream.rows}
        for seq in [seq for seq in seqs if seq > after]:
            self.note_key("events", (stream, seq))
        for table, row in tuple(self.key_ids):
            if table == "events" and isinstance(row, tuple) and row[0] == stream and row[1] not in seqs:
                self.forget_key(table, row)

    def _get_or_create_feed(self, batch: EventBatch) -> MemoryFeed:
        """Return the feed of the conversation; its first batch fixes the stream of its events."""
        if batch.context_id not in self.feeds:
            feed = self.feeds[batch.context_id] = MemoryFeed(batch.context_id)
            if batch.lineage is not None:
                feed.root, feed.path = batch.lineage.root, batch.lineage.path
                feed.stream = self.feeds.setdefault(feed.root, MemoryFeed(feed.root)).stream
        return self.feeds[batch.context_id]

    def _write_turn(self, turn: TurnRow) -> None:
        name = turn.context_id, turn.task_id
        old_turn = self.all_turns.get(name)
        if old_turn is not None and turn.asked_at < old_turn.asked_at:
            return
        now = self._now()
        created_at = now if old_turn is None else old_turn.created_at
        self.all_turns[name] = replace(turn, messages=(), created_at=created_at, updated_at=now)
        self.note_key("turns", name)
        for message_id in turn.messages:
            self.sent.setdefault((turn.context_id, message_id), turn.task_id)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def _resolve_future(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)
