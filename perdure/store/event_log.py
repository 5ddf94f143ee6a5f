"""Writes and reads events in the database: numbers, fencing, retraction, pruning, and pages of events with their paths.

See :class:`perdure.ports.store.EventBatch` for the semantics. A child run takes its numbers from the root run, and its
rows are in the root's stream, so one number is the position of a reader in a whole tree. A child locks its own row
first, and the root's last, so no deadlock is possible.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import events
from ..ports.outbox import WriteOptions
from ..ports.store import EventBatch, EventRow, NewEvent, build_spans
from ..ports.waits import WaitChange, find_wait_changes
from ..ports.webhooks import WEBHOOK_TARGET
from ..types.run_ids import build_run_id_error
from ..types.subagents import Lineage, PathStep
from . import retention
from .failures import FailureWriter
from .retention import Reference, find_blob_references, write_references
from .schema import Database, Rows, as_bytes, run_for_keys, shorten_key
from .statements import Statement, load_statements

SQL = load_statements("event_log")

# ---
# The stored paths to a run: one that is started again, by another call under its id, then has another path.


RunPath = tuple[PathStep, ...]


class PathHistory:
    """The paths of one run, each with the first number of its events on that path.

    Stored as JSON: the steps of a single path, as nearly all runs have, or pairs of first number and steps.
    """

    def __init__(self, stored: str | None) -> None:
        pairs = json.loads(stored) if stored else []
        if not pairs or isinstance(pairs[0], dict):
            pairs = [(0, pairs)]
        self._first_seqs: list[int] = [first for first, _ in pairs]
        self._paths: list[RunPath] = [tuple(map(PathStep.model_validate, steps)) for _, steps in pairs]

    def get_path(self, seq: int) -> RunPath:
        """Return the path of the event of that number."""
        return self._paths[max(0, bisect_right(self._first_seqs, seq) - 1)]

    @property
    def last_path(self) -> RunPath:
        """The present path. All have the same number of steps from the root run: they are in the run's id."""
        return self._paths[-1]

    def encode_with(self, path: RunPath, seq: int) -> str:
        """Encode the history with ``path`` from number ``seq`` on."""
        pairs = [*zip(self._first_seqs, self._paths, strict=True), (seq, path)]
        return json.dumps([(first, _dump_steps(steps)) for first, steps in pairs], ensure_ascii=False)


def encode_path(path: RunPath) -> str:
    """Encode the history of a run with a single path."""
    return json.dumps(_dump_steps(path), ensure_ascii=False)


def _dump_steps(path: RunPath) -> list[dict[str, str]]:
    return [step.model_dump(exclude_none=True) for step in path]


# ---
# Writing a batch.


@dataclass(slots=True)
class _Feed:
    """The feed row of a conversation while a batch is written, in the order of the columns."""

    context_id: str
    seq: int
    """The last assigned number, by any run of the stream."""
    token: str
    open: int
    """Number of the first delta that is neither complete nor retracted; 0 without."""
    first_delta: int
    """Number of the first delta in the table; 0 without."""
    root: str | None
    """The root run, if the conversation is in its stream."""
    path: str | None
    """The paths to it (:class:`PathHistory`)."""
    failing: int
    """1 while the run may have failing calls, else 0."""
    today: str = ""
    """The day of the batch; not a column, nor are the next two."""
    stream: str = field(init=False)
    """The conversation that assigns the numbers."""
    child: str | None = field(init=False)
    """The id of the run, if it is in another run's stream."""

    def __post_init__(self) -> None:
        self.stream = self.root or self.context_id
        self.child = None if self.root is None else self.context_id

    @property
    def state(self) -> dict[str, object]:
        """What the row says of this run alone."""
        deltas = {"open": self.open, "first_delta": self.first_delta}
        return {"token": self.token, **deltas, "path": self.path, "failing": self.failing}

    def qualify_key(self, key: str | None) -> str | None:
        """Return the key as stored: keys are the run's own."""
        key = shorten_key(key)
        return key if key is None or self.child is None else f"{self.child}\n{key}"


