"""Costs: tokens, money, time and errors of model calls, by day and by agent, model or tenant, with the runs behind each
bar. The address is the filter; days are those of UTC."""

from __future__ import annotations

import asyncio
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
RANGES = (7, 30, 90, 365)
"""Days that the page offers."""
MAX_DAYS = 366
GROUP_ROWS, RUN_ROWS = 20, 50


@dataclass(frozen=True)
class Period:
    """Days from ``first`` to ``last``."""

    first: date
    last: date
    days: int | None
    """The number of days up to today that the address asks for; None for days that it names."""

    @property
    def all_days(self) -> list[date]:
        """Every day, the first one first."""
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]

    @property
    def query(self) -> dict[str, str]:
        """What an address has to say for it."""
        if self.days is not None:
            return {"days": str(self.days)}
        return {"from": self.first.isoformat(), "to": self.last.isoformat()}


def _read_period(page: Page) -> Period:
    first, last = read_day(page, "from"), read_day(page, "to")
    text = page.request.query_params.get("days", "").strip()
    today = datetime.now(UTC).date()
    if text or (first is None and last is None):
        if text and text not in map(str, range(1, MAX_DAYS + 1)):
            raise InvalidInputError(f"days: {text!r:.40} is not a number from 1 to {MAX_DAYS}")
        days = int(text or 30)
        return Period(today - timedelta(days=days - 1), today, days)
    try:
        last = last or (today if first is None or first <= today else first)
        first = first or last - timedelta(days=29)
    except OverflowError:
        raise InvalidInputError("to: there are no days before it") from None
    if not 0 <= (last - first).days < MAX_DAYS:
        raise InvalidInputError(
            f"{first} to {last} is not a range of 1 to {MAX_DAYS} days", hint="Choose a first day before the last one."
        )
    return Period(first, last, None)


def _read_filters(page: Page) -> dict[str, str]:
    """Return agent, model and tenant of the address; ``no_tenant`` for calls without one."""
    given = page.request.query_params
    filters = {name: text for name in ("agent", "model", "tenant") if (text := given.get(name, "").strip())}
    return {**filters, "no_tenant": "1"} if given.get("no_tenant") == "1" and "tenant" not in filters else filters


async def _sum(page: Page, group: str, filters: Mapping[str, str], period: Period, limit: int) -> UsageList:
    fields: dict[str, Any] = {name: text for name, text in filters.items() if name != "no_tenant"}
    fields |= {"tenant": ""} if "no_tenant" in filters else {}
    fields |= {"since": get_start(period.first), "until": get_end(period.last), "group": group, "limit": limit}
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


def _build_plots(
    days: Sequence[tuple[date, UsageTotals | None]], total: UsageTotals, hrefs: Sequence[str]
) -> list[charts.Plot]:
    """Build the plots over time: money, tokens, latency, errors."""

    def build_columns(describe: Any, *values: Any) -> list[charts.Column]:
        return [
            charts.Column(
                f"{day:%d %b %Y}: {describe(sums) if sums is not None else 'no calls'}",
                href if sums is not None else "",
                [get(sums) if sums is not None else 0.0 for get in values],
            )
            for (day, sums), href in zip(days, hrefs, strict=True)
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
            build_columns(lambda sums: f"{format_duration(get_latency(sums))} on average", get_latency),
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


def _describe_cost_fully(sums: UsageTotals) -> str:
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
    by_day, by_group, count = await asyncio.gather(
        _sum(page, "day", filters, period, MAX_DAYS),
        _sum(page, group, filters, period, GROUP_ROWS),
        count_pending(page),
    )
    known = {sums.key: sums for sums in by_day.data}
    days = [(day, known.get(day.isoformat())) for day in period.all_days]
    hrefs = [_link_runs(page, filters, {"from": day.isoformat(), "to": day.isoformat()}) for day, _ in days]
    rows = _scale([_build_row(page, group, sums, filters, period) for sums in by_group.data])
    if by_group.count > len(rows):
        rest = _subtract(by_group.total, by_group.data)
        rows.append(Row(f"{by_group.count - len(rows):,} others", rest, ""))
    own = {**filters, **period.query}
    return page.render(
        "costs.html",
        filters=filters,
        period=period,
        axis=_choose_axis(period.all_days),
        ranges=RANGES,
        group=group,
        groups=[(name, urlencode({**own, "group": name})) for name in GROUPS],
        total=by_day.total,
        plots=_build_plots(days, by_day.total, hrefs),
        days=[(day, sums, href) for (day, sums), href in zip(reversed(days), reversed(hrefs), strict=True) if sums],
        rows=rows,
        failures=by_day.failures,
        count=count,
        runs_href=_link_runs(page, filters, period.query),
        bar_width=charts.BAR_WIDTH,
        slot=charts.SLOT,
        **_FORMATS,
    )


def _choose_axis(days: Sequence[date]) -> list[date]:
    """Return the days that are written under a plot: the first, one in the middle, and the last."""
    return list(dict.fromkeys([days[0], *([days[len(days) // 2]] if len(days) > 6 else []), days[-1]]))


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
    labels["started"] = f"{get_start(period.first).isoformat()}/{get_end(period.last).isoformat()}"
    return page.render(
        "costs_runs.html",
        filters=filters,
        period=period,
        total=listed.total,
        run_count=listed.count,
        count=count,
        rows=rows,
        shown=len(listed.data),
        ranges=RANGES,
        back=f"{page.base}/costs?{urlencode({**filters, **period.query})}",
        list_href=f"{page.base}/runs?{urlencode(labels)}",
        **_FORMATS,
    )


PAGES = (
    PageRoute("GET", "/costs", show_costs, "costs"),
    PageRoute("GET", "/costs/runs", show_cost_runs, "cost_runs"),
)
