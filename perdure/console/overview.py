"""The start of the console: what is held up, fails, waits and costs, each with the list that it counts.

Every number is the length of the list that its link opens, read by the same function with the visitor's permissions. A
list is counted up to ``COUNTED`` rows. A part that cannot be read says so, and the others are shown.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response

from ..client.queues import QueueStatus, describe_queue
from ..errors import PerdureError
from ..web.approvals import ApprovalsQuery, PendingCall, list_approvals
from ..web.auth import Resource
from ..web.lists import SessionRow, SessionsQuery, list_sessions
from ..web.operations import validate
from ..web.problems import build_problem
from ..web.records import UsageList, UsageQuery, UsageTotals, sum_usage
from .agents import sees_all_runs
from .audit import get_end, get_start
from .costs import describe_cost
from .inbox import count_pending
from .pages import Page, PageRoute

COUNTED = 200
"""Most rows of a list that are counted; then the number has a plus."""
_CAUSES = 5
_LONGEST = 5
_SECONDS = 8.0
"""Longest time of one part."""
_FAILING_PERIOD = timedelta(hours=1)
_DAYS_BEFORE = 7
_SOON = timedelta(hours=1)

T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """A part of the page: its value, or why there is none."""

    value: T | None
    problem: str | None = None


@dataclass(frozen=True)
class Cause:
    """Runs with one cause."""

    label: str
    count: int
    href: str
    more: bool = False
    """Whether there may be others that were not counted."""


@dataclass(frozen=True)
class Count:
    """The length of a list, by causes."""

    number: int
    more: bool
    href: str
    causes: Sequence[Cause] = ()


@dataclass(frozen=True)
class Waiting:
    """What waits for people and clients."""

    count: Count
    longest: Sequence[PendingCall]
    soon: Sequence[PendingCall]
    """Calls whose deadline is over, or in the next hour."""


@dataclass(frozen=True)
class Spend:
    """What model calls have cost."""

    today: UsageTotals
    before: UsageTotals
    """Of the days before."""
    failures: Sequence[Any]
    """Of today, by cause."""


async def show_overview(page: Page) -> Response:
    """Show what an operator looks for first."""
    sees_workers = sees_all_runs(page.call.caller) and page.call.caller.agents is None
    tasks: list[Awaitable[Any]] = [
        _try(_count_held_up(page)),
        _try(_count_failing(page)),
        _try(_count_waiting(page)),
        _try(_sum_spend(page)),
        _try(_list_runs(page, {}, limit=1)),
        count_pending(page),
        *([_try(_describe_queue(page))] if sees_workers else []),
    ]
    held_up, failing, waiting, spend, newest, count, *queue = await asyncio.gather(*tasks)
    return page.render(
        "overview.html",
        held_up=held_up,
        failing=failing,
        waiting=waiting,
        spend=spend,
        queue=queue[0] if queue else None,
        is_empty=newest.value is not None and not newest.value[0],
        days_before=_DAYS_BEFORE,
        describe_cost=describe_cost,
        count=count,
    )


async def _try(part: Awaitable[T]) -> Part[T]:
    try:
        async with asyncio.timeout(_SECONDS):
            return Part(await part)
    except TimeoutError:
        return Part(None, f"There was no answer within {_SECONDS:g} s.")
    except PerdureError as error:
        return Part(None, str(json.loads(bytes(build_problem(error).body))["detail"]))


async def _list_runs(page: Page, fields: dict[str, Any], *, limit: int = COUNTED) -> tuple[list[SessionRow], bool]:
    """List runs as the list of runs does; and whether there may be more."""
    rows: list[SessionRow] = []
    cursor: str | None = None
    while True:
        query = validate(SessionsQuery, {**fields, "limit": limit - len(rows), "cursor": cursor}, "the overview")
        listed = await list_sessions(replace(page.call, query=query))
        rows += listed.data
        cursor = listed.cursor
        if cursor is None or len(rows) >= limit:
            return rows, cursor is not None


async def _count_held_up(page: Page) -> Count:
    rows, more = await _list_runs(page, {"status": "held_up"})
    causes = Counter(error for row in rows for error in {one.error_type for one in row.held_up or ()})
    address = f"{page.base}/runs?"
    return Count(
        len(rows),
        more,
        address + urlencode({"status": "held_up"}),
        [
            Cause(error, number, address + urlencode({"status": "held_up", "error": error}), more)
            for error, number in causes.most_common(_CAUSES)
        ],
    )


async def _count_failing(page: Page) -> Count:
    since = (datetime.now(UTC) - _FAILING_PERIOD).isoformat(timespec="seconds")
    fields = {"status": "failed", "updated_from": since}
    rows, more = await _list_runs(page, fields)
    causes = Counter(row.error.type for row in rows if row.error is not None)
    address = f"{page.base}/runs?"
    return Count(
        len(rows),
        more,
        address + urlencode(fields),
        [
            Cause(error, number, address + urlencode({**fields, "error": error}), more)
            for error, number in causes.most_common(_CAUSES)
        ],
    )


async def _count_waiting(page: Page) -> Waiting:
    calls: list[PendingCall] = []
    cursor: str | None = None
    while True:
        query = validate(ApprovalsQuery, {"limit": COUNTED - len(calls), "cursor": cursor}, "the overview")
        listed = await list_approvals(replace(page.call, query=query))
        calls += listed.data
        cursor = listed.cursor
        if cursor is None or len(calls) >= COUNTED:
            break
    kinds, more = Counter(call.kind for call in calls), cursor is not None
    labels = {"approval": "for approval", "question": "for an answer", "callback": "for a client"}
    causes = [
        Cause(labels[kind], number, f"{page.base}/inbox?{urlencode({'kind': kind})}", more)
        for kind, number in kinds.most_common()
    ]
    soon = datetime.now(UTC) + _SOON
    late = sorted((call for call in calls if call.expires is not None and call.expires <= soon), key=_get_deadline)
    return Waiting(Count(len(calls), more, f"{page.base}/inbox", causes), calls[:_LONGEST], late[:_LONGEST])


def _get_deadline(call: PendingCall) -> datetime:
    return call.expires or datetime.max.replace(tzinfo=UTC)


async def _sum_spend(page: Page) -> Spend:
    await page.call.authorize("read", "sum_usage", Resource("usage"))
    today = datetime.now(UTC).date()
    first = today - timedelta(days=_DAYS_BEFORE)

    async def add_up(since: Any, until: Any) -> UsageList:
        fields = {"since": get_start(since), "until": get_end(until), "group": "day", "limit": _DAYS_BEFORE + 1}
        return await sum_usage(replace(page.call, query=validate(UsageQuery, fields, "the overview")))

    of_today, before = await asyncio.gather(add_up(today, today), add_up(first, today - timedelta(days=1)))
    return Spend(of_today.total, before.total, of_today.failures[:_CAUSES])


async def _describe_queue(page: Page) -> QueueStatus:
    return await describe_queue(page.call.client, page.call.client.task_queue)


PAGES = (PageRoute("GET", "/overview", show_overview, "overview"),)
