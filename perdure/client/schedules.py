"""Schedules that start runs at given times: ``Schedule`` is the handle of one.

Also creates and lists schedules, and converts cron expressions and intervals to Temporal's spec and back to text.
"""

from __future__ import annotations

import asyncio
import json
from calendar import monthrange
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, get_args

from temporalio import client as api
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError, RPCStatusCode

from .._encryption import AuthMapping
from ..errors import InvalidInputError, ScheduleExistsError, ScheduleNotFoundError
from ..temporal.errors import translate_rpc_error
from ..types.interface import WORKFLOW_TYPE
from ..types.limits import parse_seconds
from ..types.messages import MessageInput, clean_text
from ..types.plain_json import find_json_flaw
from ..types.run_ids import CHILD_ID_BYTES, RUN_ID_BYTES
from .audit import audit_steering
from .handles import ClientHandle
from .run_states import RunSummary
from .visibility import list_runs_of_schedule

# ---
# Times of a schedule: from arguments to Temporal's spec, and from that back to text.


_TIMETABLE_HINT = 'For instance cron="0 7 * * 1-5" with timezone="Europe/Lisbon", or every="1h".'
_DURATION_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_CRON_FIELD_RANGES = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_month": (1, 31),
    "month": (1, 12),
    "day_of_week": (0, 6),
}
"""The fields of a cron expression, in its order, and the range of ``*`` in each."""


def build_schedule_spec(
    cron: str | Sequence[str] | None, every: float | str | timedelta | None, timezone: str | None
) -> api.ScheduleSpec:
    """Build the union of the given times. The server validates cron expressions and time zones.

    Raises ``InvalidInputError``.
    """
    expressions: list[Any] = list(cron) if isinstance(cron, list | tuple) else [] if cron is None else [cron]
    for expression in expressions:
        if not isinstance(expression, str) or not expression.strip() or expression != clean_text(expression):
            raise InvalidInputError(f"cron must be a cron expression, not {expression!r:.100}", hint=_TIMETABLE_HINT)
        if (reason := _find_never_due(expression, datetime.now(UTC))) is not None:
            raise InvalidInputError(f"cron {expression!r:.100} is never due: {reason}", hint=_TIMETABLE_HINT)
    if not expressions and every is None:
        raise InvalidInputError("a schedule needs cron or every", hint=_TIMETABLE_HINT)
    if timezone is not None and not expressions:
        raise InvalidInputError("timezone applies to cron, and the schedule has no cron", hint=_TIMETABLE_HINT)
    if timezone is not None and (not isinstance(timezone, str) or timezone != clean_text(timezone)):
        raise InvalidInputError(f"timezone must name a time zone, not {timezone!r:.100}", hint=_TIMETABLE_HINT)
    intervals = [] if every is None else [api.ScheduleIntervalSpec(every=_parse_interval(every))]
    return api.ScheduleSpec(cron_expressions=expressions, intervals=intervals, time_zone_name=timezone)


_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LAST_YEAR = 2100
"""The server knows no later one."""


def _find_never_due(expression: str, now: datetime) -> str | None:
    """Return why no time fits a cron expression of which each field is right; None if one does, or a field cannot be
    read: the server says what is wrong with that. Temporal wants all fields to fit, day and weekday too."""
    fields = expression.partition("#")[0].split()
    if fields and fields[0].startswith(("CRON_TZ=", "TZ=")):
        fields = fields[1:]
    if not 5 <= len(fields) <= 7:
        return None
    day, month, weekday, *rest = fields[3:] if len(fields) == 7 else fields[2:]
    try:
        days, months = _parse_cron_field(day, 1, 31), _parse_cron_field(month, 1, 12, _MONTH_NAMES, 1)
        weekdays = {number % 7 for number in _parse_cron_field(weekday, 0, 7, _DAY_NAMES)}
        years = _parse_cron_field(rest[0], 2000, _LAST_YEAR) if rest else set(range(now.year, _LAST_YEAR + 1))
    except ValueError:
        return None
    if not any(number <= monthrange(2000, each)[1] for each in months for number in days):  # a leap year
        return f"month {month} has no day {day}"
    soon = (now - timedelta(days=1)).year  # it may still be the year before somewhere
    for year in sorted(number for number in years if number >= soon):
        dates = ((each, number) for each in months for number in days if number <= monthrange(year, each)[1])
        if any(date(year, each, number).isoweekday() % 7 in weekdays for each, number in dates):
            return None
    return "no day that is still to come fits all of its fields"


