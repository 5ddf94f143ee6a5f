"""The list of runs: the address is the filter; those that are ticked are cancelled or resumed, after a second look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..client.visibility import build_run_summary, read_pending_memo
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..ports import Store
from ..types.interface import Response as RunResponse
from ..types.messages import Usage
from ..web.lists import SessionRow, SessionsQuery, SessionState, list_sessions
from ..web.operations import validate
from ..web.problems import build_problem
from ..web.sessions import SessionEvent, post_event
from .inbox import count_pending
from .pages import Page, PageRoute

ROWS = 50
_FILTERS = ("agent", "status", "tenant", "user", "children")


@dataclass(frozen=True)
class RunRowView:
    """A run of the list, with what the store has of it."""

    run: SessionRow
    usage: Usage
    cost_usd: float | None
    iterations: int


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
    query = validate(SessionsQuery, fields, "the address")
    listed, count = await asyncio.gather(list_sessions(replace(page.call, query=query)), count_pending(page))
    store = await page.call.client.store()
    rows = await gather_bounded(lambda run: _read_row(store, run), listed.data)
    return page.render(
        "runs.html",
        rows=rows,
        cursor=listed.cursor,
        filters={name: given[name] for name in _FILTERS if given.get(name)},
        count=count,
        states=get_args(SessionState),
        results=results,
        may_operate="operate" in page.call.caller.verbs,
    )


async def _read_row(store: Store, run: SessionRow) -> RunRowView:
    row = await store.get_run(run.id)
    if row is None or row.result is None:
        return RunRowView(run, Usage(), None, 0 if row is None else row.iterations)
    result = RunResponse[Any].model_validate_json(row.result)
    return RunRowView(run, result.usage, result.cost_usd, row.iterations)


async def act_on_runs(page: Page) -> Response:
    """Cancel or resume the runs that were ticked, each on its own; first show which they are."""
    ids, action = list(dict.fromkeys(page.form.get_all("item"))), page.form.get("action")
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
        state = (await build_run_summary(page.call.client, execution)).status
        pending = await read_pending_memo(execution) if execution.close_time is None else ()
    except RunNotFoundError:
        return ChosenRun(id)
    waiting = None if pending is None else [call.name for call in pending]
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
