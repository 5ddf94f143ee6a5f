"""Pages of runs, for consoles and services: the newest first, by the store's rows and Temporal's listing of their time.

Where Temporal alone knows which runs have a status, they come in the order of its visibility.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from ..errors import InvalidInputError
from ..ports.failures import FailingCursor
from ..ports.run_lists import RunFilter, has_words
from ..ports.store import RunRow, Store
from ..ports.times import timestamp
from ..temporal.errors import is_missing_attribute, translate_service_error
from ..types.run_states import OPEN_STATES
from .handles import ClientHandle
from .pages import MAX_REQUESTS, check_filters, check_page_limit, decode_cursor, encode_cursor, gather_bounded
from .run_lists import list_held_up_runs
from .run_states import RunSummary, add_recorded_texts, copy_texts, refine_states
from .visibility import (
    INDEXED_STATES,
    OPEN,
    ROOTS_FILTER,
    RUNS_QUERY,
    add_recorded_labels,
    build_agent_filter,
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
    quote_literal,
    select_roots,
)

_STORE_ROWS = 50
"""Least rows of the store that Temporal is asked for at once."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of runs. ``cursor`` begins the next page; None at the end. A page may have fewer rows than were asked for,
    even none, although there are more."""

    runs: tuple[RunSummary, ...]
    cursor: str | None


Visible = Callable[[RunSummary], Awaitable[bool]]
"""Says whether a run is listed."""


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Which runs a list has. None is all."""

    agent: str | None = None
    status: str | None = None
    tenant: str | None = None
    user: str | None = None
    roots: bool = True
    started_from: datetime | None = None
    started_before: datetime | None = None
    updated_from: datetime | None = None
    """Those whose last step was recorded at this time or later."""
    error: str | None = None
    """The class of the error that they failed with."""
    search: str | None = None
    """Words of the id, the first message or the error."""

    @property
    def labels(self) -> dict[str, str | None]:
        """Tenant and user."""
        return {"tenant": self.tenant, "user": self.user}

    def as_dict(self) -> dict[str, Any]:
        """Return the filters as plain JSON."""
        texts = {"agent": self.agent, "status": self.status, "error": self.error, "search": self.search}
        return {"roots": self.roots, "updated_from": _format(self.updated_from), **texts, **self.labels, **self.times}

    @property
    def times(self) -> dict[str, str | None]:
        """The period of the start, as the store has it."""
        return {"created_from": _format(self.started_from), "created_before": _format(self.started_before)}

    @property
    def is_recorded(self) -> bool:
        """Whether only the store knows which runs they are."""
        return self.error is not None or self.search is not None or self.updated_from is not None

    def has_time(self, at: datetime | None) -> bool:
        """Whether a run that began then is among them."""
        return at is None or ((self.started_from or at) <= at and (not self.started_before or at < self.started_before))

    def has_cause(self, run: RunSummary) -> bool:
        """Whether a run that is held up is among them by what holds it up."""
        return self.error is None or any(one.error_type == self.error for one in run.held_up)

    def build_store_filter(self) -> RunFilter:
        """Build the filter for the rows of the store."""
        status = self.status if self.status in _RECORDED_STATUSES else None
        return RunFilter(
            self.agent, status, **self.labels, roots=self.roots, **self.times, error=self.error, search=self.search,
            updated_from=_format(self.updated_from),
        )  # fmt: skip

    def has_row(self, row: RunRow) -> bool:
        """Whether the store lists the row, but for the error."""
        wanted = self.labels | {"agent": self.agent}
        if any(value not in (None, getattr(row, name)) for name, value in wanted.items()):
            return False
        if self.status in _RECORDED_STATUSES and row.status != self.status:
            return False
        if self.updated_from is not None and row.updated_at < timestamp(self.updated_from):
            return False
        if not has_words(self.search, row.context_id, row.first_message, row.error):
            return False
        return (not self.roots or row.root is None) and self.has_time(datetime.fromisoformat(row.created_at))


def _format(at: datetime | None) -> str | None:
    return None if at is None else timestamp(at)


_RECORDED_STATUSES = ("completed", "failed", "cancelled")
"""Statuses that rows of the store have as Temporal has them: a run writes them as it ends."""


