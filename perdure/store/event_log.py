"""Writes and reads events in the database: numbers, fencing, retraction, pruning, and pages of events with their paths.

See :class:`perdure.ports.EventBatch` for the semantics. A child run takes its numbers from the root run. It locks its
own row first, and the root's last, so no deadlock is possible.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Dialect, bindparam
from sqlalchemy.sql.dml import Insert, ReturningInsert

from ..ports import EventBatch, EventRow, NewEvent
from ..types.events import Span, build_worker_lost_retraction, decode_event, encode_event_body
from ..types.subagents import Lineage, PathStep
from .schema import Database, KeyListStatement, Statement, build_insert, events_table, feeds_table

# ---
# The stored paths to a run: one that is started again, by another call under its id, then has another path.


RunPath = tuple[PathStep, ...]


class PathHistory:
    """The paths of one run, each with the first number of its events on that path."""

    def __init__(self, kept: str | None) -> None:
        read = json.loads(kept) if kept else []
        pairs: list[Any] = read if read and isinstance(read[0], list) else [[0, read]]
        self._first_seqs = [first for first, _ in pairs]
        self._step_lists = [steps for _, steps in pairs]
        self._parsed_paths: dict[int, RunPath] = {}

    def get_path(self, seq: int) -> RunPath:
        """Return the path of the event of that number."""
        which = max(0, bisect_right(self._first_seqs, seq) - 1)
        if which not in self._parsed_paths:
            self._parsed_paths[which] = tuple(PathStep.model_validate(step) for step in self._step_lists[which])
        return self._parsed_paths[which]

    @property
    def depth(self) -> int:
        """Number of steps from the root run, the same on every path: they are in the run's id."""
        return len(self._step_lists[-1])

    def encode_next(self, lineage: Lineage, seq: int) -> str | None:
        """Encode the history with ``lineage`` as the path from number ``seq`` on; None if it is the last path
        already."""
        steps = _dump_path_steps(lineage)
        if self._step_lists[-1] == steps:
            return None
        pairs = [*zip(self._first_seqs, self._step_lists, strict=True), (seq, steps)]
        return json.dumps(pairs, ensure_ascii=False)


def encode_first_path(lineage: Lineage) -> str:
    """Encode the history of a run with a single path, as nearly all have."""
    return json.dumps(_dump_path_steps(lineage), ensure_ascii=False)


def _dump_path_steps(lineage: Lineage) -> list[dict[str, str]]:
    return [step.model_dump(exclude_none=True) for step in lineage.path]


_FEED_STATE_COLUMNS = ("seq", "token", "open", "first_delta")


def _build_reserve_numbers(dialect: Dialect) -> ReturningInsert[tuple[int, str, int, int, str | None, str | None]]:
    """Reserve numbers, and with them the row's lock until the transaction ends: their order is that of the commits.

    For a run that takes its numbers from another one, the row is locked and no numbers are taken.
    """
    taken = sa.case((feeds_table.c.root.is_(None), bindparam("count", type_=sa.Integer)), else_=0)
    new_row: Insert = build_insert(dialect, feeds_table).on_conflict_do_update(
        index_elements=["context_id"], set_={"seq": feeds_table.c.seq + taken}
    )
    return new_row.returning(*[feeds_table.c[name] for name in (*_FEED_STATE_COLUMNS, "root", "path")])


_IS_IN_STREAM = events_table.c.context_id == bindparam("stream")
_IS_DELTA = (
    _IS_IN_STREAM,
    events_table.c.seq >= bindparam("first", type_=sa.Integer),
    events_table.c.type == "model.delta",
)


def _build_run_statements(build: Callable[..., sa.Select[Any] | sa.Delete]) -> dict[bool, Statement]:
    """Build the statement for the stream's own run (False), and for a run below it (True)."""
    mine = {False: events_table.c.child.is_(None), True: events_table.c.child == bindparam("child")}
    return {below: Statement(partial(build, whose)) for below, whose in mine.items()}


