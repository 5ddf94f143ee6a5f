"""Schedules: when runs start, with what, and what became of the last ones; a schedule is paused, resumed, triggered and
deleted by the handlers of the native API.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeVar, get_args
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..client.schedules import Overlap
from ..errors import InvalidInputError, RunNotFoundError, ScheduleNotFoundError, ServerUnreachableError
from ..web.auth import Resource
from ..web.operations import validate
from ..web.problems import NotFoundError, WebError
from ..web.schedules import (
    NOTE_CHARS,
    Note,
    ScheduledRunInfo,
    ScheduleInfo,
    SchedulesQuery,
    Trigger,
    delete_schedule,
    get_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from .inbox import count_pending
from .pages import Page, PageRoute
from .texts import format_json

logger = logging.getLogger("perdure.console")
T = TypeVar("T")
ROWS = 25
"""Schedules of a page."""
_ANSWER_SECONDS = 8.0
"""Longest wait for Temporal, which keeps the schedules: a page of them takes a request for each."""
_MESSAGE_CHARS = 300
OVERLAPS: Mapping[str, str] = {
    "skip": "is left out",
    "buffer_one": "starts when that one ends; one waits at most",
    "buffer_all": "starts when those before it have ended",
    "cancel_other": "starts once that one is cancelled",
    "terminate_other": "starts once that one is terminated",
    "allow_all": "starts beside it",
}
"""What becomes of a run that is due while the last one is open, by the name of the policy."""


# ---
# Times in words.


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip


def describe_times(when: str) -> str | None:
    """Return a cron expression, or an interval, in words; None for one that is better read as it is."""
    fields = when.split()
    if when.startswith("every "):
        return when
    if len(fields) != 5:
        return None
    minute, hour, day, month, weekday = fields
    at, on = _describe_clock(minute, hour), _describe_days(day, month, weekday)
    if at is None or on is None:
        return None
    return f"{at}{on or (' every day' if at.startswith('at ') else '')}"


def _describe_clock(minute: str, hour: str) -> str | None:
    minutes, hours = minute.split(","), hour.split(",")
    if all(part.isdecimal() for part in [*minutes, *hours]) and len(minutes) * len(hours) <= 6:
        return "at " + _join([f"{int(each):02}:{int(part):02}" for each in hours for part in minutes])
    step = int(minute[2:]) if minute.startswith("*/") and minute[2:].isdecimal() else 1 if minute == "*" else None
    first, dash, last = hour.partition("-")
    is_range = dash and first.isdecimal() and last.isdecimal()
    within = f" from {int(first):02}:00 to {int(last):02}:59" if is_range else ""
    if step is not None and (hour == "*" or within):
        return ("every minute" if step == 1 else f"every {step} minutes") + within
    if not minute.isdecimal():
        return None
    past = f":{int(minute):02}"
    if hour == "*":
        return f"every hour at {past}"
    if within:
        return f"every hour from {int(first):02}{past} to {int(last):02}{past}"
    if hour.startswith("*/") and hour[2:].isdecimal():
        return f"every {int(hour[2:])} hours at {past}"
    return None


def _describe_days(day: str, month: str, weekday: str) -> str | None:
    in_month = "" if month == "*" else _name_parts(month, _MONTHS)
    if in_month is None or (day != "*" and weekday != "*"):
        return None
    suffix = f" in {in_month}" if in_month else ""
    if day != "*":
        parts = day.split(",")
        if not all(part.isdecimal() for part in parts) or len(parts) > 6:
            return None
        if month.isdecimal():
            return f" on {_join(parts)} {in_month}"
        return f" on day {_join(parts)} of {in_month or 'the month'}"
    if weekday == "*":
        return suffix
    named = _name_parts(weekday, _DAYS)
    return None if named is None else f", {named}{suffix}"


def _name_parts(field: str, names: Sequence[str]) -> str | None:
    """Name the days or months of ``1-5`` or ``1,3``."""
    parts = []
    for part in field.split(","):
        first, _, last = part.partition("-")
        if not all(text.isdecimal() and int(text) < len(names) and names[int(text)] for text in (first, last or first)):
            return None
        parts.append(f"{names[int(first)]} to {names[int(last)]}" if last else names[int(first)])
    return _join(parts)


def _join(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


# ---
# What pages show.


@dataclass(frozen=True)
class LastRun:
    """A run that a schedule has started."""

    run: ScheduledRunInfo
    state: str | None
    """None for one that the store does not know."""
    may_read: bool


@dataclass(frozen=True)
class ScheduleView:
    """A schedule, as a page shows it."""

    schedule: ScheduleInfo
    times: Sequence[tuple[str, str | None]]
    """Each as Temporal has it, and in words."""
    message: str
    is_json: bool
    last: Sequence[LastRun]
    """The newest first."""
    due: Sequence[tuple[str, datetime]]
    """The next times: in the schedule's time zone, and as they are."""
    is_unserved: bool = False
    """Whether no worker has ever recorded its agent: each of its runs fails."""

    @property
    def first_line(self) -> str:
        """The beginning of the message, on one line."""
        text = " ".join(self.message.split())
        return text if len(text) <= _MESSAGE_CHARS else f"{text[: _MESSAGE_CHARS - 1]}…"