def append_batch(
    database: Database, batch: EventBatch, now: str, options: WriteOptions, *, recorded: bool = False
) -> bool:
    """Write ``batch``; False if it is too late, which a batch of a ``recorded`` outcome never is."""
    feed = _lock_feed(database, batch.context_id, batch.lineage)
    if batch.token and batch.token < feed.token and not recorded:
        return False
    feed.today = now[:10]
    own_seq = feed.seq
    if feed.root is not None:
        feed.seq = _lock_feed(database, feed.root).seq
    old_state, old_seq = feed.state, feed.seq
    _set_path(feed, batch.lineage)
    is_of_lost_worker = "" != (batch.token or batch.scheduled) < feed.token
    if batch.token > feed.token:
        ends_deltas = any(new.event.type in ("model.completed", "model.retracted") for new in batch.events)
        if feed.open and not (recorded and ends_deltas):
            _insert_event(database, feed, _build_lost_retraction(database, feed, now), None, options.key_id)
        if batch.advances:
            feed.token = batch.token
    known_keys = _read_known_keys(database, feed, batch)
    events = [new.event for new in batch.events]
    changes = [] if is_of_lost_worker else find_wait_changes(batch.context_id, events, batch.lineage)
    failures = FailureWriter(database, feed, batch, is_of_lost_worker=is_of_lost_worker)
    targets = options.find_targets(events)
    for index, new in enumerate(batch.events):
        key = feed.qualify_key(new.key)
        if key in known_keys or not failures.confirm_event(index):
            continue
        if not _insert_event(database, feed, new, key, options.key_id):
            continue
        due = [change for change in changes if change.position == index] if changes else []
        if due:
            _change_waits(database, feed, batch.agent, due)
        failures.note_event(index, new.event.type, due)
        for target in [target for position, target in targets if position == index]:
            row = {"stream": feed.stream, "seq": feed.seq, "target": target, "context_id": feed.context_id}
            lease = {"taken": 0, "owner": "", "leased_until": ""}
            insert = SQL.insert_webhook_outbox if target == WEBHOOK_TARGET else SQL.insert_outbox
            database.run(insert, **row, type=new.event.type, created_at=now, **lease)
        if key is not None and new.event.type != "model.delta":
            known_keys.add(key)
    state = feed.state
    if state != old_state:
        database.run(SQL.update_feed, context_id=feed.context_id, seq=own_seq if feed.root else feed.seq, **state)
    if feed.seq != old_seq and (feed.root or state == old_state):
        database.run(SQL.update_feed_seq, context_id=feed.stream, seq=feed.seq)
    return True


def _lock_feed(database: Database, context_id: str, lineage: Lineage | None = None) -> _Feed:
    """Create the feed as given, or lock the existing one."""
    root, path = (None, None) if lineage is None else (lineage.root, encode_path(lineage.path))
    empty = {"seq": 0, "token": "", "open": 0, "first_delta": 0, "failing": 0}
    [row] = database.run(SQL.lock_feed, context_id=context_id, **empty, root=root, path=path)
    feed = _Feed(*row)
    if root is not None and feed.root != root:
        raise build_run_id_error()
    if feed.seq == 0 and not feed.token:  # it may be new
        check_deleted(database, context_id)
    return feed


def check_deleted(database: Database, context_id: str) -> None:
    """Raise ``RunIdError`` for an id that was deleted for good."""
    if list(run_for_keys(database, retention.SQL.find_deleted_runs, [context_id])):
        raise build_run_id_error()


def _set_path(feed: _Feed, lineage: Lineage | None) -> None:
    """Note a new path: a client that reopens a conversation may start the same child ids again."""
    if lineage is None or encode_path(lineage.path) == feed.path:
        return
    history = PathHistory(feed.path)
    if history.last_path != lineage.path:
        feed.path = history.encode_with(lineage.path, feed.seq + 1)


def _read_known_keys(database: Database, feed: _Feed, batch: EventBatch) -> set[str | None]:
    """Read which keys of the batch exist, for events that end deltas, and for deltas, whose keys are not stored.

    Other keys are rejected by the index. The lock is held, so no writer adds one meanwhile.
    """
    looked_up = ("model.delta", "model.completed", "model.retracted")
    keys = [
        key for new in batch.events if new.event.type in looked_up and (key := feed.qualify_key(new.key)) is not None
    ]
    if not keys:
        return set()
    return {key for (key,) in run_for_keys(database, SQL.find_event_keys, keys, stream=feed.stream)}


def _change_waits(database: Database, feed: _Feed, agent: str, changes: Iterable[WaitChange]) -> None:
    """Change the waits for the last event of the feed. The feed's lock orders the changes of a run."""
    for change in changes:
        row = {"context_id": change.context_id, "call_id": change.call_id}
        if change.call_id is None:
            database.run(SQL.delete_waits, context_id=change.context_id)
        elif change.kind is None:
            database.run(SQL.delete_wait, **row)
        else:
            row |= {"root": feed.stream, "agent": agent, "kind": change.kind, "tool": change.tool, "hash": change.hash}
            row |= {"created_at": change.created_at, "expires_at": change.expires_at}
            database.run(SQL.write_wait, **row, summary=change.summary, amount=change.amount, seq=feed.seq)


def _insert_event(database: Database, feed: _Feed, new: NewEvent, key: str | None, key_id: str | None) -> bool:
    """Insert the event with its number and spans; false if it would retract nothing, or its ``key`` exists."""
    event = new.event
    spans: tuple[events.Span, ...] = ()
    if event.type == "model.retracted":
        spans, feed.open = _read_delta_spans(database, feed, feed.open), 0
        if not spans:
            return False
    elif event.type == "model.completed":
        spans = _read_delta_spans(database, feed, feed.first_delta)
        if spans:
            _run_on_deltas(database, SQL.delete_deltas, feed, feed.first_delta)
        feed.open = feed.first_delta = 0
    body = events.encode_event_body(event)
    inserted = database.run(
        SQL.insert_event,
        context_id=feed.stream,
        seq=feed.seq + 1,
        task_id=event.task_id,
        type=event.type,
        key=key if event.type != "model.delta" else None,
        body=body,
        spans=json.dumps(spans) if spans else None,
        child=feed.child,
        key_id=key_id,
    )
    if inserted.rowcount == 0:
        return False
    if targets := find_blob_references(body):
        references = [Reference(target, context_id=feed.context_id) for target in sorted(targets)]
        write_references(database, references, feed.today)
    feed.seq += 1
    if event.type == "model.delta":
        feed.open = feed.open or feed.seq
        feed.first_delta = feed.first_delta or feed.seq
    return True