async def list_run_page(
    client: ClientHandle,
    filters: RunFilters,
    *,
    limit: int = 50,
    cursor: str | None = None,
    visible: Visible | None = None,
) -> RunPage:
    """See ``Client.list_page``. Lists only runs for which ``visible`` returns true."""
    check_page_limit(limit)
    check_filters(agent=filters.agent, status=filters.status, **filters.labels)
    check_filters(error=filters.error, search=filters.search)
    if filters.status == "held_up" and filters.search is None and filters.updated_from is None:
        place = decode_cursor("runs", filters.as_dict(), cursor) if cursor is not None else ["temporal", ""]
        return await _RunPager(client, filters, limit, visible).build_held_up_page(place)
    is_by_store = filters.status is None or filters.status in _RECORDED_STATUSES or filters.is_recorded
    if filters.is_recorded or (client.store_url is not None and is_by_store):
        return await _list_newest(client, filters, limit, cursor, visible)
    place = decode_cursor("runs", filters.as_dict(), cursor) if cursor is not None else ["temporal", ""]
    pager = _RunPager(client, filters, limit, visible)
    match place:
        case ["temporal", token]:
            next_token = await pager.read_visibility(_decode_token(token))
            if next_token:
                return await pager.build_page(["temporal", base64.b64encode(next_token).decode()])
            at, last_id = "", ""
        case ["store", at, last_id]:
            pass
        case _:
            raise InvalidInputError("cursor: it is not a cursor of this list", hint="Begin again without a cursor.")
    if client.store_url is None or filters.status == OPEN or filters.status in OPEN_STATES:
        return await pager.build_page(None)
    if len(pager.runs) >= limit:
        return await pager.build_page(["store", at, last_id])
    after = await pager.read_store(await client.store(), (at, last_id) if at else None)
    return await pager.build_page(None if after is None else ["store", *after])


def _decode_token(token: str) -> bytes:
    try:
        return base64.b64decode(token, validate=True)
    except ValueError:
        raise InvalidInputError("cursor: it is damaged", hint="Begin again without a cursor.") from None


# ---
# By the store, the newest first. Runs that it does not have yet come from Temporal's listing of the same time.


Place = tuple[str, str]
"""A place in the order of a list: a time of the store, and an id. A page ends before its own place, and begins behind
that of the page before."""
_WINDOW_EXECUTIONS = 500
"""Executions of the time of a page that Temporal is asked for at once. If it has more, the page covers less time."""


async def _list_newest(
    client: ClientHandle, filters: RunFilters, limit: int, cursor: str | None, visible: Visible | None
) -> RunPage:
    place: Place | None = None
    if cursor is not None:
        at, last_id = decode_cursor("runs", filters.as_dict(), cursor, 2)
        try:
            place = timestamp(datetime.fromisoformat(at)), last_id
        except (ValueError, OverflowError):
            raise InvalidInputError("cursor: it is damaged", hint="Begin again without a cursor.") from None
    pager = _NewestPager(client, filters, limit, visible)
    after = await pager.read(await client.store(), place)
    return RunPage(tuple(pager.runs), None if after is None else encode_cursor("runs", filters.as_dict(), after))


