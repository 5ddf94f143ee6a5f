"""Writing events: numbers, fencing, retraction and pruning. See ``ports.events.Batch`` for what they keep.

A run that a call of another agent has begun takes its numbers from the run at the top. It locks its own row first, and
that of the top last, so nobody waits in a circle.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Dialect, bindparam
from sqlalchemy.sql.dml import Insert, ReturningInsert

from ..ports import Batch, NewEvent
from ..types.events import Span, event_body, lost, read_event
from ..types.lineage import Lineage
from .statement import ByKeys, Database, Statement, insert
from .tables import events_table, feeds
from .ways import Ways, first_way

_STATE = ("seq", "token", "open", "first_delta")


def _reserve(dialect: Dialect) -> ReturningInsert[tuple[int, str, int, int, str | None, str | None]]:
    """Take numbers, and with them the row's lock until the transaction ends: their order is that of the commits.

    The row of a run whose numbers are another one's is locked, and none are taken.
    """
    taken = sa.case((feeds.c.root.is_(None), bindparam("count", type_=sa.Integer)), else_=0)
    new_row: Insert = insert(dialect, feeds).on_conflict_do_update(
        index_elements=["context_id"], set_={"seq": feeds.c.seq + taken}
    )
    return new_row.returning(*[feeds.c[name] for name in (*_STATE, "root", "path")])


_OF_STREAM = events_table.c.context_id == bindparam("stream")
_DELTAS = (
    _OF_STREAM,
    events_table.c.seq >= bindparam("first", type_=sa.Integer),
    events_table.c.type == "model.delta",
)


def _of_run(build: Callable[..., sa.Select[Any] | sa.Delete]) -> dict[bool, Statement]:
    """For a conversation whose stream it is, and for a run that stands in another one's."""
    mine = {False: events_table.c.child.is_(None), True: events_table.c.child == bindparam("child")}
    return {below: Statement(partial(build, whose)) for below, whose in mine.items()}


RESERVE = Statement(_reserve)
SETTLE = Statement(
    lambda _: (
        sa.update(feeds).values({name: bindparam(name) for name in _STATE}).where(feeds.c.context_id == bindparam("of"))
    )
)
SETTLE_SEQ = Statement(
    lambda _: sa.update(feeds).values(seq=bindparam("seq")).where(feeds.c.context_id == bindparam("of"))
)
SETTLE_PATH = Statement(
    lambda _: sa.update(feeds).values(path=bindparam("new_path")).where(feeds.c.context_id == bindparam("of"))
)
# Refused by the index of keys alone: two events of one number would be a fault, and raise.
INSERT_EVENT = Statement(
    lambda dialect: insert(dialect, events_table).on_conflict_do_nothing(
        index_elements=["context_id", "key"], index_where=events_table.c.key.is_not(None)
    )
)
KEYS = ByKeys(lambda keys: sa.select(events_table.c.key).where(_OF_STREAM, events_table.c.key.in_(keys)))
DELTAS = _of_run(lambda whose, _: sa.select(events_table.c.seq).where(*_DELTAS, whose).order_by(events_table.c.seq))
DELETE_DELTAS = _of_run(lambda whose, _: sa.delete(events_table).where(*_DELTAS, whose))
ONE = Statement(
    lambda _: sa.select(*[events_table.c[name] for name in ("task_id", "type", "body")]).where(
        _OF_STREAM, events_table.c.seq == bindparam("seq")
    )
)


class _Row(NamedTuple):
    """Of a conversation, as it is recorded."""

    seq: int
    token: str
    open: int
    first_delta: int
    root: str | None
    path: str | None


@dataclass(slots=True)
class _Feed:
    """The row of a conversation while a batch is written, and where its events stand."""

    context_id: str
    stream: str
    """The conversation whose numbers these are: its own, or that of the run at the top."""
    reserved: tuple[int, str, int, int]
    """The state as it is recorded."""
    seq: int
    """The number that was given last, by whichever run of the stream."""
    token: str
    open: int
    """Number of the first delta that is neither complete nor retracted; 0 without."""
    first_delta: int
    """Number of the first delta in the table; 0 without."""
    path: str | None
    """The way down to it, as it is recorded (``Ways``)."""
    child: str | None
    """The id, of a run that stands in another one's stream."""

    def key(self, key: str | None) -> str | None:
        """As it is kept: keys are the run's own."""
        return key if key is None or self.child is None else f"{self.child}\n{key}"


def append(database: Database, batch: Batch, now: str, *, recorded: bool = False) -> bool:
    """Write ``batch``; False where it came too late, which what comes with a ``recorded`` outcome never does."""
    feed = _reserved(database, batch)
    if batch.token and batch.token < feed.token and not recorded:
        _settle(database, feed)
        return False
    _come_by(database, feed, batch.lineage)
    if batch.token > feed.token:
        if feed.open and not (recorded and _ends_deltas(batch)):
            _write(database, feed, _lost(database, feed, now), None)
        if batch.advances:
            feed.token = batch.token
    known = _known(database, feed, batch)
    for new in batch.events:
        key = feed.key(new.key)
        if key in known or not _write(database, feed, new, key):
            continue
        if key is not None and new.event.type != "model.delta":
            known.add(key)
    _settle(database, feed)
    return True


