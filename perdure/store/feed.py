"""The operations on events: numbers, fencing, retraction and pruning. See ``ports.events.Batch`` for what they keep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Dialect, bindparam
from sqlalchemy.sql.dml import Insert, ReturningInsert

from ..ports import Batch, EventRow, NewEvent
from ..types.events import Span, event_body, lost, read_event
from .statement import ByKeys, Database, Statement, insert
from .tables import events_table, feeds

PAGE_BYTES = 4 * 1024 * 1024
"""A page of events ends behind the one that brings it over this."""

_STATE = ("seq", "token", "open", "first_delta")


def _reserve(dialect: Dialect) -> ReturningInsert[tuple[int, str, int, int]]:
    """Take numbers, and with them the row's lock until the transaction ends: their order is that of the commits."""
    new_row: Insert = insert(dialect, feeds).on_conflict_do_update(
        index_elements=["context_id"], set_={"seq": feeds.c.seq + bindparam("count", type_=sa.Integer)}
    )
    return new_row.returning(*[feeds.c[name] for name in _STATE])


_OF_CONVERSATION = events_table.c.context_id == bindparam("context_id")
_DELTAS = (
    _OF_CONVERSATION,
    events_table.c.seq >= bindparam("first", type_=sa.Integer),
    events_table.c.type == "model.delta",
)
RESERVE = Statement(_reserve)
SETTLE = Statement(
    lambda _: (
        sa.update(feeds).values({name: bindparam(name) for name in _STATE}).where(feeds.c.context_id == bindparam("of"))
    )
)
INSERT_EVENT = Statement(lambda dialect: insert(dialect, events_table))
KEYS = ByKeys(lambda keys: sa.select(events_table.c.key).where(_OF_CONVERSATION, events_table.c.key.in_(keys)))
DELTAS = Statement(lambda _: sa.select(events_table.c.seq).where(*_DELTAS).order_by(events_table.c.seq))
DELETE_DELTAS = Statement(lambda _: sa.delete(events_table).where(*_DELTAS))
EVENTS = Statement(
    lambda _: (
        sa.select(*[events_table.c[name] for name in ("seq", "task_id", "type", "body", "spans")])
        .where(_OF_CONVERSATION, events_table.c.seq > bindparam("after", type_=sa.Integer))
        .order_by(events_table.c.seq)
        .limit(bindparam("limit", type_=sa.Integer))
    )
)
LATEST = ByKeys(lambda ids: sa.select(feeds.c.context_id, feeds.c.seq).where(feeds.c.context_id.in_(ids)))


@dataclass(slots=True)
class _Feed:
    """The row of a conversation while a batch is written."""

    context_id: str
    seq: int
    token: str
    open: int
    """Number of the first delta that is neither complete nor retracted; 0 without."""
    first_delta: int
    """Number of the first delta in the table; 0 without."""

    @property
    def state(self) -> tuple[int, str, int, int]:
        return self.seq, self.token, self.open, self.first_delta


def append(database: Database, batch: Batch, now: str, *, recorded: bool = False) -> bool:
    """Write ``batch``; False where it came too late, which what comes with a ``recorded`` outcome never does."""
    context_id, count = batch.context_id, len(batch.events)
    first = batch.token if batch.advances else ""
    row = {"context_id": context_id, "seq": count, "token": first, "open": 0, "first_delta": 0}
    [reserved] = RESERVE.run(database, **row, count=count)
    reserved = tuple(reserved)
    feed = _Feed(context_id, *reserved)
    feed.seq -= count
    if batch.token and batch.token < feed.token and not recorded:
        _settle(database, feed, reserved)
        return False
    if batch.token > feed.token:
        if feed.open and not (recorded and _ends_deltas(batch)):
            _write(database, feed, _lost(database, feed, now))
        if batch.advances:
            feed.token = batch.token
    known = _known(database, batch)
    for new in batch.events:
        written = new.key not in known and _write(database, feed, new)
        if written and new.key is not None and new.event.type != "model.delta":
            known.add(new.key)
    _settle(database, feed, reserved)
    return True


def _ends_deltas(batch: Batch) -> bool:
    return any(new.event.type in ("model.completed", "model.retracted") for new in batch.events)


def _settle(database: Database, feed: _Feed, reserved: tuple[int, str, int, int]) -> None:
    """Correct what was reserved; mostly there is nothing to correct."""
    if feed.state != reserved:
        SETTLE.run(database, of=feed.context_id, **dict(zip(_STATE, feed.state, strict=True)))


def _known(database: Database, batch: Batch) -> set[str]:
    """The keys that the conversation has. The lock is held: nobody adds one meanwhile."""
    keys = [new.key for new in batch.events if new.key is not None]
    return {key for (key,) in KEYS.each(database, keys, context_id=batch.context_id)}


def _write(database: Database, feed: _Feed, new: NewEvent) -> bool:
    """Give the event its number, and its spans; false where it would retract nothing."""
    event = new.event
    spans: tuple[Span, ...] = ()
    if event.type == "model.retracted":
        spans, feed.open = _spans(database, feed, feed.open), 0
        if not spans:
            return False
    elif event.type == "model.completed":
        spans = _spans(database, feed, feed.first_delta)
        if spans:
            DELETE_DELTAS.run(database, context_id=feed.context_id, first=feed.first_delta)
        feed.open = feed.first_delta = 0
    feed.seq += 1
    if event.type == "model.delta":
        feed.open = feed.open or feed.seq
        feed.first_delta = feed.first_delta or feed.seq
    INSERT_EVENT.run(
        database,
        context_id=feed.context_id,
        seq=feed.seq,
        task_id=event.task_id,
        type=event.type,
        key=new.key if event.type != "model.delta" else None,
        body=event_body(event),
        spans=json.dumps(spans) if spans else None,
    )
    return True


def _spans(database: Database, feed: _Feed, first: int) -> tuple[Span, ...]:
    """The deltas from number ``first`` on, as first and last of each row without a gap."""
    found: list[Span] = []
    for (number,) in DELTAS.run(database, context_id=feed.context_id, first=first) if first else ():
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def _lost(database: Database, feed: _Feed, now: str) -> NewEvent:
    [delta] = events(database, feed.context_id, feed.open - 1, 1)
    event = read_event(feed.context_id, delta.seq, delta.task_id, delta.type, delta.body)
    assert event is not None, "a delta is an event that every perdure knows"
    return NewEvent(lost(event, now))


def events(database: Database, context_id: str, after: int, limit: int, page_bytes: int = PAGE_BYTES) -> list[EventRow]:
    """Events behind number ``after``, in order: one at least if there is any, ``limit`` or ``page_bytes`` at most."""
    found: list[EventRow] = []
    size = 0
    for seq, task_id, type_, body, spans in EVENTS.run(database, context_id=context_id, after=after, limit=limit):
        whole = body.encode() if isinstance(body, str) else bytes(body)
        read = () if spans is None else tuple((first, last) for first, last in json.loads(spans))
        found.append(EventRow(seq, task_id, type_, whole, read))
        size += len(whole)
        if size > page_bytes:
            break
    return found


def latest(database: Database, context_ids: Iterable[str]) -> dict[str, int]:
    """The number of the last event of each conversation that has one."""
    return dict(LATEST.each(database, context_ids))