RESERVE_NUMBERS = Statement(_build_reserve_numbers)
UPDATE_FEED = Statement(
    lambda _: (
        sa.update(feeds_table)
        .values({name: bindparam(name) for name in _FEED_STATE_COLUMNS})
        .where(feeds_table.c.context_id == bindparam("of"))
    )
)
UPDATE_FEED_SEQ = Statement(
    lambda _: sa.update(feeds_table).values(seq=bindparam("seq")).where(feeds_table.c.context_id == bindparam("of"))
)
UPDATE_FEED_PATH = Statement(
    lambda _: (
        sa.update(feeds_table).values(path=bindparam("new_path")).where(feeds_table.c.context_id == bindparam("of"))
    )
)
# Only conflicts of keys are ignored: two events of one number would be a bug, and raise.
INSERT_EVENT = Statement(
    lambda dialect: build_insert(dialect, events_table).on_conflict_do_nothing(
        index_elements=["context_id", "key"], index_where=events_table.c.key.is_not(None)
    )
)
SELECT_EVENT_KEYS = KeyListStatement(
    lambda keys: sa.select(events_table.c.key).where(_IS_IN_STREAM, events_table.c.key.in_(keys))
)
SELECT_DELTAS = _build_run_statements(
    lambda whose, _: sa.select(events_table.c.seq).where(*_IS_DELTA, whose).order_by(events_table.c.seq)
)
DELETE_DELTAS = _build_run_statements(lambda whose, _: sa.delete(events_table).where(*_IS_DELTA, whose))
SELECT_EVENT = Statement(
    lambda _: sa.select(*[events_table.c[name] for name in ("task_id", "type", "body")]).where(
        _IS_IN_STREAM, events_table.c.seq == bindparam("seq")
    )
)


class _FeedRow(NamedTuple):
    """The recorded feed row of a conversation."""

    seq: int
    token: str
    open: int
    first_delta: int
    root: str | None
    path: str | None


@dataclass(slots=True)
class _FeedState:
    """The feed row of a conversation while a batch is written, and the stream of its events."""

    context_id: str
    stream: str
    """The conversation that assigns the numbers: this one, or the root run."""
    reserved: tuple[int, str, int, int]
    """The recorded state."""
    seq: int
    """The last assigned number, by any run of the stream."""
    token: str
    open: int
    """Number of the first delta that is neither complete nor retracted; 0 without."""
    first_delta: int
    """Number of the first delta in the table; 0 without."""
    path: str | None
    """The recorded paths to it (``PathHistory``)."""
    child: str | None
    """The id of the run, if it is in another run's stream."""

    def qualify_key(self, key: str | None) -> str | None:
        """Return the key as stored: keys are the run's own."""
        return key if key is None or self.child is None else f"{self.child}\n{key}"


def append_batch(database: Database, batch: EventBatch, now: str, *, recorded: bool = False) -> bool:
    """Write ``batch``; False if it is too late, which a batch of a ``recorded`` outcome never is."""
    feed = _reserve_numbers(database, batch)
    if batch.token and batch.token < feed.token and not recorded:
        _update_feed(database, feed)
        return False
    _record_new_path(database, feed, batch.lineage)
    if batch.token > feed.token:
        if feed.open and not (recorded and _has_delta_ending_event(batch)):
            _insert_event(database, feed, _build_lost_retraction(database, feed, now), None)
        if batch.advances:
            feed.token = batch.token
    known = _read_known_keys(database, feed, batch)
    for new in batch.events:
        key = feed.qualify_key(new.key)
        if key in known or not _insert_event(database, feed, new, key):
            continue
        if key is not None and new.event.type != "model.delta":
            known.add(key)
    _update_feed(database, feed)
    return True


def _reserve_numbers(database: Database, batch: EventBatch) -> _FeedState:
    """Reserve as many numbers as there are events, in the conversation's stream."""
    count = len(batch.events)
    state = _reserve_feed_row(database, batch.context_id, batch.token if batch.advances else "", count, batch.lineage)
    root, seq = state.root, state.seq
    if root is not None:
        seq = _reserve_feed_row(database, root, "", count).seq
    reserved = seq, state.token, state.open, state.first_delta
    stream = root or batch.context_id
    child = None if stream == batch.context_id else batch.context_id
    return _FeedState(batch.context_id, stream, reserved, seq - count, *reserved[1:], state.path, child)


def _record_new_path(database: Database, feed: _FeedState, lineage: Lineage | None) -> None:
    """Record a new path: a client that reopens a conversation may start the same child ids again."""
    if lineage is None or feed.child is None or lineage.root != feed.stream or encode_first_path(lineage) == feed.path:
        return
    if (path := PathHistory(feed.path).encode_next(lineage, feed.seq + 1)) is not None:
        UPDATE_FEED_PATH.run(database, of=feed.context_id, new_path=path)


