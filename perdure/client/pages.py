"""Pages of calls that wait and of transcripts, for consoles and services, and the cursors of all pages: they say where
the next page begins.

Calls that wait come from the store's table, and those of a page are checked with their runs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast, get_args

from pydantic_core import from_json

from ..errors import InvalidInputError, RunNotFoundError
from ..ports.store import Node, RunRow, Store
from ..ports.waits import WaitCursor, WaitGroup, WaitOrder, WaitRow
from ..store.cache import ByteLRU
from ..store.chain import decode_node
from ..store.transcripts import load_full_conversation
from ..types.approvals import OnExpiry, PendingKind, WaitingCall
from ..types.messages import Message, clean_text
from ..types.summaries import summarize_call
from .handles import ClientHandle
from .visibility import build_closed_status, read_labels, read_pending_memo

V = TypeVar("V")
T = TypeVar("T")

MAX_PAGE = 200
"""Most rows of a page."""
_MAX_CURSOR_CHARS = 8_000
MAX_REQUESTS = 10
"""Requests for rows in one page: one of which most rows are left out ends before it is full."""
_CONCURRENT_READS = 8
_SETTLE_SECONDS = 10.0
"""Time in which a call that has begun to wait may be missing in its run's memo."""
SHOWN_BYTES = 16 * 1024
"""Most bytes of a call's arguments, and of a form, in a list, as JSON; a longer one is left out."""
_QUESTION_CHARS = 8_000

# ---
# Cursors.