def _reserved(database: Database, batch: Batch) -> _Feed:
    """Take as many numbers as there are events, where the conversation's stand."""
    count = len(batch.events)
    state = _reserve_row(database, batch.context_id, batch.token if batch.advances else "", count, batch.lineage)
    root, seq = state.root, state.seq
    if root is not None:
        seq = _reserve_row(database, root, "", count).seq
    reserved = seq, state.token, state.open, state.first_delta
    stream = root or batch.context_id
    child = None if stream == batch.context_id else batch.context_id
    return _Feed(batch.context_id, stream, reserved, seq - count, *reserved[1:], state.path, child)


def _come_by(database: Database, feed: _Feed, lineage: Lineage | None) -> None:
    """Note another way than the last one: who opens a conversation again may call under the same ids once more."""
    if lineage is None or feed.child is None or lineage.root != feed.stream or first_way(lineage) == feed.path:
        return
    if (path := Ways(feed.path).then(lineage, feed.seq + 1)) is not None:
        SETTLE_PATH.run(database, of=feed.context_id, new_path=path)


def _reserve_row(database: Database, of: str, token: str, count: int, lineage: Lineage | None = None) -> _Row:
    """Of a new row all is as given; of one that is there only numbers are taken."""
    path = None if lineage is None else first_way(lineage)
    root = None if lineage is None else lineage.root
    row = {"context_id": of, "seq": count if root is None else 0, "token": token, "open": 0, "first_delta": 0}
    [reserved] = RESERVE.run(database, **row, root=root, path=path, count=count)
    return _Row(*reserved)


def _ends_deltas(batch: Batch) -> bool:
    return any(new.event.type in ("model.completed", "model.retracted") for new in batch.events)


def _settle(database: Database, feed: _Feed) -> None:
    """Correct what was reserved; mostly there is nothing to correct."""
    state = feed.seq, feed.token, feed.open, feed.first_delta
    if feed.child is None:
        if state != feed.reserved:
            SETTLE.run(database, of=feed.context_id, **dict(zip(_STATE, state, strict=True)))
        return
    if state[1:] != feed.reserved[1:]:  # no numbers are its own
        SETTLE.run(database, of=feed.context_id, **dict(zip(_STATE, (0, *state[1:]), strict=True)))
    if feed.seq != feed.reserved[0]:
        SETTLE_SEQ.run(database, of=feed.stream, seq=feed.seq)


def _known(database: Database, feed: _Feed, batch: Batch) -> set[str | None]:
    """The keys that the conversation has, where they are to be known. The lock is held: nobody adds one meanwhile."""
    keys = [key for new in batch.events if _looked_up(new) and (key := feed.key(new.key)) is not None]
    return {key for (key,) in KEYS.each(database, keys, stream=feed.stream)} if keys else set()


def _looked_up(new: NewEvent) -> bool:
    """Whether its key is to be known before: it ends deltas, or is one, which keeps none. Others the index refuses."""
    return new.key is not None and new.event.type in ("model.delta", "model.completed", "model.retracted")


def _write(database: Database, feed: _Feed, new: NewEvent, key: str | None) -> bool:
    """Give the event its number, and its spans; false where it would retract nothing, or its ``key`` is there."""
    event = new.event
    spans: tuple[Span, ...] = ()
    if event.type == "model.retracted":
        spans, feed.open = _spans(database, feed, feed.open), 0
        if not spans:
            return False
    elif event.type == "model.completed":
        spans = _spans(database, feed, feed.first_delta)
        if spans:
            DELETE_DELTAS[feed.child is not None].run(database, **_deltas(feed, feed.first_delta))
        feed.open = feed.first_delta = 0
    written = INSERT_EVENT.run(
        database,
        context_id=feed.stream,
        seq=feed.seq + 1,
        task_id=event.task_id,
        type=event.type,
        key=key if event.type != "model.delta" else None,
        body=event_body(event),
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


def _spans(database: Database, feed: _Feed, first: int) -> tuple[Span, ...]:
    """The run's deltas from number ``first`` on, as first and last of each row without a gap."""
    found: list[Span] = []
    rows = DELTAS[feed.child is not None].run(database, **_deltas(feed, first)) if first else ()
    for (number,) in rows:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def _deltas(feed: _Feed, first: int) -> dict[str, object]:
    return {"stream": feed.stream, "first": first, "child": feed.child}


def _lost(database: Database, feed: _Feed, now: str) -> NewEvent:
    task_id, type_, body = ONE.run(database, stream=feed.stream, seq=feed.open).fetchone()
    whole = body.encode() if isinstance(body, str) else bytes(body)
    event = read_event(feed.context_id, feed.open, task_id, type_, whole)
    assert event is not None, "a delta is an event that every perdure knows"
    return NewEvent(lost(event, now))