def read_message(message: Any) -> tuple[str, bool]:
    """Return what runs begin with as text, and whether that is JSON."""
    if isinstance(message, Mapping):
        if message.get("input") is not None:
            return format_json(message["input"]), True
        message = message.get("content", message)
    if isinstance(message, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in message]
        message = "\n".join(text if isinstance(text, str) else "[a file]" for text in texts)
    if message is None or isinstance(message, str):
        return message or "", False
    return format_json(message), True


async def _build_view(page: Page, schedule: ScheduleInfo, runs: int) -> ScheduleView:
    message, is_json = read_message(schedule.message)
    newest = list(reversed(schedule.recent))[:runs]
    last = await gather_bounded(lambda run: _read_last_run(page, run, schedule.running), newest)
    times = [(when, describe_times(when)) for when in schedule.when]
    zone = _find_zone(schedule.timezone)
    due = [
        (f"{at.astimezone(zone):%a %d %b %Y, %H:%M}" + ("" if zone is not UTC else " UTC"), at) for at in schedule.next
    ]
    agent = schedule.agent
    is_unserved = agent is not None and not await (await page.call.client.store()).list_agents(agent)
    return ScheduleView(schedule, times, message, is_json, last, due, is_unserved)


def _find_zone(name: str | None) -> tzinfo:
    """Return the time zone of that name; UTC for one that this machine does not know."""
    try:
        return ZoneInfo(name) if name and name != "UTC" else UTC
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return UTC


async def _read_last_run(page: Page, run: ScheduledRunInfo, running: Sequence[str]) -> LastRun:
    """Read what the store knows of a run; Temporal knows which ones are open."""
    row = await (await page.call.client.store()).get_run(run.id)
    if row is None:
        is_open = run.id in running  # begun a moment ago: it is of the schedule's tenant and user
        return LastRun(run, "running" if is_open else None, may_read=is_open)
    may_read = await page.call.may("read", Resource("session", run.id, row.agent, row.tenant, row.user))
    return LastRun(run, row.status.replace(" ", "_"), may_read)


async def _wait(question: Awaitable[T]) -> T:
    """Await Temporal for a bounded time. Raises ``WebError``."""
    hint = "Schedules start no runs while it is down, and go on when it is back."
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await question
    except TimeoutError:
        text = f"Temporal, which keeps the schedules, did not answer within {_ANSWER_SECONDS:g} s."
        raise WebError(text, status=503, name="TimeoutError", hint=hint) from None
    except (ServerUnreachableError, RuntimeError) as error:  # the latter of a client that is not connected yet
        logger.warning("Temporal cannot be reached for schedules: %s", error)
        text = "Temporal, which keeps the schedules, cannot be reached."
        raise WebError(text, status=503, name="ServerUnreachableError", hint=hint) from None


