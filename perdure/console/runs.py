"""The list of runs: the address is the filter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, get_args

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..ports import Store
from ..types.interface import Response as RunResponse
from ..types.messages import Usage
from ..web.lists import SessionRow, SessionsQuery, SessionState, list_sessions
from ..web.operations import validate
from .inbox import count_pending
from .pages import Page, PageRoute

ROWS = 50


@dataclass(frozen=True)
class RunRowView:
    """A run of the list, with what the store has of it."""

    run: SessionRow
    usage: Usage
    cost_usd: float | None
    iterations: int


async def show_runs(page: Page) -> Response:
    """Show the runs that the address asks for: open ones first, each the newest first."""
    given = page.request.query_params
    fields: dict[str, Any] = {"limit": ROWS, "children": given.get("children") == "1"}
    names = ("agent", "status", "tenant", "user", "cursor")
    fields |= {name: given[name].strip() for name in names if given.get(name, "").strip()}
    query = validate(SessionsQuery, fields, "the address")
    listed, count = await asyncio.gather(list_sessions(replace(page.call, query=query)), count_pending(page))
    store = await page.call.client.store()
    rows = await gather_bounded(lambda run: _read_row(store, run), listed.data)
    filters = {name: given[name] for name in ("agent", "status", "tenant", "user", "children") if given.get(name)}
    return page.render(
        "runs.html", rows=rows, cursor=listed.cursor, filters=filters, count=count, states=get_args(SessionState)
    )


async def _read_row(store: Store, run: SessionRow) -> RunRowView:
    row = await store.get_run(run.id)
    if row is None or row.result is None:
        return RunRowView(run, Usage(), None, 0 if row is None else row.iterations)
    result = RunResponse[Any].model_validate_json(row.result)
    return RunRowView(run, result.usage, result.cost_usd, row.iterations)


PAGES = (PageRoute("GET", "/runs", show_runs, "runs"),)
