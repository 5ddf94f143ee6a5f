"""The list of runs: the address is the filter; those that are ticked are cancelled or resumed, after a second look.

What a run waits for, was asked and has cost is the store's word, by one query each for the rows of the page: no run is
asked. What is done to all that match is in ``bulk.py``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..client.run_states import refine_states
from ..client.visibility import build_run_summary, read_pending_memo
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..ports.usage import RunUsage
from ..ports.waits import WaitRow
from ..types.run_states import StateFilter
from ..web.auth import Resource, get_list_scope
from ..web.lists import SessionRow, SessionsQuery, list_sessions, read_visible_agents
from ..web.operations import validate
from ..web.problems import build_problem
from ..web.sessions import SessionEvent, post_event
from .inbox import count_pending
from .pages import Page, PageRoute

ROWS = 50
FILTERS = ("agent", "status", "tenant", "user", "started", "error", "search", "updated_from", "children")
_TEXT_FILTERS = ("agent", "status", "tenant", "user", "error", "search", "updated_from")
_PERIODS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
"""What ``started`` may be in the address, beside a time or two with a slash between them (ISO 8601)."""
_SUGGESTED = 50
_SUGGESTED_PERIOD = timedelta(days=7)
"""Errors of this time are suggestions."""


@dataclass(frozen=True)
class RunRowView:
    """A run of the list, with what the store has of it."""

    run: SessionRow
    usage: RunUsage | None
    """So far, with subagents; None for a subagent, and while nothing is recorded."""
    iterations: int
    waits: Sequence[WaitRow] = ()
    """Calls that wait in the run and in its subagents."""


@dataclass(frozen=True)
class ActionResult:
    """What became of an action on one of several runs."""

    id: str
    tone: Literal["good", "warn"]
    text: str


async def show_runs(page: Page) -> Response:
    """Show the runs that the address asks for, the newest first."""
    return await _show_runs(page, [])


async def _show_runs(page: Page, results: Sequence[ActionResult]) -> Response:
    given = page.request.query_params
    filters = read_filters(given)
    fields: dict[str, Any] = {"limit": ROWS, **build_query_fields(filters)}
    fields |= {"cursor": given["cursor"].strip()} if given.get("cursor", "").strip() else {}
    query = validate(SessionsQuery, fields, "the address")
    listed, count, suggestions = await asyncio.gather(
        list_sessions(replace(page.call, query=query)), count_pending(page), _suggest(page)
    )
    rows = await _read_rows(page, listed.data)
    next_filters = dict(filters)
    if "started" in filters:  # the next page is one of the same list: "24h" would be another time by then
        next_filters["started"] = format_period(query)
    for name, values in (("tenant", [row.run.tenant for row in rows]), ("user", [row.run.user for row in rows])):
        suggestions[name] = sorted({value for value in values if value})
    return page.render(
        "runs.html",
        rows=rows,
        cursor=listed.cursor,
        filters=filters,
        next_filters=next_filters,
        count=count,
        states=get_args(StateFilter),
        periods=_PERIODS,
        suggestions=suggestions,
        results=results,
        may_operate="operate" in page.call.caller.verbs,
    )


def read_filters(given: Mapping[str, str]) -> dict[str, str]:
    """Return the filters that an address or a form has."""
    return {name: given[name].strip() for name in FILTERS if given.get(name, "").strip()}


def build_query_fields(filters: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a query of the API for the filters of an address."""
    fields: dict[str, Any] = {name: filters[name] for name in _TEXT_FILTERS if name in filters}
    return fields | {"children": filters.get("children") == "1"} | _read_period(filters.get("started", ""))


def format_period(query: Any) -> str:
    """Return the period of the start as an address has it, with its times."""
    return "/".join(at.isoformat() if at else "" for at in (query.started_from, query.started_before))


def _read_period(started: str) -> dict[str, str]:
    """Return the fields of a query for what the address says of the start."""
    if started in _PERIODS:
        return {"started_from": (datetime.now(UTC) - _PERIODS[started]).isoformat()}
    first, _, last = started.partition("/")
    return {name: at for name, at in (("started_from", first), ("started_before", last)) if at}