def _reserve_feed_row(database: Database, of: str, token: str, count: int, lineage: Lineage | None = None) -> _FeedRow:
    """Create the row as given, or reserve numbers in the existing one."""
    path = None if lineage is None else encode_first_path(lineage)
    root = None if lineage is None else lineage.root
    row = {"context_id": of, "seq": count if root is None else 0, "token": token, "open": 0, "first_delta": 0}
    [reserved] = RESERVE_NUMBERS.run(database, **row, root=root, path=path, count=count)
    return _FeedRow(*reserved)


def _has_delta_ending_event(batch: EventBatch) -> bool:
    return any(new.event.type in ("model.completed", "model.retracted") for new in batch.events)


def _update_feed(database: Database, feed: _FeedState) -> None:
    """Correct the reserved state, if it differs from the final one."""
    state = feed.seq, feed.token, feed.open, feed.first_delta
    if feed.child is None:
        if state != feed.reserved:
            UPDATE_FEED.run(database, of=feed.context_id, **dict(zip(_FEED_STATE_COLUMNS, state, strict=True)))
        return
    if state[1:] != feed.reserved[1:]:  # it has no numbers of its own
        UPDATE_FEED.run(database, of=feed.context_id, **dict(zip(_FEED_STATE_COLUMNS, (0, *state[1:]), strict=True)))
    if feed.seq != feed.reserved[0]:
        UPDATE_FEED_SEQ.run(database, of=feed.stream, seq=feed.seq)


def _read_known_keys(database: Database, feed: _FeedState, batch: EventBatch) -> set[str | None]:
    """Read the existing keys of the batch that must be looked up. The lock is held, so no writer adds one meanwhile."""
    keys = [key for new in batch.events if _needs_key_lookup(new) and (key := feed.qualify_key(new.key)) is not None]
    return {key for (key,) in SELECT_EVENT_KEYS.iter_rows(database, keys, stream=feed.stream)} if keys else set()


def _needs_key_lookup(new: NewEvent) -> bool:
    """Whether its key must be looked up first: it ends deltas, or is a delta, whose key is not stored. Others are
    rejected by the index."""
    return new.key is not None and new.event.type in ("model.delta", "model.completed", "model.retracted")


def _insert_event(database: Database, feed: _FeedState, new: NewEvent, key: str | None) -> bool:
    """Insert the event with its number and spans; false if it would retract nothing, or its ``key`` exists."""
    event = new.event
    spans: tuple[Span, ...] = ()
    if event.type == "model.retracted":
        spans, feed.open = _read_delta_spans(database, feed, feed.open), 0
        if not spans:
            return False
    elif event.type == "model.completed":
        spans = _read_delta_spans(database, feed, feed.first_delta)
        if spans:
            DELETE_DELTAS[feed.child is not None].run(database, **_build_delta_parameters(feed, feed.first_delta))
        feed.open = feed.first_delta = 0
    written = INSERT_EVENT.run(
        database,
        context_id=feed.stream,
        seq=feed.seq + 1,
        task_id=event.task_id,
        type=event.type,
        key=key if event.type != "model.delta" else None,
        body=encode_event_body(event),
        spans=json.dumps(spans) if spans else None,
        child=feed.child,
    )
    if written.rowcount == 0:
        return False
    feed.seq += 1
    if event.type == "model.delta":
        feed.open = feed.open or feed.seq
        feed.first_delta = feed.first_delta or feed.seq
    return True


def _read_delta_spans(database: Database, feed: _FeedState, first: int) -> tuple[Span, ...]:
    """Read the run's deltas from number ``first`` on, as first and last of each gapless range."""
    found: list[Span] = []
    rows = SELECT_DELTAS[feed.child is not None].run(database, **_build_delta_parameters(feed, first)) if first else ()
    for (number,) in rows:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def _build_delta_parameters(feed: _FeedState, first: int) -> dict[str, object]:
    return {"stream": feed.stream, "first": first, "child": feed.child}


def _build_lost_retraction(database: Database, feed: _FeedState, now: str) -> NewEvent:
    task_id, type_, body = SELECT_EVENT.run(database, stream=feed.stream, seq=feed.open).fetchone()
    whole = body.encode() if isinstance(body, str) else bytes(body)
    event = decode_event(feed.context_id, feed.open, task_id, type_, whole)
    assert event is not None, "a delta is an event that every perdure knows"
    return NewEvent(build_worker_lost_retraction(event, now))


# ---
# Reading events of a conversation and of the runs below it, in one order.
#
# The rows of a child run are in the stream of the root run, which assigns
# their
# numbers. So a tree is read as one conversation is, and one number is the position of a reader in it.


PAGE_BYTES = 4 * 1024 * 1024
"""A page of events ends after the event with which it exceeds this."""