class _NewestPager:
    """Collects the runs of one page, the newest first."""

    def __init__(self, client: ClientHandle, filters: RunFilters, limit: int, visible: Visible | None) -> None:
        self._client, self._filters, self._limit, self._visible = client, filters, limit, visible
        self.runs: list[RunSummary] = []

    async def read(self, store: Store, place: Place | None) -> Place | None:
        """Add runs from ``place`` on; return the place of the next page, None at the end."""
        is_shown, size = True, max(self._limit, _STORE_ROWS)
        for _ in range(MAX_REQUESTS):
            rows, after = await store.search_runs(self._filters.build_store_filter(), after=place, limit=size)
            rows, others, after, newest = await self._find_unrecorded(store, rows, place, after)
            found = await self.summarize(rows, others, newest)
            is_shown = False
            for at, run in sorted(found, key=lambda pair: pair[0], reverse=True):
                if is_shown := self._visible is None or await self._visible(run):
                    self.runs.append(run)
                if len(self.runs) >= self._limit:
                    return at
            if after is None:
                return None
            place = after
        return place if is_shown or place is None else _step_back(place[0])

    async def _find_unrecorded(
        self, store: Store, rows: Sequence[RunRow], place: Place | None, after: Place | None
    ) -> tuple[list[RunRow], list[WorkflowExecution], Place | None, dict[str, WorkflowExecution]]:
        """Find the executions between the two places of which the store lists no row. Return ``rows`` with those that
        were written meanwhile, the executions, where the page ends then, and the last executions of the runs of which
        the listing tells them."""
        executions, after, is_whole = await self._read_window(place, after)
        is_newest = is_whole and place is None and self._filters.status is None and not self._filters.started_before
        newest = select_newest(one for one in executions if is_newest or one.status is WorkflowExecutionStatus.RUNNING)
        known = {row.context_id for row in rows}
        missing = {execution.id: execution for execution in reversed(executions) if execution.id not in known}
        found = await store.get_runs(list(missing))
        listed = {name: row for name, row in found.items() if self._filters.has_row(row)}
        rows = [row for row in (*rows, *listed.values()) if _is_between(_get_place(row), after, place)]
        return rows, [execution for name, execution in missing.items() if name not in listed], after, newest

    async def _read_window(
        self, place: Place | None, after: Place | None
    ) -> tuple[Sequence[WorkflowExecution], Place | None, bool]:
        """Read the executions between the two places; return them, where the page ends then, and whether they are
        all."""
        if self._filters.is_recorded:
            return (await self._find_by_id() if place is None else ()), after, False
        end = None if place is None else datetime.fromisoformat(place[0]) + timedelta(microseconds=1)
        while True:
            begin = None if after is None else datetime.fromisoformat(after[0])
            executions, token = await fetch_executions(
                self._client, self._filters, size=_WINDOW_EXECUTIONS, begin=begin, end=end
            )
            executions = [
                one
                for one in executions
                if _is_between(_get_start_place(one), None, place) and self._filters.has_time(one.start_time)
            ]
            if token and len(executions) > 1:
                middle = sorted(map(_get_start_place, executions))[len(executions) // 2]
                if after is None or middle > after:
                    after = middle
                    continue
            return [one for one in executions if _is_between(_get_start_place(one), after, place)], after, not token

    async def _find_by_id(self) -> list[WorkflowExecution]:
        """Find runs by the beginning of their id that the store may not have yet."""
        words = (self._filters.search or "").split()
        if len(words) != 1 or self._filters.error is not None or self._filters.updated_from is not None:
            return []
        query = f"{RUNS_QUERY} AND WorkflowId STARTS_WITH {quote_literal(words[0])} AND {build_status_filter(None)}"
        found = [one async for one in list_executions(self._client, f"{query} AND ExecutionStatus = 'Running'")]
        return found[: self._limit]

    async def summarize(
        self, rows: Sequence[RunRow], others: Sequence[WorkflowExecution], newest: Mapping[str, WorkflowExecution]
    ) -> list[tuple[Place, RunSummary]]:
        """Return those of the runs that the filters have, with their places. ``newest``: last executions that are
        known, by id; the others are read."""
        names = [*(row.context_id for row in rows), *(execution.id for execution in others)]
        unknown = await find_newest_executions(self._client, [name for name in names if name not in newest])
        newest = {**newest, **unknown}
        missing = [row for row in rows if row.context_id not in newest]
        elsewhere = await find_other_namespaces(self._client.temporal, missing)
        recorded = [(_get_place(row), _build_recorded_run(row)) for row in missing if row.context_id not in elsewhere]
        pairs = [(row, newest[row.context_id]) for row in rows if row.context_id in newest]
        pairs_of_others = [
            (None, one) for one in others if (last := newest.get(one.id)) is not None and last.run_id == one.run_id
        ]
        summarized = await gather_bounded(lambda pair: self._summarize_pair(*pair), [*pairs, *pairs_of_others])
        listed = [pair for pair in summarized if pair is not None]
        refined = await refine_states(self._client, [run for _, run in listed])
        known = {row.context_id for row in rows}
        added = await add_recorded_texts(self._client, [run for run in refined if run.id not in known])
        texts = {run.id: run for run in added}
        refined = [texts.get(run.id, run) for run in refined]
        states = zip([place for place, _ in listed], refined, strict=True)
        return [(place, run) for place, run in (*recorded, *states) if self._is_wanted(run)]

    async def _summarize_pair(
        self, row: RunRow | None, execution: WorkflowExecution
    ) -> tuple[Place, RunSummary] | None:
        if self._filters.roots and (
            execution.parent_id or (row is None and await has_recorded_parent(self._client, execution.id))
        ):
            return None
        run = await build_run_summary(self._client, execution)
        if row is None:
            return _get_start_place(execution), run
        run = replace(
            copy_texts(run, row),
            started=min(execution.start_time, datetime.fromisoformat(row.created_at)),
            agent=run.agent or row.agent,
            tenant=run.tenant or row.tenant,
            user=run.user or row.user,
        )
        return _get_place(row), run

    def _is_wanted(self, run: RunSummary) -> bool:
        filters = self._filters
        shown = has_agent_and_status(run, filters.agent, filters.status) and has_labels(run, filters.labels)
        return shown and (filters.error is None or run.error_type == filters.error)


async def list_runs_by_id(client: ClientHandle, ids: Sequence[str], filters: RunFilters) -> list[RunSummary]:
    """List those of the runs ``ids`` that exist and that the other filters have, in their order."""
    store = await client.store()
    pager = _NewestPager(client, filters, len(ids), None)
    rows = await store.get_runs(ids)
    newest = await find_newest_executions(client, ids)
    wanted = {name: row for name, row in rows.items() if filters.has_row(row)}
    others = [
        one
        for name, one in newest.items()
        if name not in rows
        and filters.updated_from is None
        and has_words(filters.search, name)
        and filters.has_time(one.start_time)
    ]
    found = {run.id: run for _, run in await pager.summarize(list(wanted.values()), others, newest)}
    return [found[name] for name in dict.fromkeys(ids) if name in found]


def _is_between(place: Place, first: Place | None, end: Place | None) -> bool:
    return (first is None or place >= first) and (end is None or place < end)


def _get_place(row: RunRow) -> Place:
    return row.created_at, row.context_id


def _get_start_place(execution: WorkflowExecution) -> Place:
    return timestamp(execution.start_time), execution.id


async def find_newest_executions(client: ClientHandle, ids: Iterable[str]) -> dict[str, WorkflowExecution]:
    """Find the last execution of each of these runs: of one that was resumed, Temporal lists several."""
    executions: list[WorkflowExecution] = []
    names = list(dict.fromkeys(ids))
    for start in range(0, len(names), _IDS_PER_QUERY):
        query = build_ids_query(names[start : start + _IDS_PER_QUERY])
        listed = list_executions(client, f"{query} AND ExecutionStatus != 'ContinuedAsNew'")
        executions += [execution async for execution in listed]
    return select_newest(executions)


def select_newest(executions: Iterable[WorkflowExecution]) -> dict[str, WorkflowExecution]:
    """Return the last of the executions of each run, by its id."""
    newest: dict[str, WorkflowExecution] = {}
    for execution in executions:
        known = newest.get(execution.id)
        if known is None or known.start_time < execution.start_time:
            newest[execution.id] = execution
    return newest


_IDS_PER_QUERY = 100

# ---
# By Temporal, where it alone knows a status.


class _RunPager:
    """Collects the runs of one page."""

    def __init__(self, client: ClientHandle, filters: RunFilters, limit: int, visible: Visible | None) -> None:
        self._client, self._filters, self._limit, self._visible = client, filters, limit, visible
        self.runs: dict[str, RunSummary] = {}
        self._listed: set[str] = set()
        """Runs that Temporal's listing is known to have."""

    async def build_page(self, place: Sequence[str] | None) -> RunPage:
        """Build the page, whose next one begins at ``place``."""
        cursor = None if place is None else encode_cursor("runs", self._filters.as_dict(), place)
        return RunPage(tuple(await add_recorded_texts(self._client, list(self.runs.values()))), cursor)

    async def build_held_up_page(self, place: Sequence[str]) -> RunPage:
        """Build a page of runs that are held up, which the store lists: those that have been for longest first."""
        match place:
            case ["temporal", ""]:
                after = None
            case ["held_up", since, context_id, call]:
                after = FailingCursor(since, context_id, call)
            case _:
                raise InvalidInputError("cursor: it is not a cursor of this list", hint="Begin again without a cursor.")
        filters = self._filters
        labels = {"agent": filters.agent, **filters.labels}
        for _ in range(MAX_REQUESTS):
            size = self._limit - len(self.runs)
            runs, after = await list_held_up_runs(self._client, after, size, roots=filters.roots, filters=labels)
            for run in runs:
                if filters.has_time(run.started) and filters.has_cause(run):
                    await self._add_visible(run)
            if after is None or len(self.runs) >= self._limit:
                break
        if after is not None and not any(f"{after.context_id}/".startswith(f"{name}/") for name in self.runs):
            after = FailingCursor(after.since, "", "")  # a cursor names no run that the caller may not see
        return await self.build_page(None if after is None else ["held_up", *after])

    async def read_visibility(self, token: bytes) -> bytes:
        """Add runs that Temporal lists from ``token`` on; return the token of the next ones, b"" at the end."""
        # Open executions come first, then closed ones, the last one first: of a run, the newest is the first in a list
        # that begins at the beginning, and leaves none out for its status, or for being newer.
        is_in_order = not token and self._filters.status is None and self._filters.started_before is None
        for _ in range(MAX_REQUESTS):
            executions, token = await fetch_executions(
                self._client, self._filters, size=self._limit - len(self.runs), token=token
            )
            if is_in_order:
                first = {execution.id: execution.run_id for execution in reversed(executions)}
                newest = {first[name] for name in first.keys() - self._listed}
                runs = await self._summarize_executions(executions)
            else:
                runs, newest = await asyncio.gather(
                    self._summarize_executions(executions), self._find_newest(executions)
                )
            self._listed |= {execution.id for execution in executions}
            for execution in executions:
                run = runs.get(execution.run_id)
                if run is not None and execution.run_id in newest and execution.id not in self.runs:
                    await self._add_visible(run)
            if not token or len(self.runs) >= self._limit:
                break
        return token

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

    async def _summarize_executions(self, executions: Sequence[WorkflowExecution]) -> dict[str, RunSummary]:
        """Return what the list shows of the executions that the filters leave, by their run ids."""
        runs = await gather_bounded(self._summarize_execution, executions)
        pairs = [(execution.run_id, run) for execution, run in zip(executions, runs, strict=True) if run is not None]
        refined = await refine_states(self._client, [run for _, run in pairs])
        agent, status = self._filters.agent, self._filters.status
        return {
            run_id: run
            for (run_id, _), run in zip(pairs, refined, strict=True)
            if has_agent_and_status(run, agent, status)
        }

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
        return run if has_labels(run, filters.labels) and filters.has_time(run.started) else None

    async def _add_visible(self, run: RunSummary) -> bool:
        if self._visible is not None and not await self._visible(run):
            return False
        self.runs[run.id] = run
        return True

    async def read_store(self, store: Store, after: tuple[str, str] | None) -> tuple[str, str] | None:
        """Add runs that only the store has, from the row ``after`` on; return the last row, None at the end."""
        filters = self._filters
        for _ in range(MAX_REQUESTS):
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
    run = RunSummary(row.context_id, row.agent, row.status, started, tenant=row.tenant, user=row.user)
    return copy_texts(run, row)


async def fetch_executions(
    client: ClientHandle,
    filters: RunFilters,
    *,
    size: int,
    token: bytes = b"",
    begin: datetime | None = None,
    end: datetime | None = None,
) -> tuple[Sequence[WorkflowExecution], bytes]:
    """Fetch a page of Temporal's listing, and the token of the next one. ``begin`` and ``end`` narrow the period of the
    start."""
    first = max((at for at in (filters.started_from, begin) if at is not None), default=None)
    last = min((at for at in (filters.started_before, end) if at is not None), default=None)
    parts = [RUNS_QUERY, build_status_filter(filters.status), *([ROOTS_FILTER] if filters.roots else ())]
    times = (f"StartTime {sign} '{timestamp(at)}'" for sign, at in ((">=", first), ("<", last)) if at is not None)
    query = " AND ".join([*parts, *times])
    extra = [*build_label_filters(filters.labels)]
    extra += [build_agent_filter(filters.agent)] if filters.agent is not None else []
    for conditions in (extra, []):
        text = " AND ".join((query, *conditions))
        pages = client.temporal.list_workflows(text, page_size=size, next_page_token=token or None)
        try:
            await pages.fetch_next_page()
        except RPCError as error:
            if is_missing_attribute(error) and (conditions or filters.status in INDEXED_STATES):
                if conditions:
                    continue
                raise build_missing_status_error(str(filters.status)) from None
            if token and await _is_token_refused(client, text, error):
                raise InvalidInputError(
                    "cursor: Temporal does not know it", hint="Begin again without a cursor."
                ) from error
            raise translate_service_error(client.temporal, error) from error
        return pages.current_page or (), pages.next_page_token or b""
    raise AssertionError("the query without conditions was sent")


async def _is_token_refused(client: ClientHandle, query: str, error: RPCError) -> bool:
    """Whether ``error`` is about the token of a page. Servers answer a damaged one as if they were unavailable."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return True
    try:
        await client.temporal.list_workflows(query, page_size=1).fetch_next_page()
    except RPCError:
        return False
    return True
