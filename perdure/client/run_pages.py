"""Pages of runs, for consoles and services.

Runs come from Temporal first, in the order of its visibility, then those that only the store has.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ..errors import InvalidInputError
from ..ports.failures import FailingCursor
from ..ports.store import RunRow, Store
from ..ports.times import timestamp
from ..temporal.errors import is_missing_attribute, translate_service_error
from ..types.run_states import OPEN_STATES
from .handles import ClientHandle
from .pages import MAX_REQUESTS, check_filters, check_page_limit, decode_cursor, encode_cursor, gather_bounded
from .run_lists import list_held_up_runs
from .run_states import RunSummary, refine_states
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
    select_roots,
)

_STORE_ROWS = 100
"""Rows of the store that Temporal is asked for at once."""


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
    check_filters(agent=agent, status=status, tenant=tenant, user=user)
    filters = _RunFilters(agent, status, tenant, user, roots, started_from, started_before)
    place = decode_cursor("runs", filters.as_dict(), cursor) if cursor is not None else ["temporal", ""]
    pager = _RunPager(client, filters, limit, visible)
    if status == "held_up":
        return await pager.build_held_up_page(place)
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
    if client.store_url is None or status == OPEN or status in OPEN_STATES:
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
                if filters.has_time(run.started):
                    await self._add_visible(run)
            if after is None or len(self.runs) >= self._limit:
                break
        if after is not None and not any(f"{after.context_id}/".startswith(f"{name}/") for name in self.runs):
            after = FailingCursor(after.since, "", "")  # a cursor names no run that the caller may not see
        return self.build_page(None if after is None else ["held_up", *after])

    async def read_visibility(self, token: bytes) -> bytes:
        """Add runs that Temporal lists from ``token`` on; return the token of the next ones, b"" at the end."""
        # Open executions come first, then closed ones, the last one first: of a run, the newest is the first in a list
        # that begins at the beginning, and leaves none out for its status, or for being newer.
        is_in_order = not token and self._filters.status is None and self._filters.started_before is None
        for _ in range(MAX_REQUESTS):
            executions, token = await self._fetch_executions(token)
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
                if is_missing_attribute(error) and (conditions or filters.status in INDEXED_STATES):
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
    return RunSummary(row.context_id, row.agent, row.status, started, tenant=row.tenant, user=row.user)
