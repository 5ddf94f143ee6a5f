"""What is done to all runs that match a filter: a count and a sample, the confirmation, and a page of its progress.

The page only shows what the store has: a worker does the work, whether it is open or not.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from ..client.bulk_actions import PER_SECOND
from ..errors import InvalidInputError
from ..ports.bulk_actions import OUTCOMES, BulkVerb
from ..web.auth import Resource
from ..web.bulk_actions import (
    BulkFilterBody,
    BulkQuestion,
    BulkRunsQuery,
    NewBulkAction,
    find_bulk_action,
    list_bulk_action_runs,
    list_bulk_actions,
    preview_bulk_action,
    show_action,
    start_bulk_action,
    stop_bulk_action,
)
from ..web.lists import PageQuery
from ..web.operations import validate
from .inbox import count_pending
from .pages import Page, PageRoute
from .runs import FILTERS, build_query_fields, format_period, read_filters

_ROWS = 50
_VERBS: tuple[BulkVerb, ...] = ("resume", "cancel")


async def ask_bulk(page: Page) -> Response:
    """Count what would be done to all runs that the address names, and ask whether it is meant."""
    await page.call.authorize("operate", "preview_bulk_action", Resource("session"))
    given = page.request.query_params
    verb = _read_verb(given.get("verb"))
    filters = read_filters(given)
    body = validate(BulkFilterBody, build_query_fields(filters), "the address")
    question = BulkQuestion(verb=verb, filter=body)
    preview, count = await asyncio.gather(preview_bulk_action(replace(page.call, body=question)), count_pending(page))
    if "started" in filters:  # what is confirmed is the period that was counted
        filters["started"] = format_period(body)
    return page.render(
        "bulk_confirm.html",
        verb=verb,
        filters=filters,
        preview=preview,
        count=count,
        nonce=uuid.uuid4().hex,
        per_second=PER_SECOND,
        back=f"{page.base}/runs?{urlencode(filters)}",
    )


def _read_verb(text: str | None) -> BulkVerb:
    for verb in _VERBS:
        if text == verb:
            return verb
    raise InvalidInputError("the address says not what to do: resume or cancel")


async def start_bulk(page: Page) -> Response:
    """Do to all runs what was confirmed, and show how far it is."""
    await page.call.authorize("operate", "create_bulk_action", Resource("session"))
    form = page.form
    fields: dict[str, Any] = {
        "verb": _read_verb(form.get("verb")),
        "filter": build_query_fields(read_filters({name: form.get(name) for name in FILTERS})),
        "as_of": form.get("as_of"),
        "per_second": _read_rate(form.get("per_second") or ""),
    }
    # The button that is pressed twice starts it once.
    call = replace(page.call, body=validate(NewBulkAction, fields, "the form"), headers={})
    call.key = f"console/{call.scope}/{form.get('nonce') or uuid.uuid4().hex}"
    action = await start_bulk_action(call)
    return page.redirect(f"/bulk/{action.id}")


def _read_rate(text: str) -> float:
    try:
        return float(text.strip().replace(",", ".") or PER_SECOND)
    except ValueError:
        raise InvalidInputError(f"runs per second: {text!r:.40} is not a number") from None


async def show_bulks(page: Page) -> Response:
    """Show the bulk actions of the last 30 days, the newest first."""
    await page.call.authorize("operate", "list_bulk_actions", Resource("session"))
    fields = {"limit": _ROWS} | _read_cursor(page)
    query = validate(PageQuery, fields, "the address")
    listed, count = await asyncio.gather(list_bulk_actions(replace(page.call, query=query)), count_pending(page))
    return page.render("bulks.html", actions=listed.data, cursor=listed.cursor, count=count)


async def show_bulk(page: Page) -> Response:
    """Show how far a bulk action is, and what became of each run."""
    await page.call.authorize("operate", "get_bulk_action", Resource("session"))
    action = await find_bulk_action(page.call)
    outcome = page.request.query_params.get("outcome", "")
    fields = {"limit": _ROWS} | _read_cursor(page) | ({"outcome": outcome} if outcome else {})
    query = validate(BulkRunsQuery, fields, "the address")
    runs, count = await asyncio.gather(list_bulk_action_runs(replace(page.call, query=query)), count_pending(page))
    done = action.total - action.counts.get("pending", 0)
    left = timedelta(seconds=action.counts.get("pending", 0) / action.per_second)
    return page.render(
        "bulk_progress.html" if page.wants_fragment else "bulk.html",
        action=show_action(page.call, action),
        runs=runs.data,
        cursor=runs.cursor,
        outcome=outcome,
        outcomes=OUTCOMES,
        done=done,
        left=left,
        count=count,
    )


def _read_cursor(page: Page) -> dict[str, Any]:
    cursor = page.request.query_params.get("cursor", "").strip()
    return {"cursor": cursor} if cursor else {}


async def stop_bulk(page: Page) -> Response:
    """Stop a bulk action."""
    await page.call.authorize("operate", "stop_bulk_action", Resource("session"))
    action = await stop_bulk_action(page.call)
    return page.redirect(f"/bulk/{action.id}")


PAGES = (
    PageRoute("GET", "/bulk", show_bulks, "bulks"),
    PageRoute("GET", "/bulk/new", ask_bulk, "ask_bulk"),
    PageRoute("POST", "/bulk/new", start_bulk, "start_bulk", seconds=50.0),
    PageRoute("GET", "/bulk/{bulk:segment}", show_bulk, "bulk"),
    PageRoute("POST", "/bulk/{bulk:segment}/stop", stop_bulk, "stop_bulk"),
)
