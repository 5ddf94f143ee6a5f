"""Pages of runs and of calls that wait, for consoles and services: a cursor says where the next page begins.

Runs come from Temporal first, in the order of its visibility, then those that only the store has. Calls that wait come
from the store's table, and those of a page are checked with their runs.
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
from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ..errors import InvalidInputError, RunNotFoundError
from ..ports.store import Node, RunRow, Store
from ..ports.times import timestamp
from ..ports.waits import WaitCursor, WaitGroup, WaitOrder, WaitRow
from ..store.cache import ByteLRU
from ..store.chain import decode_node
from ..store.transcripts import load_full_conversation
from ..temporal.errors import is_missing_attribute, translate_service_error
from ..types.approvals import OnExpiry, PendingKind, WaitingCall
from ..types.messages import Message, clean_text
from ..types.summaries import summarize_call
from .handles import ClientHandle
from .visibility import (
    OPEN_STATUSES,
    ROOTS_FILTER,
    RUNS_QUERY,
    RunSummary,
    add_recorded_labels,
    build_agent_filter,
    build_closed_status,
    build_ids_query,
    build_label_filters,
    build_missing_status_error,
    build_run_summary,
    build_status_filter,
    find_other_namespaces,
    has_agent_and_status,
    has_labels,
    has_recorded_parent,
    list_executions,
    read_labels,
    read_pending_memo,
    select_roots,
)

V = TypeVar("V")
T = TypeVar("T")

MAX_PAGE = 200
"""Most rows of a page."""
_MAX_CURSOR_CHARS = 8_000
_MAX_REQUESTS = 10
"""Requests for rows in one page: one of which most rows are left out ends before it is full."""
_STORE_ROWS = 100
"""Rows of the store that Temporal is asked for at once."""
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
    if not isinstance(place, list) or not 1 < len(place) <= 10 or not all(_is_storable(text) for text in place):
        raise InvalidInputError(
            f"cursor: {cursor!r:.60} is not a cursor of this list",
            hint="Send the cursor of the page before, unchanged.",
        )
    if place[0] != _hash_filters(kind, filters) or length not in (None, len(place) - 1):
        raise InvalidInputError(
            "cursor: it was made for a list with other filters", hint="Begin again without a cursor."
        )
    return place[1:]


def _is_storable(text: Any) -> bool:
    return isinstance(text, str) and clean_text(text) == text


def _hash_filters(kind: str, filters: Mapping[str, Any]) -> str:
    given = {name: value for name, value in filters.items() if value is not None}
    return hashlib.sha256(json.dumps([kind, given], sort_keys=True).encode()).hexdigest()[:16]


def check_page_limit(limit: int) -> None:
    """Raise ``InvalidInputError`` for a limit that no page has."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInputError(f"limit must be a number from 1 to {MAX_PAGE}, not {limit!r:.100}")


def _check_filters(**filters: str | None) -> None:
    for name, text in filters.items():
        if text is not None and not _is_storable(text):
            raise InvalidInputError(f"{name}: {text!r:.60} has characters that no name has")


async def gather_bounded(function: Callable[[V], Awaitable[T]], values: Iterable[V]) -> list[T]:
    """Return the results of ``function`` for all ``values``, at most 8 at once."""
    slots = asyncio.Semaphore(_CONCURRENT_READS)

    async def run(value: V) -> T:
        async with slots:
            return await function(value)

    return await asyncio.gather(*map(run, values))


