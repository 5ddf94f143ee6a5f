"""Costs: tokens, money, time and errors of model calls, by day or hour and by agent, model or tenant, with the runs
behind each bar. The address is the filter; days and hours are those of UTC."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from ..errors import InvalidInputError
from ..web.auth import Resource
from ..web.operations import validate
from ..web.records import UsageList, UsageQuery, UsageTotals, sum_usage
from . import charts
from .audit import get_end, get_start, read_day
from .inbox import count_pending
from .pages import Page, PageRoute
from .texts import format_cost, format_count, format_duration

Group = Literal["agent", "model", "tenant"]
GROUPS = get_args(Group)
PERIODS = {
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "90d": "Last 90 days",
    "365d": "Last 365 days",
}
"""Times that the page offers, as addresses and people say them."""
_DEFAULT_PERIOD = "30d"
MAX_DAYS, MAX_HOURS = 366, 72
_LAST = re.compile(r"([1-9][0-9]{0,2})([hd])")
_HOUR = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}")
GROUP_ROWS, RUN_ROWS = 20, 50


@dataclass(frozen=True)
class Period:
    """Whole days or hours from ``since`` to ``until``, which is not one of them."""

    since: datetime
    until: datetime
    unit: Literal["hour", "day"]
    text: str
    """What the address says for it: ``24h``, ``30d``, the hour ``2026-11-28T23``; "" for days that it names."""

    @property
    def steps(self) -> list[datetime]:
        """The beginning of every day or hour, the first one first."""
        step = timedelta(hours=1) if self.unit == "hour" else timedelta(days=1)
        return [self.since + number * step for number in range((self.until - self.since) // step)]

    @property
    def query(self) -> dict[str, str]:
        """What an address has to say for it."""
        if self.text:
            return {"time": self.text}
        return {"from": self.first_day.isoformat(), "to": self.last_day.isoformat()}

    @property
    def first_day(self) -> date:
        """The first day, or that of the first hour."""
        return self.since.date()

    @property
    def last_day(self) -> date:
        """The last day, or that of the last hour."""
        return (self.until - timedelta(hours=1)).date()

    @property
    def options(self) -> dict[str, str]:
        """The times that the filter offers: also this one."""
        if not self.text or self.text in PERIODS:
            return PERIODS
        return {**PERIODS, self.text: self.describe()}

    def describe(self) -> str:
        """Return it in words."""
        if last := _LAST.fullmatch(self.text):
            one = "hour" if last[2] == "h" else "day"
            return f"Last {one}" if last[1] == "1" else f"Last {last[1]} {one}s"
        first, last_step = self.describe_step(self.since), self.describe_step(self.steps[-1])
        return first if first == last_step else f"{first} to {last_step}"

    def describe_step(self, step: datetime) -> str:
        """Return a day or an hour of it in words."""
        return f"{step:%d %b %Y, %H:00}" if self.unit == "hour" else f"{step:%d %b %Y}"

    def shorten_step(self, step: datetime) -> str:
        """Return a day or an hour of it for the axis of a plot."""
        return f"{step:%H:00}" if self.unit == "hour" else f"{step:%d %b}"

    def get_key(self, step: datetime) -> str:
        """Return a day or an hour of it as sums have it."""
        return step.isoformat()[: 13 if self.unit == "hour" else 10]

    def get_step_query(self, step: datetime) -> dict[str, str]:
        """Return what an address has to say for a day or an hour of it."""
        key = self.get_key(step)
        return {"time": key} if self.unit == "hour" else {"from": key, "to": key}


def _read_period(page: Page) -> Period:
    first, last = read_day(page, "from"), read_day(page, "to")
    text = page.request.query_params.get("time", "").strip()
    today = datetime.now(UTC).date()
    if text or (first is None and last is None):
        return _build_period(text or _DEFAULT_PERIOD)
    try:
        last = last or (today if first is None or first <= today else first)
        first = first or last - timedelta(days=29)
    except OverflowError:
        raise InvalidInputError("to: there are no days before it") from None
    if not 0 <= (last - first).days < MAX_DAYS:
        raise InvalidInputError(
            f"{first} to {last} is not a range of 1 to {MAX_DAYS} days", hint="Choose a first day before the last one."
        )
    return Period(get_start(first), get_end(last), "day", "")


def _build_period(text: str) -> Period:
    """Return the time of an address: the last hours or days, or one hour."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    if match := _LAST.fullmatch(text):
        number, unit = int(match[1]), match[2]
        if unit == "h" and number <= MAX_HOURS:
            until = now + timedelta(hours=1)
            return Period(until - timedelta(hours=number), until, "hour", text)
        if unit == "d" and number <= MAX_DAYS:
            until = get_end(now.date())
            return Period(until - timedelta(days=number), until, "day", text)
    elif _HOUR.fullmatch(text):
        try:
            since = datetime.strptime(f"{text}+0000", "%Y-%m-%dT%H%z")
            return Period(since, since + timedelta(hours=1), "hour", text)
        except (ValueError, OverflowError):
            pass  # there is no such hour, or none after it
    raise InvalidInputError(
        f"time: {text!r:.40} is not a time",
        hint=f"A time is 24h (up to {MAX_HOURS}h), 30d (up to {MAX_DAYS}d), or an hour of UTC: 2026-11-28T23.",
    )