async def _suggest(page: Page) -> dict[str, list[str]]:
    """Return what the fields of the filter may be: agents that workers have recorded, and errors of the last days."""
    scope = get_list_scope(page.call.caller)
    since = (datetime.now(UTC) - _SUGGESTED_PERIOD).isoformat(timespec="microseconds")
    store = await page.call.client.store()
    agents, failures = await asyncio.gather(
        read_visible_agents(page.call),
        store.count_failures(
            since, tenants=scope.tenants, agents=scope.agents, sessions=scope.sessions, limit=_SUGGESTED
        ),
    )
    return {"agent": sorted(agents)[:_SUGGESTED], "error": [one.error_type for one in failures]}


async def _read_rows(page: Page, runs: Sequence[SessionRow]) -> list[RunRowView]:
    """Add what the store has of the runs, by one statement of each kind."""
    store, ids = await page.call.client.store(), [run.id for run in runs]
    waits, recorded, usage = await asyncio.gather(
        store.list_run_waits(ids), store.get_runs(ids), store.sum_run_usage(ids)
    )

    async def build(run: SessionRow) -> RunRowView:
        row, known = recorded.get(run.id), waits[run.id]
        shown = [wait for wait in known.waits if await _may_read(page, run, wait)]
        iterations = 0 if row is None else row.iterations
        return RunRowView(run, usage.get(run.id), iterations, shown)

    return await gather_bounded(build, runs)


async def _may_read(page: Page, run: SessionRow, wait: WaitRow) -> bool:
    """Whether the visitor, who may read the run, may read that it waits, which may be in a subagent."""
    if wait.context_id == run.id:
        return True
    return await page.call.may("read", Resource("session", wait.context_id, wait.agent, run.tenant, run.user))


async def act_on_runs(page: Page) -> Response:
    """Cancel or resume the runs that were ticked, each on its own; first show which they are. Or compare two."""
    ids, action = list(dict.fromkeys(page.form.get_all("item"))), page.form.get("action")
    if action == "compare":
        if not 0 < len(ids) <= 2:
            raise InvalidInputError(f"two runs are compared, not {len(ids)}", hint="Tick two of them.")
        return page.redirect("/compare", **dict(zip(("left", "right"), reversed(ids), strict=False)))
    if action not in ("cancel", "resume"):
        raise InvalidInputError("the form says not what to do")
    if not 0 < len(ids) <= ROWS:
        raise InvalidInputError(f"1 to {ROWS} runs can be chosen, not {len(ids)}", hint="Tick the runs that you mean.")
    if "sure" not in page.form:
        rows = await gather_bounded(lambda run_id: _read_chosen(page, run_id), ids)
        query, count = page.request.url.query, await count_pending(page)
        return page.render("runs_confirm.html", rows=rows, action=action, query=query, count=count)
    return await _show_runs(page, await gather_bounded(lambda run_id: _act(page, run_id, action), ids))


@dataclass(frozen=True)
class ChosenRun:
    """A run that was ticked, as the page names it that asks whether it is meant."""

    id: str
    state: str = "unknown"
    agent: str = ""
    user: str = ""
    waiting: Sequence[str] | None = None
    """Tools whose calls wait; None if only the run itself knows them."""


async def _read_chosen(page: Page, id: str) -> ChosenRun:
    try:
        resource = await page.call.web.find_session(id)
        if not await page.call.may("read", resource):
            return ChosenRun(id)
        execution = await page.call.client.run(id).describe()
        [summary] = await refine_states(page.call.client, [await build_run_summary(page.call.client, execution)])
        state = summary.status
        pending = await read_pending_memo(execution) if execution.close_time is None else ()
    except RunNotFoundError:
        return ChosenRun(id)
    waiting = None if pending is None else [call.tool for call in pending]
    return ChosenRun(id, state, resource.agent or "", resource.user or "", waiting)


async def _act(page: Page, id: str, action: str) -> ActionResult:
    try:
        call = replace(page.call, params={"id": id}, body=SessionEvent.model_validate({"type": action}))
        call.resource = await page.call.web.find_session(id)
        await call.authorize("read", action)
        await post_event(call)
    except PerdureError as error:
        return ActionResult(id, "warn", json.loads(bytes(build_problem(error).body))["detail"])
    return ActionResult(id, "good", "is being cancelled" if action == "cancel" else "resumed")


PAGES = (
    PageRoute("GET", "/runs", show_runs, "runs"),
    PageRoute("POST", "/runs", act_on_runs, "act_on_runs", seconds=50.0),
)