# ---
# Pages of runs.


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of runs. ``cursor`` begins the next page; None at the end. A page may have fewer rows than were asked for,
    even none, although there are more."""

    runs: tuple[RunSummary, ...]
    cursor: str | None


Visible = Callable[[RunSummary], Awaitable[bool]]
"""Says whether a run is listed."""


@dataclass(frozen=True, slots=True)
class _RunFilters:
    agent: str | None
    status: str | None
    tenant: str | None
    user: str | None
    roots: bool
    started_from: datetime | None
    started_before: datetime | None

    @property
    def labels(self) -> dict[str, str | None]:
        return {"tenant": self.tenant, "user": self.user}

    def as_dict(self) -> dict[str, Any]:
        return {"agent": self.agent, "status": self.status, "roots": self.roots, **self.labels, **self.times}

    @property
    def times(self) -> dict[str, str | None]:
        times = {"created_from": self.started_from, "created_before": self.started_before}
        return {name: None if at is None else timestamp(at) for name, at in times.items()}

    def has_time(self, at: datetime | None) -> bool:
        return at is None or ((self.started_from or at) <= at and (not self.started_before or at < self.started_before))


async def list_run_page(
    client: ClientHandle,
    *,
    agent: str | None = None,
    status: str | None = None,
    tenant: str | None = None,
    user: str | None = None,
    roots: bool = True,
    started_from: datetime | None = None,
    started_before: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
    visible: Visible | None = None,
) -> RunPage:
    """See ``Client.list_page``. Lists only runs for which ``visible`` returns true."""
    check_page_limit(limit)
    _check_filters(agent=agent, status=status, tenant=tenant, user=user)
    filters = _RunFilters(agent, status, tenant, user, roots, started_from, started_before)
    place = decode_cursor("runs", filters.as_dict(), cursor) if cursor is not None else ["temporal", ""]
    pager = _RunPager(client, filters, limit, visible)
    match place:
        case ["temporal", token]:
            next_token = await pager.read_visibility(_decode_token(token))
            if next_token:
                return pager.build_page(["temporal", base64.b64encode(next_token).decode()])
            at, last_id = "", ""
        case ["store", at, last_id]:
            pass
        case _:
            raise InvalidInputError("cursor: it is not a cursor of this list", hint="Begin again without a cursor.")
    if client.store_url is None or status in OPEN_STATUSES:
        return pager.build_page(None)
    if len(pager.runs) >= limit:
        return pager.build_page(["store", at, last_id])
    after = await pager.read_store(await client.store(), (at, last_id) if at else None)
    return pager.build_page(None if after is None else ["store", *after])


def _decode_token(token: str) -> bytes:
    try:
        return base64.b64decode(token, validate=True)
    except ValueError:
        raise InvalidInputError("cursor: it is damaged", hint="Begin again without a cursor.") from None


class _RunPager:
    """Collects the runs of one page."""

    def __init__(self, client: ClientHandle, filters: _RunFilters, limit: int, visible: Visible | None) -> None:
        self._client, self._filters, self._limit, self._visible = client, filters, limit, visible
        self.runs: dict[str, RunSummary] = {}
        self._listed: set[str] = set()
        """Runs that Temporal's listing is known to have."""

    def build_page(self, place: Sequence[str] | None) -> RunPage:
        """Build the page, whose next one begins at ``place``."""
        cursor = None if place is None else encode_cursor("runs", self._filters.as_dict(), place)
        return RunPage(tuple(self.runs.values()), cursor)

    async def read_visibility(self, token: bytes) -> bytes:
        """Add runs that Temporal lists from ``token`` on; return the token of the next ones, b"" at the end."""
        # Open executions come first, then closed ones, the last one first: of a run, the newest is the first in a list
        # that begins at the beginning, and leaves none out for its status, or for being newer.
        is_in_order = not token and self._filters.status is None and self._filters.started_before is None
        for _ in range(_MAX_REQUESTS):
            executions, token = await self._fetch_executions(token)
            if is_in_order:
                first = {execution.id: execution.run_id for execution in reversed(executions)}
                newest = {first[name] for name in first.keys() - self._listed}
                runs = await gather_bounded(self._summarize_execution, executions)
            else:
                runs, newest = await asyncio.gather(
                    gather_bounded(self._summarize_execution, executions), self._find_newest(executions)
                )
            self._listed |= {execution.id for execution in executions}
            for execution, run in zip(executions, runs, strict=True):
                if run is not None and execution.run_id in newest and execution.id not in self.runs:
                    await self._add_visible(run)
            if not token or len(self.runs) >= self._limit:
                break
        return token

    async def _fetch_executions(self, token: bytes) -> tuple[Sequence[WorkflowExecution], bytes]:
        filters = self._filters
        parts = [RUNS_QUERY, build_status_filter(filters.status), *([ROOTS_FILTER] if filters.roots else ())]
        times = zip((">=", "<"), filters.times.values(), strict=True)
        query = " AND ".join([*parts, *(f"StartTime {sign} '{at}'" for sign, at in times if at is not None)])
        extra = [*build_label_filters(filters.labels)]
        extra += [build_agent_filter(filters.agent)] if filters.agent is not None else []
        temporal = self._client.temporal
        for conditions in (extra, []):
            text = " AND ".join((query, *conditions))
            size = self._limit - len(self.runs)
            pages = temporal.list_workflows(text, page_size=size, next_page_token=token or None)
            try:
                await pages.fetch_next_page()
            except RPCError as error:
                if is_missing_attribute(error) and (conditions or filters.status in OPEN_STATUSES):
                    if conditions:
                        continue
                    raise build_missing_status_error(str(filters.status)) from None
                if token and await self._is_token_refused(text, error):
                    raise InvalidInputError(
                        "cursor: Temporal does not know it", hint="Begin again without a cursor."
                    ) from error
                raise translate_service_error(temporal, error) from error
            return pages.current_page or (), pages.next_page_token or b""
        raise AssertionError("the query without conditions was sent")

    async def _is_token_refused(self, query: str, error: RPCError) -> bool:
        """Whether ``error`` is about the token of a page. Servers answer a damaged one as if they were unavailable."""
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return True
        try:
            await self._client.temporal.list_workflows(query, page_size=1).fetch_next_page()
        except RPCError:
            return False
        return True

    async def _find_newest(self, executions: Sequence[WorkflowExecution]) -> set[str]:
        """Return the run ids of those executions that are the last of their runs: a reopened run has others."""
        closed = {execution.id for execution in executions if execution.close_time is not None}
        newest = {execution.id: execution for execution in executions}
        query = f"{build_ids_query(closed)} AND ExecutionStatus != 'ContinuedAsNew'"
        others = [execution async for execution in list_executions(self._client, query)] if closed else []
        for execution in (*executions, *others):
            if execution.start_time > newest[execution.id].start_time:
                newest[execution.id] = execution
        return {execution.run_id for execution in newest.values()}

    async def _summarize_execution(self, execution: WorkflowExecution) -> RunSummary | None:
        """Return what the list shows of an execution; None for one that the filters leave out."""
        filters = self._filters
        if filters.roots and await has_recorded_parent(self._client, execution.id):
            return None
        run = await build_run_summary(self._client, execution)
        needs_labels = self._visible is not None and None in (run.tenant, run.user)
        if needs_labels or any(
            value is not None and getattr(run, name) is None for name, value in filters.labels.items()
        ):
            run = await add_recorded_labels(self._client, run)
        shown = has_agent_and_status(run, filters.agent, filters.status) and has_labels(run, filters.labels)
        return run if shown and filters.has_time(run.started) else None

    async def _add_visible(self, run: RunSummary) -> bool:
        if self._visible is not None and not await self._visible(run):
            return False
        self.runs[run.id] = run
        return True

    async def read_store(self, store: Store, after: tuple[str, str] | None) -> tuple[str, str] | None:
        """Add runs that only the store has, from the row ``after`` on; return the last row, None at the end."""
        filters = self._filters
        for _ in range(_MAX_REQUESTS):
            rows = await store.list_runs(
                agent=filters.agent, status=filters.status, **filters.labels, roots=filters.roots, **filters.times,
                after=after, limit=_STORE_ROWS,
            )  # fmt: skip
            missing = await self._find_missing(rows)
            is_shown = False
            for row in rows:
                is_shown = row.context_id in missing and await self._add_visible(_build_recorded_run(row))
                if len(self.runs) >= self._limit:
                    return row.created_at, row.context_id
            if len(rows) < _STORE_ROWS:
                return None
            after = rows[-1].created_at, rows[-1].context_id
        assert after is not None
        return after if is_shown else _step_back(after[0])

    async def _find_missing(self, rows: Sequence[RunRow]) -> set[str]:
        """Return the ids of those of ``rows`` that Temporal's listing does not have."""
        rows = [row for row in rows if row.context_id not in self._listed]
        if not rows:
            return set()
        query = build_ids_query(row.context_id for row in rows)
        labels = build_label_filters(self._filters.labels)
        listed = {execution.id async for execution in list_executions(self._client, query, *labels)}
        rest = [row for row in rows if row.context_id not in listed]
        if self._filters.roots and rest:
            rest = await select_roots(self._client, rest, len(rest))
        elsewhere = await find_other_namespaces(self._client.temporal, rest)
        return {row.context_id for row in rest} - elsewhere.keys()


def _step_back(at: str) -> tuple[str, str]:
    """Return a place before all rows of that time, which names none of them: the caller may not see the last one."""
    return timestamp(datetime.fromisoformat(at) + timedelta(microseconds=1)), ""


def _build_recorded_run(row: RunRow) -> RunSummary:
    started = datetime.fromisoformat(row.created_at)
    return RunSummary(row.context_id, row.agent, row.status, started, tenant=row.tenant, user=row.user)


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
    _check_filters(**names)
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
    for _ in range(_MAX_REQUESTS):
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
