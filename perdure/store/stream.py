"""Reading events: those of a conversation, and those of the runs below it, in one order.

The rows of a run that a call of another agent has begun stand in the stream of the run at the top, which gives their
numbers. So a tree is read as one conversation is, and one number says how far somebody has come in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from ..ports import EventRow
from .statement import ByKeys, Database, Statement
from .tables import events_table, feeds
from .ways import Ways

PAGE_BYTES = 4 * 1024 * 1024
"""A page of events ends behind the one that brings it over this."""


def _select(*scope: sa.ColumnElement[bool]) -> Statement:
    query = (
        sa.select(*[events_table.c[name] for name in ("seq", "task_id", "type", "body", "spans", "child")])
        .where(events_table.c.context_id == bindparam("stream"), *scope)
        .where(events_table.c.seq > bindparam("after", type_=sa.Integer))
        .order_by(events_table.c.seq)
        .limit(bindparam("limit", type_=sa.Integer))
    )
    return Statement(lambda _: query)


_CHILD = events_table.c.child == bindparam("child")
# Compared as text, not by LIKE or as a range: an id may hold what a pattern takes for its own, and orders differ.
_BELOW = sa.func.substr(events_table.c.child, 1, bindparam("length", type_=sa.Integer)) == bindparam("prefix")
OWN = {False: _select(events_table.c.child.is_(None)), True: _select()}
"""Of a conversation whose numbers are its own: by itself, and with all that is below it."""
OF_CHILD = {False: _select(_CHILD), True: _select(sa.or_(_CHILD, _BELOW))}
"""Of a run that stands in another one's stream: by itself, and with what is below it."""
PLACES = ByKeys(
    lambda ids: sa.select(feeds.c.context_id, feeds.c.root, feeds.c.path).where(feeds.c.context_id.in_(ids))
)
_OF_ROOT = feeds.alias("of_root")
LATEST = ByKeys(
    lambda ids: (
        sa.select(feeds.c.context_id, sa.func.coalesce(_OF_ROOT.c.seq, feeds.c.seq))
        .select_from(feeds.outerjoin(_OF_ROOT, _OF_ROOT.c.context_id == feeds.c.root))
        .where(feeds.c.context_id.in_(ids))
    )
)


def events(
    database: Database,
    context_id: str,
    after: int,
    limit: int,
    page_bytes: int = PAGE_BYTES,
    *,
    children: bool = True,
) -> list[EventRow]:
    """Events behind number ``after``, in order: one at least if there is any, ``limit`` or ``page_bytes`` at most."""
    page = {"after": after, "limit": limit}
    found = _rows(OWN[children].run(database, stream=context_id, **page), page_bytes)
    depth = 0
    if not found:  # it may stand in another one's stream: then it has no rows of that id
        root, ways = _places(database, [context_id]).get(context_id, (None, None))
        if root is None or ways is None:
            return []
        below = f"{context_id}/"
        scope = {"child": context_id, "prefix": below, "length": len(below)}
        found = _rows(OF_CHILD[children].run(database, stream=root, **scope, **page), page_bytes)
        depth = ways.depth
    return _with_paths(database, found, context_id, depth)


def latest(database: Database, context_ids: Iterable[str]) -> dict[str, int]:
    """Of each conversation that has an event: the last number where its events are numbered."""
    return dict(LATEST.each(database, context_ids))


def _rows(rows: Iterable[Any], page_bytes: int) -> list[EventRow]:
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


def _with_paths(database: Database, rows: list[EventRow], context_id: str, depth: int) -> list[EventRow]:
    """``rows`` as they are seen from the conversation, which stands ``depth`` steps below the stream's own run."""
    below = {row.child for row in rows if row.child is not None and row.child != context_id}
    if not below and not depth:
        return rows
    ways = {child: ways for child, (_, ways) in _places(database, below).items()}
    return [
        EventRow(row.seq, row.task_id, row.type, row.body, row.spans, row.child, ways[row.child].at(row.seq)[depth:])
        if row.child in ways
        else EventRow(row.seq, row.task_id, row.type, row.body, row.spans)
        for row in rows
    ]


def _places(database: Database, context_ids: Iterable[str]) -> dict[str, tuple[str | None, Ways]]:
    """In whose stream the events of each stand, where it has any, and the ways down from there."""
    return {context_id: (root, Ways(path)) for context_id, root, path in PLACES.each(database, context_ids)}