def encode_cursor(kind: str, filters: Mapping[str, Any], place: Sequence[str]) -> str:
    """Encode ``place`` as the cursor of the list ``kind`` with these filters: text for URLs."""
    plain = json.dumps([_hash_filters(kind, filters), *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def decode_cursor(kind: str, filters: Mapping[str, Any], cursor: str, length: int | None = None) -> list[str]:
    """Return the place that ``cursor`` names, of ``length`` texts. Raises ``InvalidInputError`` for text that is not a
    cursor of this list, and for one that was made for other filters."""
    place: Any = None
    if isinstance(cursor, str) and 0 < len(cursor) <= _MAX_CURSOR_CHARS and cursor.isascii():
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
            place = json.loads(raw)
        except (ValueError, RecursionError):
            place = None
    if not isinstance(place, list) or not 1 < len(place) <= 10 or not all(is_storable(text) for text in place):
        raise InvalidInputError(
            f"cursor: {cursor!r:.60} is not a cursor of this list",
            hint="Send the cursor of the page before, unchanged.",
        )
    if place[0] != _hash_filters(kind, filters) or length not in (None, len(place) - 1):
        raise InvalidInputError(
            "cursor: it was made for a list with other filters", hint="Begin again without a cursor."
        )
    return place[1:]


def is_storable(text: Any) -> bool:
    return isinstance(text, str) and clean_text(text) == text


def _hash_filters(kind: str, filters: Mapping[str, Any]) -> str:
    given = {name: value for name, value in filters.items() if value is not None}
    return hashlib.sha256(json.dumps([kind, given], sort_keys=True).encode()).hexdigest()[:16]


def check_page_limit(limit: int) -> None:
    """Raise ``InvalidInputError`` for a limit that no page has."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInputError(f"limit must be a number from 1 to {MAX_PAGE}, not {limit!r:.100}")


def check_filters(**filters: str | None) -> None:
    """Raise ``InvalidInputError`` for a text that no name has."""
    for name, text in filters.items():
        if text is not None and not is_storable(text):
            raise InvalidInputError(f"{name}: {text!r:.60} has characters that no name has")


async def gather_bounded(function: Callable[[V], Awaitable[T]], values: Iterable[V]) -> list[T]:
    """Return the results of ``function`` for all ``values``, at most 8 at once."""
    slots = asyncio.Semaphore(_CONCURRENT_READS)

    async def run(value: V) -> T:
        async with slots:
            return await function(value)

    return await asyncio.gather(*map(run, values))


# ---

# Pages of calls that wait.


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A call that waits for an approval, an answer or a client's result, as a row of an inbox."""

    run_id: str
    call_id: str
    kind: PendingKind
    agent: str
    tool: str
    hash: str
    """Identifies what is asked for: a decision or an answer is sent with it."""
    since: datetime
    expires: datetime | None = None
    arguments: dict[str, Any] | None = None
    """None if there are none, or they are large: the run's transcript has them."""
    question: str | None = None
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything, unless ``is_cut``."""
    consent: dict[str, Any] | None = None
    """For a question that a sign-in at an MCP server answers: ``Consent`` as JSON."""
    is_cut: bool = False
    """Whether arguments, question or form are too large for a list."""
    separate: bool | None = None
    """Whether those who asked for the call may not approve it; None if only the run knows."""
    on_expiry: OnExpiry | None = None
    """What becomes of an approval that expires; None if only the run knows."""
    root: str | None = None
    """The root of the run's tree, if the run is a subagent's."""
    tenant: str | None = None
    user: str | None = None
    summary: str = ""
    """The call or its question in one line, for people."""
    amount: float | None = None
    """The number of its arguments by which calls are sorted: the first that the summary of its tool names, or that the
    tool has."""
    requesters: tuple[str, ...] = ()
    """With ``separate``: ``hash_name`` of the first people whose input led to the call."""


@dataclass(frozen=True, slots=True)
class WaitPage:
    """A page of calls that wait. ``cursor`` is as in :class:`RunPage`."""

    waits: tuple[InboxEntry, ...]
    cursor: str | None


async def list_wait_page(
    client: ClientHandle,
    *,
    agent: str | None = None,
    kind: PendingKind | None = None,
    tool: str | None = None,
    tenant: str | None = None,
    user: str | None = None,
    text: str | None = None,
    order: WaitOrder = "since",
    group: WaitGroup | None = None,
    limit: int = 50,
    cursor: str | None = None,
    visible: Callable[[WaitRow, RunRow | None], Awaitable[bool]] | None = None,
) -> WaitPage:
    """See ``Client.list_waits``. ``visible`` gets the row of a wait, and of its run."""
    check_page_limit(limit)
    names = {"agent": agent, "kind": kind, "tool": tool, "tenant": tenant, "user": user, "text": text}
    check_filters(**names)
    if order not in get_args(WaitOrder) or group not in (None, *get_args(WaitGroup)):
        raise InvalidInputError(
            f"order={order!r:.60}, group={group!r:.60}: calls that wait are not listed so",
            hint="order is since, expiry or amount; group is tool, user or tenant.",
        )
    filters: dict[str, Any] = {**names, "order": order, "group": group}
    after = None if cursor is None else WaitCursor(*decode_cursor("waits", filters, cursor, 4))
    store = await client.store()
    waits: list[InboxEntry] = []
    is_shown = False
    for _ in range(MAX_REQUESTS):
        size = limit - len(waits)
        rows = await store.list_waits(**filters, after=after, limit=size)
        shown = await _select_visible(store, rows, visible)
        checked = await _check_waits(client, shown)
        waits += checked
        if len(rows) < size:
            return WaitPage(tuple(waits), None)
        after = rows[-1].get_cursor(order, group)
        is_shown = bool(shown) and shown[-1][0] is rows[-1]
        if len(waits) >= limit:
            break
    assert after is not None
    if not is_shown:  # a cursor names no wait that the caller may not see
        after = WaitCursor(after.at, "", "", after.name)
    return WaitPage(tuple(waits), encode_cursor("waits", filters, after))


async def _select_visible(
    store: Store, rows: Sequence[WaitRow], visible: Callable[[WaitRow, RunRow | None], Awaitable[bool]] | None
) -> list[tuple[WaitRow, RunRow | None]]:
    ids = list(dict.fromkeys(row.context_id for row in rows))
    runs = await store.get_runs(ids)
    pairs = [(row, runs.get(row.context_id)) for row in rows]
    return pairs if visible is None else [pair for pair in pairs if await visible(*pair)]


async def _check_waits(client: ClientHandle, pairs: Sequence[tuple[WaitRow, RunRow | None]]) -> list[InboxEntry]:
    """Build the waits of those rows that are not out of date, by their runs' memos."""

    async def read(id: str) -> _RunState | None:
        return await _read_run_state(client, id)

    ids = list(dict.fromkeys(row.context_id for row, _ in pairs))
    states = dict(zip(ids, await gather_bounded(read, ids), strict=True))
    waits = [_build_wait(row, run, states[row.context_id]) for row, run in pairs]
    return [wait for wait in waits if wait is not None]


@dataclass(frozen=True, slots=True)
class _RunState:
    """What an open run says of its pending calls."""

    pending: Sequence[WaitingCall] | None
    """None if only the run itself has them."""
    labels: Mapping[str, str]


async def _read_run_state(client: ClientHandle, id: str) -> _RunState | None:
    """Read what the run waits for; None for one that has ended."""
    try:
        description = await client.run(id).describe()
    except RunNotFoundError:
        return None
    if build_closed_status(description) is not None:
        return None
    return _RunState(await read_pending_memo(description), await read_labels(description))


def _build_wait(row: WaitRow, run: RunRow | None, state: _RunState | None) -> InboxEntry | None:
    """Build the wait of ``row``; None if it is out of date."""
    if state is None:
        return None
    pending = next(
        (call for call in state.pending or () if call.call_id == row.call_id and row.hash in ("", call.hash)), None
    )
    if pending is None and state.pending is not None:
        age = datetime.now(UTC) - datetime.fromisoformat(row.created_at)
        if age > timedelta(seconds=_SETTLE_SECONDS):
            return None
    asked: dict[str, Any] = json.loads(row.body or "{}") or (pending.model_dump(mode="json") if pending else {})
    question = asked.get("question") or None
    fields = {name: asked.get(name) for name in ("arguments", "form", "consent")}
    kept = {name: value for name, value in fields.items() if len(json.dumps(value).encode()) <= SHOWN_BYTES}
    is_question_cut = question is not None and len(question) > _QUESTION_CHARS
    return InboxEntry(
        row.context_id,
        row.call_id,
        row.kind,
        row.agent,
        row.tool,
        row.hash,
        datetime.fromisoformat(row.created_at),
        None if row.expires_at is None else datetime.fromisoformat(row.expires_at),
        question=question[:_QUESTION_CHARS] if question is not None else None,
        is_cut=len(kept) < len(fields) or is_question_cut,
        separate=None if pending is None else pending.separate,
        on_expiry=None if pending is None else pending.on_expiry,
        root=None if row.root == row.context_id else row.root,
        tenant=state.labels.get("tenant") or (run.tenant if run is not None else None),
        user=state.labels.get("user") or (run.user if run is not None else None),
        summary=row.summary or asked.get("summary") or summarize_call(row.tool, kept.get("arguments")),
        amount=row.amount,
        requesters=() if pending is None else pending.requesters,
        **cast(Any, kept),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which nodes a transcript consists of, from its root on."""

    names: tuple[str, ...]
    ends: tuple[int, ...]
    """For each node the number of messages up to its end."""
    has_replaced: bool
    """Whether summaries or edits have replaced messages that ``full`` shows."""


class TranscriptPages:
    """Pages of transcripts, with large texts as references.

    A page reads and decodes its own nodes alone. Where they are is known of the transcripts that were read last; the
    first page of another one reads it once, a later one what it has grown by.
    """

    def __init__(self, cache_bytes: int = 16 * 1024 * 1024) -> None:
        self._layouts: ByteLRU[_Layout] = ByteLRU(cache_bytes)

    async def read(
        self, store: Store, id: str, head: str | None, *, after: int, limit: int, full: bool = False
    ) -> tuple[list[Message], int]:
        """Return the messages of run ``id`` behind index ``after``, at most ``limit``, and how many it has up to
        ``head``; with ``full`` also those that summaries and edits have replaced. Raises ``StoreError``,
        ``TranscriptCorruptedError``."""
        if head is None:
            return [], 0
        layout = await self._find_layout(store, id, head)
        if full and layout.has_replaced:
            messages = await load_full_conversation(store, head, texts=False)
            return messages[after + 1 : after + 1 + limit], len(messages)
        total = layout.ends[-1]
        begin, end = after + 1, min(after + 1 + limit, total)
        if begin >= end:
            return [], total
        first, last = bisect_right(layout.ends, begin), bisect_left(layout.ends, end)
        nodes = await store.read_nodes(layout.names[last], until=[layout.names[first - 1]] if first else ())
        messages = await asyncio.to_thread(lambda: [message for node in nodes for message in decode_node(node)])
        skipped = begin - (layout.ends[first - 1] if first else 0)
        return messages[skipped : skipped + end - begin], total

    async def _find_layout(self, store: Store, id: str, head: str) -> _Layout:
        known = self._layouts.get(id)
        if known is not None and known.names[-1] == head:
            return known
        nodes = await store.read_nodes(head, until=[known.names[-1]] if known is not None else ())
        if known is None or nodes[0].parent != known.names[-1]:  # the conversation goes on from elsewhere
            known = _Layout((), (), has_replaced=False)
        layout = await asyncio.to_thread(_extend_layout, known, nodes)
        self._layouts.put(id, layout, _LAYOUT_NODE_BYTES * len(layout.names))
        return layout


_LAYOUT_NODE_BYTES = 200


def _extend_layout(layout: _Layout, nodes: Sequence[Node]) -> _Layout:
    ends, has_replaced = list(layout.ends), layout.has_replaced
    for node in nodes:
        try:
            count = len(from_json(node.body))
        except (ValueError, TypeError):
            count = len(decode_node(node))  # which says what is wrong with it
        ends.append((ends[-1] if ends else 0) + count)
        has_replaced = has_replaced or b'"replaces"' in node.body
    return _Layout((*layout.names, *(node.hash for node in nodes)), tuple(ends), has_replaced)