def _read_filters(page: Page) -> dict[str, str]:
    """Return agent, model and tenant of the address; ``no_tenant`` for calls without one."""
    given = page.request.query_params
    filters = {name: text for name in ("agent", "model", "tenant") if (text := given.get(name, "").strip())}
    return {**filters, "no_tenant": "1"} if given.get("no_tenant") == "1" and "tenant" not in filters else filters


async def _sum(page: Page, group: str, filters: Mapping[str, str], period: Period, limit: int) -> UsageList:
    fields: dict[str, Any] = {name: text for name, text in filters.items() if name != "no_tenant"}
    fields |= {"tenant": ""} if "no_tenant" in filters else {}
    fields |= {"since": period.since, "until": period.until, "group": group, "limit": limit}
    query = validate(UsageQuery, fields, "the address")
    return await sum_usage(replace(page.call, query=query))


# ---
# Figures.


def describe_cost(sums: UsageTotals) -> str:
    """Return what calls have cost: "unknown" without a price."""
    if sums.cost_usd is None:
        return "unknown" if sums.calls else "$0"
    return format_cost(sums.cost_usd)


def count_calls(number: int) -> str:
    """Return a number of calls in words."""
    return f"{format_count(number)} {'call' if number == 1 else 'calls'}"


def get_latency(sums: UsageTotals) -> float | None:
    """Return the mean seconds of a call; None without calls."""
    return sums.milliseconds / sums.calls / 1000 if sums.calls else None


def describe_errors(sums: UsageTotals) -> str:
    """Return the part of the requests that failed, also of those that were tried again."""
    if not count_requests(sums):
        return ""
    part = 100 * get_error_share(sums)
    return "0 %" if not part else f"{part:.1f} %" if part >= 0.1 else "< 0.1 %"


def count_requests(sums: UsageTotals) -> int:
    """Count the requests that were answered, or failed."""
    return sums.calls + (sums.failed_attempts or 0)


def count_failures(sums: UsageTotals) -> int:
    """Count the requests that failed, and the answers that were of no use."""
    return (sums.failed_attempts or 0) + sums.errors - sums.unanswered_calls


def get_error_share(sums: UsageTotals) -> float:
    """Return the part of the requests that failed, from 0 to 1."""
    requests = count_requests(sums)
    return count_failures(sums) / requests if requests else 0.0


@dataclass(frozen=True)
class Row:
    """Sums in a table, with the lengths of their bars, of 100."""

    label: str
    """"" for calls without a tenant."""
    sums: UsageTotals
    href: str
    cost: float = 0.0
    tokens: float = 0.0
    latency: float = 0.0
    errors: float = 0.0


