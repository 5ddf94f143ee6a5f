"""The list of runs: the address is the filter; those that are ticked are cancelled or resumed, after a second look.

What a run waits for is the store's word, by one query for the rows of the page: no run is asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..client.run_states import refine_states
from ..client.visibility import build_run_summary, read_pending_memo
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..ports.store import Store
from ..ports.waits import RunWaits, WaitRow
from ..types.interface import Response as RunResponse
from ..types.messages import Usage
from ..types.run_states import StateFilter
from ..web.auth import Resource
from ..web.lists import SessionRow, SessionsQuery, list_sessions
from ..web.operations import validate
from ..web.problems import build_problem
from ..web.sessions import SessionEvent, post_event
from .inbox import count_pending
from .pages import Page, PageRoute

ROWS = 50
_FILTERS = ("agent", "status", "tenant", "user", "started", "children")
_PERIODS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
"""What ``started`` may be in the address, beside a time or two with a slash between them (ISO 8601)."""


@dataclass(frozen=True)
class RunRowView:
    """A run of the list, with what the store has of it."""

    run: SessionRow
    usage: Usage
    cost_usd: float | None
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
    """Show the runs that the address asks for: open ones first, each the newest first."""
    return await _show_runs(page, [])


async def _show_runs(page: Page, results: Sequence[ActionResult]) -> Response:
    given = page.request.query_params
    fields: dict[str, Any] = {"limit": ROWS, "children": given.get("children") == "1"}
    names = ("agent", "status", "tenant", "user", "cursor")
    fields |= {name: given[name].strip() for name in names if given.get(name, "").strip()}
    filters = {name: given[name].strip() for name in _FILTERS if given.get(name, "").strip()}
    fields |= _read_period(filters.get("started", ""))
    query = validate(SessionsQuery, fields, "the address")
    listed, count = await asyncio.gather(list_sessions(replace(page.call, query=query)), count_pending(page))
    store = await page.call.client.store()
    waits = await store.list_run_waits([run.id for run in listed.data])
    rows = await gather_bounded(lambda run: _read_row(page, store, run, waits[run.id]), listed.data)
    if "started" in filters:  # the next page is one of the same list: "24h" would be another time by then
        filters["started"] = "/".join(at.isoformat() if at else "" for at in (query.started_from, query.started_before))
    return page.render(
        "runs.html",
        rows=rows,
        cursor=listed.cursor,
        filters={name: given[name] for name in _FILTERS if given.get(name, "").strip()},
        next_filters=filters,
        count=count,
        states=get_args(StateFilter),
        periods=_PERIODS,
        results=results,
        may_operate="operate" in page.call.caller.verbs,
    )


def _read_period(started: str) -> dict[str, str]:
    """Return the fields of a query for what the address says of the start."""
    if started in _PERIODS:
        return {"started_from": (datetime.now(UTC) - _PERIODS[started]).isoformat()}
    first, _, last = started.partition("/")
    return {name: at for name, at in (("started_from", first), ("started_before", last)) if at}


async def _read_row(page: Page, store: Store, run: SessionRow, known: RunWaits) -> RunRowView:
    row = await store.get_run(run.id)
    waits = [wait for wait in known.waits if await _may_read(page, run, wait)]
    if row is None or row.result is None:
        return RunRowView(run, Usage(), None, 0 if row is None else row.iterations, waits)
    result = RunResponse[Any].model_validate_json(row.result)
    return RunRowView(run, result.usage, result.cost_usd, row.iterations, waits)


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