def _build_select_events(*scope: sa.ColumnElement[bool]) -> Statement:
    query = (
        sa.select(*[events_table.c[name] for name in ("seq", "task_id", "type", "body", "spans", "child")])
        .where(events_table.c.context_id == bindparam("stream"), *scope)
        .where(events_table.c.seq > bindparam("after", type_=sa.Integer))
        .order_by(events_table.c.seq)
        .limit(bindparam("limit", type_=sa.Integer))
    )
    return Statement(lambda _: query)


_IS_OF_CHILD = events_table.c.child == bindparam("child")
# Compared as text, not by LIKE or as a range: an id may contain pattern characters, and sort orders differ.
_IS_BELOW_CHILD = sa.func.substr(events_table.c.child, 1, bindparam("length", type_=sa.Integer)) == bindparam("prefix")
SELECT_STREAM_EVENTS = {False: _build_select_events(events_table.c.child.is_(None)), True: _build_select_events()}
"""For a conversation with its own numbers: without (False) and with (True) the runs below it."""
SELECT_CHILD_EVENTS = {
    False: _build_select_events(_IS_OF_CHILD),
    True: _build_select_events(sa.or_(_IS_OF_CHILD, _IS_BELOW_CHILD)),
}
"""For a run in another run's stream: without (False) and with (True) the runs below it."""
SELECT_FEED_ROOTS = KeyListStatement(
    lambda ids: sa.select(feeds_table.c.context_id, feeds_table.c.root, feeds_table.c.path).where(
        feeds_table.c.context_id.in_(ids)
    )
)
_ROOT_FEEDS = feeds_table.alias("of_root")
SELECT_LATEST_SEQS = KeyListStatement(
    lambda ids: (
        sa.select(feeds_table.c.context_id, sa.func.coalesce(_ROOT_FEEDS.c.seq, feeds_table.c.seq))
        .select_from(feeds_table.outerjoin(_ROOT_FEEDS, _ROOT_FEEDS.c.context_id == feeds_table.c.root))
        .where(feeds_table.c.context_id.in_(ids))
    )
)


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
    found = _parse_event_rows(SELECT_STREAM_EVENTS[children].run(database, stream=context_id, **page), page_bytes)
    depth = 0
    if not found:  # it may be in another run's stream: then it has no rows under its own id
        root, ways = _read_feed_roots(database, [context_id]).get(context_id, (None, None))
        if root is None or ways is None:
            return []
        below = f"{context_id}/"
        scope = {"child": context_id, "prefix": below, "length": len(below)}
        found = _parse_event_rows(SELECT_CHILD_EVENTS[children].run(database, stream=root, **scope, **page), page_bytes)
        depth = ways.depth
    return _add_run_paths(database, found, context_id, depth)


def read_latest_seqs(database: Database, context_ids: Iterable[str]) -> dict[str, int]:
    """Read the last number in the stream of each conversation that has an event."""
    return dict(SELECT_LATEST_SEQS.iter_rows(database, context_ids))


def _parse_event_rows(rows: Iterable[Any], page_bytes: int) -> list[EventRow]:
    found: list[EventRow] = []
    size = 0
    for seq, task_id, type_, body, spans, child in rows:
        whole = body.encode() if isinstance(body, str) else bytes(body)
        read = () if spans is None else tuple((first, last) for first, last in json.loads(spans))
        found.append(EventRow(seq, task_id, type_, whole, read, child))
        size += len(whole)
        if size > page_bytes:
            break
    return found


def _add_run_paths(database: Database, rows: list[EventRow], context_id: str, depth: int) -> list[EventRow]:
    """Add to ``rows`` their paths relative to the conversation, which is ``depth`` steps below the stream's root."""
    below = {row.child for row in rows if row.child is not None and row.child != context_id}
    if not below and not depth:
        return rows
    ways = {child: ways for child, (_, ways) in _read_feed_roots(database, below).items()}
    return [
        EventRow(
            row.seq, row.task_id, row.type, row.body, row.spans, row.child, ways[row.child].get_path(row.seq)[depth:]
        )
        if row.child in ways
        else EventRow(row.seq, row.task_id, row.type, row.body, row.spans)
        for row in rows
    ]


def _read_feed_roots(database: Database, context_ids: Iterable[str]) -> dict[str, tuple[str | None, PathHistory]]:
    """Read for each conversation with events the root of its stream and its paths from there."""
    return {
        context_id: (root, PathHistory(path))
        for context_id, root, path in SELECT_FEED_ROOTS.iter_rows(database, context_ids)
    }