def _scale(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` with the lengths of their bars."""
    highest = {name: max((get(row.sums) for row in rows), default=0.0) for name, get in _FIGURES.items()}

    def measure(row: Row, name: str) -> float:
        return round(100 * _FIGURES[name](row.sums) / highest[name], 2) if highest[name] else 0.0

    return [
        replace(
            row,
            cost=measure(row, "cost"),
            tokens=measure(row, "tokens"),
            latency=measure(row, "latency"),
            errors=measure(row, "errors"),
        )
        for row in rows
    ]


_FIGURES: Mapping[str, Callable[[UsageTotals], float]] = {
    "cost": lambda sums: sums.cost_usd or 0.0,
    "tokens": lambda sums: float(sums.input_tokens + sums.output_tokens),
    "latency": lambda sums: get_latency(sums) or 0.0,
    "errors": get_error_share,
}
"""What bars show of a row, by their names in it."""


def _subtract(total: UsageTotals, shown: Sequence[UsageTotals]) -> UsageTotals:
    """Return what ``total`` has beside the sums that are shown."""
    counts: dict[str, Any] = {
        name: (getattr(total, name) or 0) - sum(getattr(one, name) or 0 for one in shown)
        for name in UsageTotals.model_fields
        if name not in ("key", "cost_usd")
    }
    known = counts["calls"] > counts["unpriced_calls"]
    paid = (total.cost_usd or 0.0) - sum(one.cost_usd or 0.0 for one in shown)
    return UsageTotals(**counts, cost_usd=max(paid, 0.0) if known else None)


# ---
# Plots.


@dataclass(frozen=True)
class Step:
    """What a day or an hour has."""

    label: str
    short: str
    sums: UsageTotals | None
    href: str


def _build_plots(steps: Sequence[Step], total: UsageTotals) -> list[charts.Plot]:
    """Build the plots over time: money, tokens, latency, errors."""

    def build_columns(describe: Any, *values: Any) -> list[charts.Column]:
        return [
            charts.Column(
                f"{step.label}: {describe(step.sums) if step.sums is not None else 'no calls'}",
                step.href if step.sums is not None else "",
                [_measure(step.sums, get) for get in values],
            )
            for step in steps
        ]

    unpriced = total.unpriced_calls
    note = f"The price of {format_count(unpriced)} of {count_calls(total.calls)} is unknown." if unpriced else ""
    tokens = (lambda sums: float(sums.input_tokens), lambda sums: float(sums.output_tokens))
    return [
        charts.build_plot(
            "Cost",
            build_columns(_describe_cost_fully, lambda sums: sums.cost_usd), ["cost"], format_cost, note=note,
        ),
        charts.build_plot(
            "Tokens",
            build_columns(
                lambda sums: f"{format_count(sums.input_tokens)} in, {format_count(sums.output_tokens)} out", *tokens
            ), ["tokens-in", "tokens-out"], format_count, legend=(("tokens-in", "in"), ("tokens-out", "out")),
        ),
        charts.build_plot(
            "Time of a call",
            build_columns(_describe_latency, get_latency),
            ["latency"], format_duration,
        ),
        charts.build_plot(
            "Errors",
            build_columns(
                lambda sums: f"{describe_errors(sums)}, {count_failures(sums):,} of {count_requests(sums):,} requests",
                _FIGURES["errors"],
            ), ["errors"], lambda part: f"{100 * part:.3g} %",
        ),
    ]  # fmt: skip


def _describe_latency(sums: UsageTotals) -> str:
    return f"{format_duration(get_latency(sums))} on average" if sums.calls else "no answered calls"


def _measure(sums: UsageTotals | None, get: Callable[[UsageTotals], float | None]) -> float | None:
    """Return what a bar shows: None if it is unknown, 0 for what has no calls."""
    value = get(sums) if sums is not None else 0.0
    return 0.0 if value is None and sums is not None and not sums.calls else value


def _describe_cost_fully(sums: UsageTotals) -> str:
    if not sums.calls:
        return "no answered calls"
    if sums.cost_usd is None:
        return f"price unknown, {count_calls(sums.calls)}"
    more = f", and {count_calls(sums.unpriced_calls)} of unknown price" if sums.unpriced_calls else ""
    return f"{format_cost(sums.cost_usd)}{more}"


# ---
# Pages.


async def show_costs(page: Page) -> Response:
    """Show what model calls have cost."""
    await page.call.authorize("read", "sum_usage", Resource("usage"))
    filters, period = _read_filters(page), _read_period(page)
    group = page.request.query_params.get("group", "agent")
    if group not in GROUPS:
        raise InvalidInputError(f"group: {group!r:.40} is none of {', '.join(GROUPS)}")
    by_time, by_group, count = await asyncio.gather(
        _sum(page, period.unit, filters, period, MAX_DAYS),
        _sum(page, group, filters, period, GROUP_ROWS),
        count_pending(page),
    )
    known = {sums.key: sums for sums in by_time.data}
    steps = [
        Step(
            period.describe_step(step),
            period.shorten_step(step),
            known.get(period.get_key(step)),
            _link_runs(page, filters, period.get_step_query(step)),
        )
        for step in period.steps
    ]
    rows = _scale([_build_row(page, group, sums, filters, period) for sums in by_group.data])
    if by_group.count > len(rows):
        rest = _subtract(by_group.total, by_group.data)
        rows.append(Row(f"{by_group.count - len(rows):,} others", rest, ""))
    own = {**filters, **period.query}
    return page.render(
        "costs.html",
        filters=filters,
        period=period,
        axis=_choose_axis(steps),
        group=group,
        groups=[(name, urlencode({**own, "group": name})) for name in GROUPS],
        total=by_time.total,
        plots=_build_plots(steps, by_time.total),
        steps=[step for step in reversed(steps) if step.sums],
        rows=rows,
        failures=by_time.failures,
        count=count,
        runs_href=_link_runs(page, filters, period.query),
        bar_width=charts.BAR_WIDTH,
        slot=charts.SLOT,
        **_FORMATS,
    )


def _choose_axis(steps: Sequence[Step]) -> list[str]:
    """Return what is written under a plot: the first day or hour, one in the middle, and the last."""
    chosen = [steps[0], *([steps[len(steps) // 2]] if len(steps) > 6 else []), *steps[1:][-1:]]
    return [step.short for step in chosen]


_FORMATS: Mapping[str, Any] = {
    "count_calls": count_calls,
    "describe_cost": describe_cost,
    "latency": get_latency,
    "describe_errors": describe_errors,
    "count_failures": count_failures,
}


def _link_runs(page: Page, filters: Mapping[str, str], more: Mapping[str, str]) -> str:
    return f"{page.base}/costs/runs?{urlencode({**filters, **more})}"


def _build_row(page: Page, group: str, sums: UsageTotals, filters: Mapping[str, str], period: Period) -> Row:
    replaced = ("tenant", "no_tenant") if group == "tenant" else (group,)
    others = {name: text for name, text in filters.items() if name not in replaced}
    own = {"no_tenant": "1"} if group == "tenant" and sums.key is None else {group: sums.key or ""}
    return Row(sums.key or "", sums, _link_runs(page, {**others, **own}, period.query))


async def show_cost_runs(page: Page) -> Response:
    """Show the runs behind a bar, those that have cost most first."""
    await page.call.authorize("read", "sum_usage", Resource("usage"))
    filters, period = _read_filters(page), _read_period(page)
    listed, count = await asyncio.gather(_sum(page, "run", filters, period, RUN_ROWS), count_pending(page))
    rows = _scale([Row(sums.key or "", sums, "") for sums in listed.data])
    if listed.count > len(rows):
        rows.append(Row(f"{listed.count - len(rows):,} others", _subtract(listed.total, listed.data), ""))
    labels = {name: text for name, text in filters.items() if name in ("agent", "tenant")}
    labels["started"] = f"{period.since.isoformat()}/{period.until.isoformat()}"
    return page.render(
        "costs_runs.html",
        filters=filters,
        period=period,
        total=listed.total,
        run_count=listed.count,
        count=count,
        rows=rows,
        shown=len(listed.data),
        back=f"{page.base}/costs?{urlencode({**filters, **period.query})}",
        list_href=f"{page.base}/runs?{urlencode(labels)}",
        **_FORMATS,
    )


PAGES = (
    PageRoute("GET", "/costs", show_costs, "costs"),
    PageRoute("GET", "/costs/runs", show_cost_runs, "cost_runs"),
)