async def show_schedules(page: Page) -> Response:
    """Show the schedules that start agents, by their ids."""
    given = page.request.query_params
    fields: dict[str, Any] = {"limit": ROWS}
    fields |= {name: given[name].strip() for name in ("agent", "after") if given.get(name, "").strip()}
    query = validate(SchedulesQuery, fields, "the address")
    listed, count = await asyncio.gather(_wait(list_schedules(replace(page.call, query=query))), count_pending(page))
    views = await gather_bounded(lambda schedule: _build_view(page, schedule, 1), listed.data)
    return page.render(
        "schedules.html",
        views=views,
        cursor=listed.next,
        agent=query.agent or "",
        is_first=query.after is None,
        is_deleted="deleted" in given,
        count=count,
    )


async def _find(page: Page) -> None:
    """Set the schedule of the path as what the call is about. Raises ``NotFoundError``, also for one that the visitor
    may not see."""
    name = page.call.params["schedule"]
    try:
        page.call.resource = await _wait(page.call.web.find_schedule(name))
        await page.call.authorize("read", "get_schedule")
    except (ScheduleNotFoundError, RunNotFoundError):
        raise NotFoundError("there is no such schedule") from None
    page.call.params = {**page.call.params, "id": name}


async def show_schedule(page: Page) -> Response:
    """Show a schedule: when it is due, with what its runs begin, and the last ones."""
    await _find(page)
    return await _show(page)


async def _show(page: Page, said: str = "") -> Response:
    schedule, count = await asyncio.gather(_wait(get_schedule(page.call)), count_pending(page))
    may_operate = await page.call.may("operate", page.call.resource or Resource("schedule"))
    return page.render(
        "schedule.html",
        view=await _build_view(page, schedule, 10),
        overlap=OVERLAPS.get(schedule.overlap, schedule.overlap.replace("_", " ")),
        overlaps=OVERLAPS,
        may_operate=may_operate,
        said=said or _DONE.get(page.request.query_params.get("done", ""), ""),
        count=count,
    )


_DONE = {
    "pause": "It is paused.",
    "resume": "It goes on.",
    "trigger": "A run was asked for. It appears below after a moment.",
}


async def act_on_schedule(page: Page) -> Response:
    """Pause, resume, trigger or delete a schedule."""
    await _find(page)
    call, action, note = page.call, page.form.get("action"), page.form.get("note").strip()
    if len(note) > NOTE_CHARS:
        raise InvalidInputError(f"a note has {NOTE_CHARS:,} characters at most")
    await call.authorize("operate", f"{action}_schedule" if action in (*_DONE, "delete") else "schedule")
    match action:
        case "pause":
            await pause_schedule(replace(call, body=Note(note=note or None)))
        case "resume":
            await resume_schedule(replace(call, body=Note(note=note or None)))
        case "trigger":
            overlap = page.form.get("overlap")
            body = validate(Trigger, {"overlap": overlap} if overlap in get_args(Overlap) else {}, "the form")
            await trigger_schedule(replace(call, body=body))
        case "delete":
            if "sure" not in page.form:
                raise InvalidInputError("the form does not confirm the deletion", hint="Nothing was deleted.")
            await delete_schedule(call)
            return page.redirect("/schedules", deleted="1")
        case _:
            raise InvalidInputError("the form says not what to do")
    return page.redirect(f"/schedules/{quote(call.caller.show_id(call.params['id']), safe='')}", done=action)


_ONE = "/schedules/{schedule:segment}"
PAGES = (
    PageRoute("GET", "/schedules", show_schedules, "schedules"),
    PageRoute("GET", _ONE, show_schedule, "schedule"),
    PageRoute("POST", _ONE, act_on_schedule, "act_on_schedule"),
)