def _parse_cron_field(field: str, first: int, last: int, names: Sequence[str] = (), base: int = 0) -> set[int]:
    """The numbers of a field. Raises ``ValueError`` for one that cannot be read."""

    def parse_number(text: str) -> int:
        number = names.index(text.lower()[:3]) + base if text[:1].isalpha() and names else int(text)
        if not first <= number <= last:
            raise ValueError(text)
        return number

    found: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        low, dash, high = span.partition("-")
        start = first if span in ("*", "?") else parse_number(low)
        end = last if span in ("*", "?") or (slash and not dash) else parse_number(high) if dash else start
        if end < start or (slash and int(step) < 1):
            raise ValueError(part)
        found |= set(range(start, end + 1, int(step) if slash else 1))
    return found


def format_schedule_spec(spec: api.ScheduleSpec) -> tuple[str, ...]:
    """Format a spec as text: ``("0 7 * * 1-5", "every 1h")``. The server stores cron expressions as calendars."""
    return (*spec.cron_expressions, *map(_format_calendar, spec.calendars), *map(_format_interval, spec.intervals))


def _parse_interval(every: float | str | timedelta) -> timedelta:
    try:
        seconds = parse_seconds(every)
    except ValueError as error:
        raise InvalidInputError(f"every: {error}") from None
    if seconds != int(seconds):
        raise InvalidInputError(f"every: a schedule counts whole seconds, not {seconds:g}")
    return timedelta(seconds=seconds)


def _format_calendar(calendar: api.ScheduleCalendarSpec) -> str:
    """Format a calendar as five cron fields; seven if it has seconds or years."""
    fields = [_format_cron_field(getattr(calendar, name), *whole) for name, whole in _CRON_FIELD_RANGES.items()]
    if calendar.year or [(second.start, second.end) for second in calendar.second] not in ([], [(0, 0)]):
        fields = [_format_cron_field(calendar.second, 0, 59), *fields, _format_cron_field(calendar.year, -1, -1)]
    return " ".join(fields)


def _format_cron_field(ranges: Sequence[api.ScheduleRange], first: int, last: int) -> str:
    texts = []
    for cron_range in ranges:
        start, end = cron_range.start, max(cron_range.end, cron_range.start)
        text = "*" if (start, end) == (first, last) else f"{start}" if start == end else f"{start}-{end}"
        texts.append(text if cron_range.step <= 1 else f"{text}/{cron_range.step}")
    return ",".join(texts) or "*"


def _format_interval(interval: api.ScheduleIntervalSpec) -> str:
    text = f"every {_format_timedelta(interval.every)}"
    return f"{text} from {_format_timedelta(interval.offset)}" if interval.offset else text