def _read_delta_spans(database: Database, feed: _Feed, first: int) -> tuple[events.Span, ...]:
    """Read the run's deltas from number ``first`` on, as first and last of each gapless range."""
    return build_spans(seq for (seq,) in _run_on_deltas(database, SQL.list_deltas, feed, first)) if first else ()


def _run_on_deltas(database: Database, statement: Statement, feed: _Feed, first: int) -> Rows:
    return database.run(statement, stream=feed.stream, first=first, child=feed.child)


def _build_lost_retraction(database: Database, feed: _Feed, now: str) -> NewEvent:
    task_id, type_, body = database.run(SQL.get_event, stream=feed.stream, seq=feed.open).fetchone()
    delta = events.decode_event(feed.context_id, feed.open, task_id, type_, as_bytes(body))
    assert delta is not None, "a delta is an event that every perdure knows"
    return NewEvent(events.build_worker_lost_retraction(delta, now))


# ---
# Reading the events of a conversation and of the runs below it, in one order.


PAGE_BYTES = 4 * 1024 * 1024
"""A page of events ends after the event with which it exceeds this."""


def read_events(
    database: Database,
    context_id: str,
    after: int,
    limit: int,
    page_bytes: int = PAGE_BYTES,
    *,
    children: bool = True,
) -> list[EventRow]:
    """Read the events after number ``after``, in order: at least one if there is any, at most ``limit`` or
    ``page_bytes``."""
    page = {"after": after, "limit": limit}
    scope = build_scope(children=children)
    rows = parse_event_rows(database.run(SQL.read_page, stream=context_id, **page, **scope), page_bytes)
    depth = 0
    if not rows:  # it may be in another run's stream: then it has no rows under its own id
        root, history = _read_feed_roots(database, [context_id]).get(context_id, (None, None))
        if root is None or history is None:
            return []
        scope = build_scope(context_id, children=children)
        rows = parse_event_rows(database.run(SQL.read_page, stream=root, **page, **scope), page_bytes)
        depth = len(history.last_path)
    histories = _read_feed_roots(database, find_runs_below(rows, context_id))
    return add_run_paths(rows, context_id, depth, histories)


def build_scope(child: str | None = None, *, children: bool) -> dict[str, str | None]:
    """Return the values that say which events of a stream are in a page: those of all runs, of its root alone, of the
    run ``child`` with the runs below it, or of that alone."""
    if child is None:
        return {"scope": None if children else "root"}
    if not children:
        return {"scope": "child", "child": child}
    return {"scope": "child_and_below", "child": child, "child_path": f"{child}/", "child_path_end": f"{child}0"}


def read_latest_seqs(database: Database, context_ids: Iterable[str]) -> dict[str, int]:
    """Read the last number in the stream of each conversation that has an event."""
    return {context_id: seq for context_id, seq, _ in run_for_keys(database, SQL.list_latest_seqs, context_ids)}


def parse_event_rows(rows: Iterable[Any], page_bytes: int) -> list[EventRow]:
    """Return the events of ``rows``, until they exceed ``page_bytes``."""
    events: list[EventRow] = []
    size = 0
    for seq, task_id, type_, body, spans, child in rows:
        body_bytes = as_bytes(body)
        span_pairs = () if spans is None else tuple((first, last) for first, last in json.loads(spans))
        events.append(EventRow(seq, task_id, type_, body_bytes, span_pairs, child))
        size += len(body_bytes)
        if size > page_bytes:
            break
    return events


def find_runs_below(rows: Iterable[EventRow], context_id: str) -> set[str]:
    """Return the runs below the conversation whose events are in ``rows``."""
    return {row.child for row in rows if row.child is not None and row.child != context_id}


def add_run_paths(
    rows: list[EventRow], context_id: str, depth: int, histories: Mapping[str, tuple[str | None, PathHistory]]
) -> list[EventRow]:
    """Add to ``rows`` their paths relative to the conversation, which is ``depth`` steps below the stream's root.
    ``histories`` are of the runs below it."""

    def add_path(row: EventRow) -> EventRow:
        if row.child is None:
            return row
        if row.child == context_id or row.child not in histories:
            return replace(row, child=None)
        return replace(row, path=histories[row.child][1].get_path(row.seq)[depth:])

    return [add_path(row) for row in rows]


def _read_feed_roots(database: Database, context_ids: Iterable[str]) -> dict[str, tuple[str | None, PathHistory]]:
    """Read for each conversation with events the root of its stream and its paths from there."""
    return {
        context_id: (root, PathHistory(path))
        for context_id, root, path in run_for_keys(database, SQL.list_feed_roots, context_ids)
    }
