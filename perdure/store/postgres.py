"""The store in a PostgreSQL database: shared by all workers, clients and consoles of a cluster."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import asyncpg

from ..errors import MemoryChangedError, StoreError
from ..ports.outbox import WriteOptions
from ..ports.store import AgentRow, Claim, Commit, EventBatch, EventRow, Node, RunRow, TurnRow
from ..ports.times import format_utc_now, timestamp
from ..ports.waits import find_wait_changes
from ..types.events import Event, ModelRetracted, build_worker_lost_retraction, decode_event, encode_event_body
from ..types.run_ids import build_run_id_error
from . import agents, event_log, journal, memory, migrations, nodes, retention, runs, usage
from .failures import encode_failure_changes
from .postgres_connection import PostgresPool, build_closed_error, parse_postgres_url, unescape_text, unescape_value
from .postgres_notify import EventNotifications, get_nudge_channel, watch_nudges
from .schema import shorten_key
from .statements import Statement, load_statements
from .tables import StoreTables

SQL = load_statements("postgres")

T = TypeVar("T")

# ---
# The arguments of the functions that write, see ``migrations/versions/0001_postgresql.sql``.


MEMORY_CHANGED, OPEN_DELTAS, PARENT_MISSING, FOREIGN_RUN = "PD001", "PD002", "PD003", "PD004"
"""SQLSTATEs that the functions raise."""
MAX_UNCERTAIN_BATCHES = 1000
"""Most batches that are remembered because their answer was lost, until they are appended again: more than a worker has
calls at once, each of which may have some."""


class _Write(NamedTuple):
    """The statements of a function that writes. The second is for a write with references, which are three arrays more:
    what they name is renewed before it, and they are noted behind it, under its locks."""

    plain: str
    referring: str


def _build_write(function: str, count: int, now: int = 1) -> _Write:
    """Build the statements; ``now`` is the position of the function's argument ``p_now``.

    Built, not in a file: up to 68 arguments are counted, and named in the function's definition alone.
    """
    arguments = [f"${n}" for n in range(1, count + 1)]
    plain = f"SELECT * FROM {function}({', '.join(arguments)})"  # noqa: S608  # constants
    arguments[now - 1] = f"perdure_renew_0001(${now}, ${count + 1})"
    refer = f"perdure_refer_0001(${count + 1}, ${count + 2}, ${count + 3})"
    return _Write(plain, f"SELECT written.*, {refer} FROM {function}({', '.join(arguments)}) AS written")  # noqa: S608  # constants


APPEND = _build_write("perdure_append_0001", 21)
CLAIM = _build_write("perdure_claim_0001", 23, now=4)
COMMIT = _build_write("perdure_commit_0001", 71)


LostDelta = tuple[int | None, str | None, bytes | None]
"""The retraction of the deltas of a lost worker: the number of the first, its turn, and the body of the event."""


class _EncodedBatch:
    """A batch of events as arguments. ``again``: it was appended before, and the answer was lost."""

    def __init__(self, batch: EventBatch | None, options: WriteOptions, write_id: str, again: bool = False) -> None:
        self.batch = batch
        self.write_id = write_id
        self._again = again
        self.lost: LostDelta = (None, None, None)
        self.references: list[retention.Reference] = []
        """What the write refers to, of events and of all else."""
        if batch is None:
            self.head: list[Any] = [None] * 5
            self._events: list[Any] = [None] * 7 + [options.key_id, None]
            return
        lineage = batch.lineage
        path = (None, None) if lineage is None else (lineage.root, event_log.encode_path(lineage.path))
        self.head = [batch.context_id, batch.token, batch.advances, *path]
        events = [new.event for new in batch.events]
        self._events = [
            [event.type for event in events],
            [event.task_id for event in events],
            [shorten_key(new.key) for new in batch.events],
            [encode_event_body(event) for event in events],
            _encode_wait_changes(batch, events),
            encode_failure_changes(batch, events),
            [str(value) for pair in options.find_targets(events) for value in pair],
            options.key_id,
            _choose_marked_event(batch),
        ]
        targets = {target for body in self._events[3] for target in retention.find_blob_references(body)}
        self.references = [retention.Reference(target, context_id=batch.context_id) for target in targets]

    def build_tail(self, is_repeated: bool) -> list[Any]:
        """Return the arguments after those of ``head``."""
        return [*self._events, self.write_id, is_repeated or self._again, *self.lost]

    def encode_references(self) -> list[list[str | None]]:
        """Return what is referred to, by columns; empty if nothing is."""
        return [list(column) for column in zip(*sorted(set(self.references), key=str), strict=True)]


def _encode_wait_changes(batch: EventBatch, events: Sequence[Event]) -> list[str | None]:
    """Return the token of the writer's activity, and after it the fields of each change, the position from 1; empty
    without a change."""
    changes = find_wait_changes(batch.context_id, events, batch.lineage)
    if not changes:
        return []
    encoded: list[str | None] = [batch.token or batch.scheduled, batch.agent]
    for position, *values in changes:
        encoded += [str(position + 1), *(repr(value) if isinstance(value, float) else value for value in values)]
    return encoded


def _choose_marked_event(batch: EventBatch) -> int:
    """Return the index, from 1, of the event that marks the batch as written; 0 if its keys do so.

    One that is stored for certain and without a key: a retraction may be dropped, and a reply deletes the deltas before
    it.
    """
    marked = 0
    for index, new in enumerate(batch.events, 1):
        if new.event.type != "model.retracted" and (
            new.key is None or (new.event.type == "model.delta" and not marked)
        ):
            marked = index
    return marked


def _encode_commit(commit: Commit, now: str) -> list[Any]:
    """Return the arguments of the commit before those of its events."""
    blobs = [blob for _, blob in sorted({blob.hash: blob for blob in commit.blobs}.items())]
    nodes = [node for _, node in sorted({node.hash: node for node in commit.nodes}.items())]
    outcome, run, turn = commit.outcome, commit.run, commit.turn
    last_writes = {(write.namespace, write.key): write for write in commit.memory}
    memory = [last_writes[name] for name in sorted(last_writes)]
    return [
        now,
        [blob.hash for blob in blobs],
        [blob.body for blob in blobs],
        [node.hash for node in nodes],
        [node.parent for node in nodes],
        [node.body for node in nodes],
        *((None,) * 3 if outcome is None else (outcome.key, outcome.kind, outcome.body)),
        *(
            (None,) * 13
            if run is None
            else (
                *(run.context_id, run.agent, run.scope, run.head, run.status, run.iterations, run.result),
                *(run.asked_at, run.tenant, run.user, run.first_message, run.error_type, run.error),
            )
        ),
        *(
            (None,) * 7
            if turn is None
            else (
                *(turn.context_id, turn.task_id, turn.status, turn.head, turn.result, turn.asked_at),
                sorted({shorten_key(message_id) or "" for message_id in turn.messages}),
            )
        ),
        *((None,) * 18 if commit.usage is None else usage.read_usage_values(commit.usage)),
        [write.namespace for write in memory],
        [write.key for write in memory],
        [write.value for write in memory],
        [write.checked for write in memory],
        [write.before for write in memory],
    ]


# ---
# The store.


MAX_SEQ = 2**63 - 1


class PostgresStore(StoreTables):
    """A ``Store`` in a PostgreSQL database; see :func:`.postgres_connection.parse_postgres_url` for the URL.

    Every write is one statement, so one round trip. Outcomes, claims and events whose writing has begun are completed,
    also when their caller is cancelled. The connections belong to the event loop that used the store first, as long as
    it runs; calls from other event loops are run there.
    """

    def __init__(self, url: str, *, now: Callable[[], str] = format_utc_now) -> None:
        self._address = parse_postgres_url(url)
        self.place = self._address.place
        self.store_id = ""
        self.write_options = WriteOptions()
        self._now = now
        self._is_open = False
        self._home: asyncio.AbstractEventLoop | None = None
        self._home_process = os.getpid()
        self._binding = threading.Lock()
        self._pool = PostgresPool(self._address)
        self._opening = asyncio.Lock()
        self._notifications: EventNotifications | None = None
        self._writes: set[asyncio.Task[Any]] = set()
        self._uncertain: OrderedDict[int, tuple[EventBatch, str]] = OrderedDict()
        """Batches whose answer was lost, by their identity, with the ids under which they may have been written."""

    # --- opening and closing

    async def open(self, *, create: bool = True) -> None:
        """See :class:`perdure.ports.store.Store`."""
        self._is_open = True
        try:
            await self._run_at_home(self._open(create))
        except BaseException:
            if not self.store_id:
                await self.close()
            raise

    async def _open(self, create: bool) -> None:
        async with self._opening:
            if self.store_id:
                return
            store_id = await self._read_store_id()
            if not store_id and create:
                migration = await asyncio.to_thread(import_module, f"{__package__}.postgres_migration")
                await migration.migrate_postgres(self._address, uuid.uuid4().hex, self._now())
                store_id = await self._read_store_id()
            self.store_id = self._pool.store_id = store_id

    async def _read_store_id(self) -> str:
        """Return the id of the store; "" if there is none, or its schema is to be upgraded."""
        try:
            rows = await self._pool.fetch(SQL.read_store)
        except StoreError as error:
            if isinstance(error.__cause__, asyncpg.UndefinedTableError):
                return ""
            raise
        version, usable_from, store_id, isolation = rows[0] if rows else ("", None, None, "read committed")
        if isolation != "read committed":  # the functions that write see what others have committed meanwhile
            raise StoreError(
                f"the store {self.place} has transaction isolation {isolation!r}, and perdure needs 'read committed'",
                hint="Set default_transaction_isolation of the database, or of perdure's user, to 'read committed'.",
            )
        return str(store_id or "") if migrations.is_current_version(version, usable_from) else ""

    async def close(self) -> None:
        """Finish the writes that have begun, and close the connections. ``open`` may follow."""
        if self._find_home() is not None:
            await self._run_at_home(self._close(), opens=False)
        self._is_open = False
        self.store_id = self._pool.store_id = ""

    async def _close(self) -> None:
        self._is_open = False
        while self._writes:
            await asyncio.wait(self._writes)
        if self._notifications is not None:
            await self._notifications.close(build_closed_error(self._address))
            self._notifications = None
        self.store_id = self._pool.store_id = ""
        await self._pool.close()
        self._home = None

    def _check_open(self) -> None:
        if not self._is_open:
            raise build_closed_error(self._address)

    # --- the event loop of the connections

    async def _run_at_home(self, work: Coroutine[Any, Any, T], *, opens: bool = True) -> T:
        """Run ``work`` on the event loop of the connections."""
        if opens and not self._is_open:
            work.close()
            self._check_open()
        home = self._get_home()
        if home is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))

    def _find_home(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of the connections, if it runs. In a forked process it only seems to."""
        home = self._home
        return home if home is not None and home.is_running() and self._home_process == os.getpid() else None

    def _get_home(self) -> asyncio.AbstractEventLoop:
        with self._binding:
            home = self._find_home()
            if home is None:
                # None yet, or its program has ended: connections cannot move to another event loop.
                home = self._home = asyncio.get_running_loop()
                self._home_process = os.getpid()
                self._opening, self._writes = asyncio.Lock(), set()
                self._pool, self._notifications = PostgresPool(self._address), None
                self._pool.store_id = self.store_id
            return home

    async def _fetch(self, statement: Statement | str, **values: Any) -> list[Any]:
        return await self._run_at_home(self._read(statement, values))

    async def _read(self, statement: Statement | str, values: dict[str, Any]) -> list[Any]:
        """Run a read. If there is no store yet, it finds nothing."""
        if not self.store_id:
            self._check_open()
            await self._open(create=False)
            if not self.store_id:
                return []
        return await self._pool.fetch(statement, **values)

    async def _write(self, write: _Write, head: list[Any], events: _EncodedBatch) -> Any:
        return await self._run_at_home(self._finish_write(write, head, events))

    async def _finish_write(self, write: _Write, head: list[Any], events: _EncodedBatch) -> Any:
        """Write, to the end also if the caller is cancelled: what was paid must be recorded."""
        writing = asyncio.create_task(self._call(write, head, events))
        self._writes.add(writing)
        writing.add_done_callback(self._forget_write)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._note_uncertain(events)
            raise

    def _forget_write(self, writing: asyncio.Task[Any]) -> None:
        self._writes.discard(writing)
        if not writing.cancelled():
            writing.exception()  # marks it as retrieved, also if the caller stopped waiting

    # --- writing

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """See :class:`perdure.ports.store.Journal`."""
        head = [key, owner, again, self._now()]
        row = await self._write(CLAIM, head, self._encode_batch(events))
        starts = row["starts_counted"] if row["state"] != "done" else 1
        return Claim(row["state"], row["recorded"], starts, row["begun_by"])

    async def release_claim(self, key: str, owner: str) -> bool:
        """See :class:`perdure.ports.store.Journal`."""
        return bool(await self._change_rows(journal.SQL.release_claim, key=key, owner=owner))

    async def commit(self, commit: Commit) -> bytes | None:
        """See :class:`perdure.ports.store.Journal`."""
        head = _encode_commit(commit, self._now())
        batch = self._encode_batch(commit.events)
        batch.references += retention.find_references(commit)
        row = await self._write(COMMIT, head, batch)
        recorded: bytes | None = row["recorded"]
        return recorded if recorded is not None or commit.outcome is None else commit.outcome.body

    async def append(self, batch: EventBatch) -> bool:
        """See :class:`perdure.ports.store.EventLog`."""
        encoded = self._encode_batch(batch)
        encoded.head.insert(3, False)
        row = await self._write(APPEND, [self._now()], encoded)
        return bool(row["written"])

    async def _run_step(self, make_step: Callable[[], retention.Step[T]], *, write: bool = False) -> T:
        return await self._run_at_home(self._run_step_at_home(make_step, write))

    async def _run_step_at_home(self, make_step: Callable[[], retention.Step[T]], write: bool) -> T:
        await self._check_made()
        return await self._pool.transact(make_step, write=write)

    def _encode_batch(self, batch: EventBatch | None) -> _EncodedBatch:
        """Encode ``batch``, under the id of its last try if the answer to that was lost."""
        uncertain = self._uncertain.pop(id(batch), None)
        if uncertain is not None and uncertain[0] is batch:
            return _EncodedBatch(batch, self.write_options, uncertain[1], again=True)
        return _EncodedBatch(batch, self.write_options, f"\n{uuid.uuid4().hex}")

    async def _select_rows(self, statement: Statement | str, **values: Any) -> list[Sequence[Any]]:
        return [tuple(map(unescape_value, row)) for row in await self._fetch(statement, **values)]

    async def _change_rows(self, statement: Statement, **values: Any) -> list[Sequence[Any]]:
        rows = await self._run_at_home(self._change(statement, values))
        return [tuple(map(unescape_value, row)) for row in rows]

    async def _change(self, statement: Statement, values: dict[str, Any]) -> list[Any]:
        await self._check_made()
        return await self._pool.fetch(statement, **values)

    async def _read_clock(self) -> str:
        """See :class:`.schema.Tables`: machines may differ by more than a lease."""
        if self._now is not format_utc_now:  # a test's
            return self._now()
        rows = await self._select_rows(SQL.read_clock)
        return timestamp(rows[0][0]) if rows else self._now()

    async def _check_made(self) -> None:
        """Raise ``StoreError`` if there is no store yet."""
        if self.store_id:
            return
        self._check_open()
        await self._open(create=False)
        if not self.store_id:
            raise StoreError(
                f"there is no store at {self.place} yet",
                hint="Workers make it when they start; or restore its database.",
            )

    async def _call(self, write: _Write, head: list[Any], events: _EncodedBatch) -> Any:
        """Call a function that writes, and notify the followers of its events."""
        await self._check_made()
        try:
            row = await self._call_despite_open_deltas(write, head, events)
        except StoreError as error:
            if _get_sqlstate(error) == MEMORY_CHANGED:
                raise _build_memory_error(error, head) from None
            if _get_sqlstate(error) == FOREIGN_RUN:
                raise build_run_id_error() from None
            if _get_sqlstate(error) == PARENT_MISSING:
                name = error.__cause__.detail  # type: ignore[union-attr]  # asyncpg's error
                raise retention.build_missing_parent_error(unescape_text(name)) from None
            self._note_uncertain(events)
            raise
        if events.batch is not None and row["stream"] is not None:
            seq = row["last_seq"]
            self._get_notifications().notify_write({unescape_text(row["stream"]): seq, events.batch.context_id: seq})
        return row

    def _note_uncertain(self, events: _EncodedBatch) -> None:
        """Note that whether the batch is written is unknown to its caller, who may append it again."""
        if events.batch is not None:
            self._uncertain[id(events.batch)] = events.batch, events.write_id
            while len(self._uncertain) > MAX_UNCERTAIN_BATCHES:
                self._uncertain.popitem(last=False)

    async def record_agents(self, agents: Sequence[AgentRow]) -> None:
        """See :class:`perdure.ports.store.AgentRegistry`."""
        await self._run_at_home(self._record_agents({agent.hash: agent for agent in agents}))

    async def _record_agents(self, agents: dict[str, AgentRow]) -> None:
        await self._check_made()
        rows = [agents[name] for name in sorted(agents)]
        columns = {"hashes": [row.hash for row in rows], "names": [row.name for row in rows]}
        await self._pool.fetch(SQL.write_agents, now=self._now(), **columns, bodies=[row.body for row in rows])

    async def _call_despite_open_deltas(self, write: _Write, head: list[Any], events: _EncodedBatch) -> Any:
        references = events.encode_references()

        def build_arguments(is_repeated: bool) -> list[Any]:
            return [*head, *events.head, *events.build_tail(is_repeated), *references]

        while True:
            try:
                return await self._pool.call(write.referring if references else write.plain, build_arguments)
            except StoreError as error:
                if _get_sqlstate(error) != OPEN_DELTAS or events.batch is None:
                    raise
                seq, _, stream = error.__cause__.detail.partition(" ")  # type: ignore[union-attr]  # asyncpg's error
                events.lost = await self._build_lost_retraction(
                    events.batch.context_id, unescape_text(stream), int(seq)
                )

    async def _build_lost_retraction(self, context_id: str, stream: str, seq: int) -> LostDelta:
        """Build the retraction of the deltas from that one on."""
        retraction = ModelRetracted(at=self._now(), reason="WorkerLost")
        # The row may be gone: completed meanwhile, which changes the number, or removed by hand.
        for task_id, type_, body in await self._pool.fetch(event_log.SQL.get_event, stream=stream, seq=seq):
            delta = decode_event(context_id, seq, task_id, type_, body)
            assert delta is not None, "a delta is an event that every perdure knows"
            retraction = build_worker_lost_retraction(delta, retraction.at)
        return seq, retraction.task_id, encode_event_body(retraction)

    # --- reading

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.Journal`."""
        rows = await self._fetch(journal.SQL.find_outcomes, keys=list(keys)) if keys else []
        return {unescape_text(key): outcome for key, outcome in rows if outcome is not None}

    async def read_nodes(self, head: str, *, until: Sequence[str] = ()) -> list[Node]:
        """See :class:`perdure.ports.store.Transcripts`."""
        if head in until:
            return []
        return nodes.order_chain(await self._fetch(nodes.SQL.read_chain, head=head, until=list(until)), head, until)

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.Transcripts`."""
        return dict(await self._fetch(nodes.SQL.read_blobs, keys=list(hashes))) if hashes else {}

    async def get_run(self, context_id: str) -> RunRow | None:
        """See :class:`perdure.ports.store.Runs`."""
        rows = await self._fetch(runs.SQL.get_run, context_id=context_id)
        return RunRow(*map(unescape_value, rows[0])) if rows else None

    async def list_agents(self, name: str | None = None) -> list[AgentRow]:
        """See :class:`perdure.ports.store.AgentRegistry`."""
        return [AgentRow(*map(unescape_value, row)) for row in await self._fetch(agents.SQL.list_agents, name=name)]

    async def list_agent_names(self) -> list[str]:
        """See :class:`perdure.ports.store.AgentRegistry`."""
        return [unescape_value(name) for (name,) in await self._fetch(agents.SQL.list_agent_names)]

    async def get_turn(self, context_id: str, task_id: str) -> TurnRow | None:
        """See :class:`perdure.ports.store.Turns`."""
        rows = await self._fetch(runs.SQL.get_turn, context_id=context_id, task_id=task_id)
        if not rows:
            return None
        status, head, result, asked_at = rows[0]
        return TurnRow(context_id, task_id, status, head, result, asked_at=asked_at)

    async def find_message_turn(self, context_id: str, message_id: str) -> str | None:
        """See :class:`perdure.ports.store.Turns`."""
        message_key = shorten_key(message_id)
        rows = await self._fetch(runs.SQL.find_message_turn, context_id=context_id, message_id=message_key)
        return unescape_text(rows[0][0]) if rows else None

    async def recall(self, namespace: str, key: str) -> bytes | None:
        """See :class:`perdure.ports.store.SharedMemory`."""
        rows = await self._fetch(memory.SQL.recall, namespace=namespace, key=key)
        return rows[0][0] if rows else None

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.SharedMemory`."""
        end = memory.find_prefix_end(prefix)
        rows = await self._fetch(memory.SQL.recall_all, namespace=namespace, prefix=prefix, prefix_end=end, limit=limit)
        return {unescape_text(key): value for key, value in rows}

    # --- events

    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """See :class:`perdure.ports.store.EventLog`."""
        rows = await self._read_page(context_id, after, limit, event_log.build_scope(children=children))
        depth = 0
        if not rows:  # it may be in another run's stream: then it has no rows under its own id
            root, history = (await self._read_feed_roots([context_id])).get(context_id, (None, None))
            if root is None or history is None:
                return []
            scope = event_log.build_scope(context_id, children=children)
            rows = await self._read_page(root, after, limit, scope)
            depth = len(history.last_path)
        histories = await self._read_feed_roots(event_log.find_runs_below(rows, context_id))
        return event_log.add_run_paths(rows, context_id, depth, histories)

    async def _read_page(self, stream: str, after: int, limit: int, scope: dict[str, str | None]) -> list[EventRow]:
        page = {"stream": stream, "after": min(after, MAX_SEQ), "limit": limit, "page_bytes": event_log.PAGE_BYTES}
        rows = await self._fetch(SQL.read_page, **page, **scope)
        unescaped = (
            (seq, task_id and unescape_text(task_id), type_, body, spans, child and unescape_text(child))
            for seq, task_id, type_, body, spans, child in rows
        )
        return event_log.parse_event_rows(unescaped, event_log.PAGE_BYTES)

    async def _read_feed_roots(self, context_ids: Iterable[str]) -> dict[str, tuple[str | None, event_log.PathHistory]]:
        keys = list(context_ids)
        rows = await self._fetch(event_log.SQL.list_feed_roots, keys=keys) if keys else []
        return {
            unescape_text(context_id): (root and unescape_text(root), event_log.PathHistory(path))
            for context_id, root, path in rows
        }

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """See :class:`perdure.ports.store.EventLog`."""
        return await self._run_at_home(self._wait_for_event(context_id, after, timeout))

    async def _wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        return await self._get_notifications().wait_for_event(context_id, after, timeout)

    async def nudge(self, run_id: str) -> None:
        """See :class:`perdure.ports.nudges.Nudges`. By any connection: PgBouncer passes it on in every mode."""
        if channel := self._get_channel():
            await self._fetch(SQL.nudge, channel=get_nudge_channel(channel), payload=run_id)

    def watch_nudges(self, on_nudge: Callable[[str], object]) -> Callable[[], None]:
        """See :class:`perdure.ports.nudges.Nudges`."""
        home = self._get_home()
        return watch_nudges(home, self._get_notifications, lambda run_id: on_nudge(unescape_text(run_id)))

    def _get_notifications(self) -> EventNotifications:
        if self._notifications is None:
            self._notifications = EventNotifications(self._address, self._get_channel, self._read_streams)
        return self._notifications

    def _get_channel(self) -> str:
        """Return the name of the store's notifications: a database may have several stores, by schema."""
        return f"perdure_{self.store_id}" if self.store_id else ""

    async def _read_streams(self, context_ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        rows = await self._read(event_log.SQL.list_latest_seqs, {"keys": list(context_ids)})
        return {unescape_text(context_id): (unescape_text(stream), seq) for context_id, seq, stream in rows}


def _get_sqlstate(error: StoreError) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def _build_memory_error(error: StoreError, head: Sequence[Any]) -> MemoryChangedError:
    namespaces, keys, index = head[-5], head[-4], int(error.__cause__.detail) - 1  # type: ignore[union-attr]  # asyncpg's
    return MemoryChangedError(f"memory {namespaces[index]!r}, key {keys[index]!r} was changed by another call")