def _format_timedelta(time: timedelta) -> str:
    seconds, text = int(time.total_seconds()), ""
    for unit, size in _DURATION_UNITS:
        count, seconds = divmod(seconds, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
"""What happens to a run that is due while the last one is open: Temporal's own policies, by name."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A run that a schedule has started. Times are UTC."""

    id: str
    due: datetime
    started: datetime


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """The status of a schedule. Times are UTC."""

    id: str
    agent: str
    """"" where this client cannot read the input of the runs (another codec), or it is not that of a run."""
    when: tuple[str, ...]
    """Cron expressions and intervals, as Temporal keeps them: ``("0 7 * * 1-5", "every 1h")``."""
    timezone: str | None
    overlap: str
    paused: bool
    note: str | None
    next: tuple[datetime, ...]
    """When it is due next, up to ten times; empty if never."""
    begun: int
    """Number of runs that it has started."""
    skipped: int
    """Number of times that were skipped because the previous run was open."""
    running: tuple[str, ...]
    """Ids of its open runs."""
    recent: tuple[ScheduledRun, ...]
    """The last ten runs that it has started, the oldest first."""
    start: dict[str, Any] = field(default_factory=dict)
    """The input of its runs, plain JSON: agent, message, context, …"""


class Schedule:
    """A handle of a schedule. Making one sends no request. ``handle`` is Temporal's own, with further methods."""

    def __init__(self, client: ClientHandle, handle: api.ScheduleHandle) -> None:
        self.client = client
        self.handle = handle
        self.labels: Mapping[str, str | None] = {}
        """Agent, tenant and user of its runs for the audit trail, where who steers it knows them."""

    @property
    def id(self) -> str:
        """Its id. Its runs are ``schedule:<name>-2026-11-21T07:00:00Z``, of a tenant with that before it."""
        return self.handle.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def describe(self) -> ScheduleStatus:
        """Return the schedule's status. Raises ``ScheduleNotFoundError``, as all these methods do."""
        with self._temporal_errors():
            return await _build_schedule_status(self.client.temporal, await self.handle.describe())

    async def pause(self, *, note: str | None = None, by: str | None = None) -> None:
        """Pause the schedule: it starts no run until it is resumed, unless it is triggered. ``note`` says why."""
        async with self._steer("pause", by, note):
            await self.handle.pause(note=self._build_note("paused", note, by))

    async def resume(self, *, note: str | None = None, by: str | None = None) -> None:
        """Resume the schedule. Runs that were due meanwhile are not started: see :meth:`backfill`."""
        async with self._steer("resume", by, note):
            await self.handle.unpause(note=self._build_note("resumed", note, by))

    async def trigger(self, *, overlap: Overlap | None = None, by: str | None = None) -> None:
        """Start a run now, also while paused. With the overlap policy "skip", while the last run is open, no run
        starts: give another ``overlap`` for this time."""
        async with self._steer("trigger", by):
            await self.handle.trigger(overlap=None if overlap is None else get_overlap_policy(overlap))

    async def backfill(self, start: datetime, end: datetime, *, overlap: Overlap = "buffer_all") -> None:
        """Start the runs that were due after ``start`` and up to ``end``; both with a time zone."""
        if not all(isinstance(time, datetime) and time.tzinfo is not None for time in (start, end)):
            raise InvalidInputError(
                "a backfill needs two times with a time zone", hint="For instance datetime(2026, 1, 1, tzinfo=UTC)."
            )
        if start >= end:
            raise InvalidInputError(f"the start of a backfill must be before its end: {start}, {end}")
        async with self._steer("backfill", detail=f"{start} to {end}"):
            await self.handle.backfill(api.ScheduleBackfill(start, end, get_overlap_policy(overlap)))

    async def delete(self, *, by: str | None = None) -> None:
        """Delete the schedule. Runs that it has started continue."""
        async with self._steer("delete", by):
            await self.handle.delete()

    async def runs(self, *, limit: int = 50) -> list[RunSummary]:
        """List the runs that it has started, the newest first, from Temporal's visibility: a new one appears after a
        moment, and one past its retention is missing. ``describe().recent`` has the last ten at once."""
        with self._temporal_errors():
            return await list_runs_of_schedule(self.client, self.id, limit)

    def _build_note(self, verb: str, note: str | None, by: str | None) -> str:
        return clean_text(f"{verb} by {by or self.client.actor}{f': {note}' if note else ''}")

    @asynccontextmanager
    async def _steer(self, verb: str, by: str | None = None, detail: str | None = None) -> AsyncGenerator[None]:
        """Record the request of the block in the audit trail, and translate its errors."""
        async with audit_steering(self.client, f"schedule.{verb}", self.id, by=by, detail=detail, labels=self.labels):
            with self._temporal_errors():
                yield

    def _temporal_errors(self) -> AbstractContextManager[None]:
        return _temporal_errors(self.client.temporal, self.id)


@contextmanager
def _temporal_errors(temporal: TemporalClient, id: str) -> Generator[None]:
    """Translate the errors that Temporal's client raises in the block for schedule ``id``."""
    try:
        yield
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
            hint = "`perdure schedule list` shows the schedules."
            raise ScheduleNotFoundError(f"there is no schedule {id!r:.100}", hint=hint) from error
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            raise InvalidInputError(f"Temporal refuses schedule {id!r:.100}: {error.message}") from error
        raise translate_rpc_error(temporal, id, error) from error


def get_overlap_policy(overlap: str) -> api.ScheduleOverlapPolicy:
    """Return Temporal's policy of that name. Raises ``InvalidInputError``."""
    if overlap not in get_args(Overlap):
        raise InvalidInputError(f"overlap is one of {', '.join(get_args(Overlap))}, not {overlap!r:.100}")
    return api.ScheduleOverlapPolicy[overlap.upper()]


async def _build_schedule_status(temporal: TemporalClient, description: api.ScheduleDescription) -> ScheduleStatus:
    action = _find_start_action(description)
    if action is None:
        raise InvalidInputError(f"schedule {description.id!r} starts another workflow, not an agent")
    spec, info, state = description.schedule.spec, description.info, description.schedule.state
    start = await _decode_schedule_start(temporal, action)
    recent = [
        ScheduledRun(result.action.workflow_id, result.scheduled_at, result.started_at)
        for result in info.recent_actions
        if isinstance(result.action, api.ScheduleActionExecutionStartWorkflow)
    ]
    running = [
        run.workflow_id for run in info.running_actions if isinstance(run, api.ScheduleActionExecutionStartWorkflow)
    ]
    return ScheduleStatus(
        id=description.id,
        agent=str(start.get("agent", "")),
        when=format_schedule_spec(spec),
        timezone=spec.time_zone_name,
        overlap=description.schedule.policy.overlap.name.lower(),
        paused=state.paused,
        note=state.note,
        next=tuple(info.next_action_times),
        begun=info.num_actions,
        skipped=info.num_actions_skipped_overlap,
        running=tuple(running),
        recent=tuple(recent),
        start=start,
    )


def _find_start_action(description: api.ScheduleDescription) -> api.ScheduleActionStartWorkflow | None:
    """Return the action of a schedule that starts agents; None for another workflow's."""
    action = description.schedule.action
    if isinstance(action, api.ScheduleActionStartWorkflow) and action.workflow == WORKFLOW_TYPE:
        return action
    return None


async def _decode_schedule_start(temporal: TemporalClient, action: api.ScheduleActionStartWorkflow) -> dict[str, Any]:
    """Decode the input of a schedule's runs; empty if it cannot be read, or no run could be started with it."""
    try:
        values = await temporal.data_converter.decode(list(action.args))
    except Exception:  # written with another codec
        return {}
    if not values or not isinstance(values[0], dict):
        return {}
    try:
        start: dict[str, Any] = json.loads(clean_text(json.dumps(values[0], ensure_ascii=False)))
    except RecursionError:
        return {}
    return {} if find_json_flaw(start) else start


# ---
# Creates and lists schedules, for the methods of :class:`perdure.Client`.


MAX_SCHEDULE_ID_BYTES = RUN_ID_BYTES - 2 * CHILD_ID_BYTES
"""Longest name of a schedule, in bytes: ids of its runs have 30 more, and those of their subagents some."""
_MAX_CONCURRENT_DESCRIBES = 10


def check_schedule_arguments(
    id: str,
    message: MessageInput | None,
    *,
    auth_context: AuthMapping | None,
    if_exists: str,
    paused: bool,
    note: str | None,
) -> None:
    """Raises ``InvalidInputError``."""
    if not isinstance(id, str) or len(id.encode(errors="surrogatepass")) > MAX_SCHEDULE_ID_BYTES:
        raise InvalidInputError(
            f"the id of a schedule is a text of 1 to {MAX_SCHEDULE_ID_BYTES} bytes, not {id!r:.100}"
        )
    if message is None:
        raise InvalidInputError("a scheduled run needs a message: without one it would only wait for one")
    if auth_context is not None:
        raise InvalidInputError(
            "an auth_context is sealed for one run, and a schedule starts many",
            hint="Give an auth_ref, which the worker resolves at each run: Worker(resolve_auth=…).",
        )
    if if_exists not in ("error", "replace"):
        raise InvalidInputError(f'if_exists is "error" or "replace", not {if_exists!r:.100}')
    if note is not None and not isinstance(note, str):
        raise InvalidInputError(f"a schedule's note is text, not {note!r:.100}")
    if not isinstance(paused, bool):
        raise InvalidInputError(f"paused is True or False, not {paused!r:.100}")


async def create_schedule(
    temporal: TemporalClient, id: str, schedule: api.Schedule, if_exists: str
) -> api.ScheduleHandle:
    """Create the schedule, or replace the one with that id. Raises ``ScheduleExistsError``; ``InvalidInputError`` for
    one that starts another workflow."""
    with _temporal_errors(temporal, id):
        try:
            return await temporal.create_schedule(id, schedule)
        except api.ScheduleAlreadyRunningError:
            if if_exists == "error":
                raise ScheduleExistsError(
                    f"there is a schedule {id!r} already",
                    hint='Give this one another id, or replace that one with if_exists="replace".',
                ) from None

        def build_update(update_input: api.ScheduleUpdateInput) -> api.ScheduleUpdate:
            if _find_start_action(update_input.description) is None:
                other = f"schedule {id!r} starts another workflow, not an agent"
                raise InvalidInputError(other, hint="Give this one another id.")
            before = update_input.description.schedule.state
            if not before.paused:
                return api.ScheduleUpdate(schedule)
            state = replace(schedule.state, paused=True, note=schedule.state.note or before.note)
            return api.ScheduleUpdate(replace(schedule, state=state))

        handle = temporal.get_schedule_handle(id)
        await handle.update(build_update)
        return handle


async def list_schedules(client: ClientHandle, agent: str | None, limit: int) -> list[ScheduleStatus]:
    """See ``Client.schedules``."""
    schedules: list[ScheduleStatus] = []
    slots, batch = asyncio.Semaphore(_MAX_CONCURRENT_DESCRIBES), max(1, limit)

    async def describe(id: str) -> ScheduleStatus | None:
        async with slots:
            # It may have been deleted meanwhile, or replaced by one of another workflow.
            with suppress(ScheduleNotFoundError, InvalidInputError):
                return await Schedule(client, client.temporal.get_schedule_handle(id)).describe()
        return None

    ids = await list_schedule_ids(client.temporal)
    for first in range(0, len(ids), batch):
        if len(schedules) >= limit:
            break
        statuses = await asyncio.gather(*map(describe, ids[first : first + batch]))
        schedules += [status for status in statuses if status is not None and agent in (None, status.agent)]
    return schedules[: max(0, limit)]


async def list_schedule_ids(temporal: TemporalClient, prefix: str = "") -> list[str]:
    """List the ids of all schedules that start agents and begin with ``prefix``, sorted."""
    with _temporal_errors(temporal, ""):
        listed = [schedule async for schedule in await temporal.list_schedules() if schedule.id.startswith(prefix)]
    actions = {entry.id: entry.schedule.action for entry in listed if entry.schedule is not None}
    return sorted(name for name, action in actions.items() if getattr(action, "workflow", None) == WORKFLOW_TYPE)
