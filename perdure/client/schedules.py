"""Schedules that start runs at given times: ``ScheduleClient`` creates and lists them, ``Schedule`` is the handle of
one.

Also converts cron expressions and intervals to Temporal's spec and back to text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from temporalio import client as api
from temporalio.client import Client as TemporalClient
from temporalio.client import (
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    ScheduleRange,
    ScheduleSpec,
)
from temporalio.service import RPCError, RPCStatusCode

from ..encryption import AuthMapping, seal_auth
from ..errors import InvalidInputError, PerdureError, ScheduleExistsError, ScheduleNotFoundError
from ..loop.payload_limits import RUN_ID_BYTES
from ..temporal_service import build_schedule_action, translate_rpc_error
from ..types.interface import WORKFLOW_TYPE, Mode, Override
from ..types.limits import parse_seconds
from ..types.messages import MessageInput, clean_text
from ..types.plain_json import find_json_flaw
from .start import History, build_start_input, check_message_input
from .visibility import RunSummary, list_runs_of_schedule

if TYPE_CHECKING:
    from ..agent.agent import Agent
    from .client import Client


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
) -> ScheduleSpec:
    """Build the union of the given times. The server validates cron expressions and time zones.

    Raises ``InvalidInputError``.
    """
    listed: list[Any] = list(cron) if isinstance(cron, list | tuple) else [] if cron is None else [cron]
    for one in listed:
        if not isinstance(one, str) or not one.strip() or one != clean_text(one):
            raise InvalidInputError(f"cron: {one!r:.100} is no cron expression", hint=_TIMETABLE_HINT)
    if not listed and every is None:
        raise InvalidInputError("a schedule needs cron or every: when is it due?", hint=_TIMETABLE_HINT)
    if timezone is not None and not listed:
        raise InvalidInputError("a time zone says what cron means, and there is none", hint=_TIMETABLE_HINT)
    if timezone is not None and (not isinstance(timezone, str) or timezone != clean_text(timezone)):
        raise InvalidInputError(f"{timezone!r:.100} is no time zone", hint=_TIMETABLE_HINT)
    intervals = [] if every is None else [ScheduleIntervalSpec(every=_parse_interval(every))]
    return ScheduleSpec(cron_expressions=listed, intervals=intervals, time_zone_name=timezone)


def format_schedule_spec(spec: ScheduleSpec) -> tuple[str, ...]:
    """Format a spec as text: ``("0 7 * * 1-5", "every 1h")``. The server stores cron expressions as calendars."""
    return (*spec.cron_expressions, *map(_format_calendar, spec.calendars), *map(_format_interval, spec.intervals))


def _parse_interval(every: float | str | timedelta) -> timedelta:
    try:
        found = parse_seconds(every)
    except ValueError as error:
        raise InvalidInputError(f"every: {error}") from None
    if found != int(found):
        raise InvalidInputError(f"every: a schedule counts whole seconds, not {found:g}")
    return timedelta(seconds=found)


def _format_calendar(calendar: ScheduleCalendarSpec) -> str:
    """Format a calendar as five cron fields; seven if it has seconds or years."""
    fields = [_format_cron_field(getattr(calendar, name), *whole) for name, whole in _CRON_FIELD_RANGES.items()]
    if calendar.year or [(one.start, one.end) for one in calendar.second] not in ([], [(0, 0)]):
        fields = [_format_cron_field(calendar.second, 0, 59), *fields, _format_cron_field(calendar.year, -1, -1)]
    return " ".join(fields)


def _format_cron_field(ranges: Sequence[ScheduleRange], first: int, last: int) -> str:
    return ",".join(_format_cron_range(one, first, last) for one in ranges) or "*"


def _format_cron_range(one: ScheduleRange, first: int, last: int) -> str:
    end = max(one.end, one.start)
    text = "*" if (one.start, end) == (first, last) else str(one.start) if one.start == end else f"{one.start}-{end}"
    return text if one.step <= 1 else f"{text}/{one.step}"


def _format_interval(interval: ScheduleIntervalSpec) -> str:
    text = f"every {_format_timedelta(interval.every)}"
    return f"{text} from {_format_timedelta(interval.offset)}" if interval.offset else text


def _format_timedelta(time: timedelta) -> str:
    def parts(left: int) -> Iterator[str]:
        for unit, size in _DURATION_UNITS:
            if left >= size:
                yield f"{left // size}{unit}"
                left %= size

    return "".join(parts(int(time.total_seconds()))) or "0s"


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
    """"" where this client cannot read what the schedule starts (another codec), or it is no start of a run."""
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

    def __init__(self, client: Client, handle: ScheduleHandle) -> None:
        self.client = client
        self.handle = handle

    @property
    def id(self) -> str:
        """Its id; its runs have the time appended: ``<id>-2026-11-21T07:00:00Z``."""
        return self.handle.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def describe(self) -> ScheduleStatus:
        """Return the schedule's status. Raises ``ScheduleNotFoundError``, as all these methods do."""
        try:
            return await _build_schedule_status(self.client.temporal, await self.handle.describe())
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    async def pause(self, *, note: str | None = None, by: str | None = None) -> None:
        """Pause the schedule: it starts no run until it is resumed, unless it is triggered. ``note`` says why."""
        try:
            await self.handle.pause(note=self._build_note("paused", note, by))
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    async def resume(self, *, note: str | None = None, by: str | None = None) -> None:
        """Resume the schedule. Runs that were due meanwhile are not started: see :meth:`backfill`."""
        try:
            await self.handle.unpause(note=self._build_note("resumed", note, by))
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    async def trigger(self, *, overlap: Overlap | None = None) -> None:
        """Start a run now, also while paused. With the overlap policy "skip", while the last run is open, no run
        starts: give another ``overlap`` for this time."""
        try:
            await self.handle.trigger(overlap=None if overlap is None else get_overlap_policy(overlap))
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    async def backfill(self, start: datetime, end: datetime, *, overlap: Overlap = "buffer_all") -> None:
        """Start the runs that were due after ``start`` and up to ``end``; both with a time zone."""
        if not all(isinstance(one, datetime) and one.tzinfo is not None for one in (start, end)):
            raise InvalidInputError(
                "a backfill wants times with a time zone", hint="For instance datetime(2026, 1, 1, tzinfo=UTC)."
            )
        if start >= end:
            raise InvalidInputError(f"a backfill from {start} to {end} is of no time", hint="The earlier one is first.")
        try:
            await self.handle.backfill(ScheduleBackfill(start, end, get_overlap_policy(overlap)))
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    async def delete(self) -> None:
        """Delete the schedule. Runs that it has started continue."""
        try:
            await self.handle.delete()
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    async def runs(self, *, limit: int = 50) -> list[RunSummary]:
        """List the runs that it has started, the newest first, from Temporal's visibility: a new one appears after a
        moment, and one past its retention is missing. ``describe().recent`` has the last ten at once."""
        try:
            return await list_runs_of_schedule(self.client, self.id, limit)
        except RPCError as error:
            raise self._translate_rpc_error(error) from error

    def _build_note(self, verb: str, note: str | None, by: str | None) -> str:
        return clean_text(f"{verb} by {by or self.client.actor}{f': {note}' if note else ''}")

    def _translate_rpc_error(self, error: RPCError) -> PerdureError:
        return translate_schedule_error(self.client.temporal, self.id, error)


def get_overlap_policy(overlap: str) -> ScheduleOverlapPolicy:
    """Return Temporal's policy of that name. Raises ``InvalidInputError``."""
    if overlap not in get_args(Overlap):
        raise InvalidInputError(f"overlap is one of {', '.join(get_args(Overlap))}, not {overlap!r:.100}")
    return ScheduleOverlapPolicy[overlap.upper()]


def check_schedule_note(note: str | None) -> str | None:
    """Return the note as it can be stored. Raises ``InvalidInputError``."""
    if note is not None and not isinstance(note, str):
        raise InvalidInputError(f"a schedule's note is text, not {note!r:.100}")
    return None if note is None else clean_text(note)


def translate_schedule_error(temporal: TemporalClient, id: str, error: RPCError) -> PerdureError:
    """Translate Temporal's error for schedule ``id``."""
    if error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
        return ScheduleNotFoundError(
            f"there is no schedule {id!r:.100}", hint="`perdure schedule list` shows the schedules there are."
        )
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return InvalidInputError(f"Temporal refuses schedule {id!r:.100}: {error.message}")
    return translate_rpc_error(temporal, id, error)


def is_agent_schedule(seen: ScheduleDescription) -> bool:
    """Whether it starts runs of agents, and not another workflow."""
    action = seen.schedule.action
    return isinstance(action, ScheduleActionStartWorkflow) and action.workflow == WORKFLOW_TYPE


async def _build_schedule_status(temporal: TemporalClient, seen: ScheduleDescription) -> ScheduleStatus:
    if not is_agent_schedule(seen):
        raise InvalidInputError(f"schedule {seen.id!r} starts no agent: it is somebody's own")
    spec, info, state = seen.schedule.spec, seen.info, seen.schedule.state
    start = await _decode_schedule_start(temporal, seen)
    recent = [
        ScheduledRun(one.action.workflow_id, one.scheduled_at, one.started_at)
        for one in info.recent_actions
        if isinstance(one.action, ScheduleActionExecutionStartWorkflow)
    ]
    running = [one.workflow_id for one in info.running_actions if isinstance(one, ScheduleActionExecutionStartWorkflow)]
    return ScheduleStatus(
        id=seen.id,
        agent=str(start.get("agent", "")),
        when=format_schedule_spec(spec),
        timezone=spec.time_zone_name,
        overlap=seen.schedule.policy.overlap.name.lower(),
        paused=state.paused,
        note=state.note,
        next=tuple(info.next_action_times),
        begun=info.num_actions,
        skipped=info.num_actions_skipped_overlap,
        running=tuple(running),
        recent=tuple(recent),
        start=start,
    )


async def _decode_schedule_start(temporal: TemporalClient, seen: ScheduleDescription) -> dict[str, Any]:
    action = seen.schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow), "asked before"
    try:
        found = await temporal.data_converter.decode(list(action.args))
    except Exception:  # written with another codec
        return {}
    start = found[0] if found else None
    if not isinstance(start, dict):
        return {}
    try:
        read: dict[str, Any] = json.loads(clean_text(json.dumps(start, ensure_ascii=False)))
    except RecursionError:
        return {}
    return {} if find_json_flaw(read) else read  # no run would start with it


# ---
# The client's methods for schedules: create, list and find them. Part of :class:`perdure.client.Client`.


MAX_SCHEDULE_ID_BYTES = RUN_ID_BYTES - 100
"""Longest id of a schedule, in bytes: ids of its runs have 21 more, and those of their subagents some."""
_MAX_CONCURRENT_DESCRIBES = 10


class ScheduleClient:
    """The methods of :class:`perdure.client.Client` for schedules."""

    temporal: TemporalClient

    async def schedule(
        self,
        agent: str | Agent,
        message: MessageInput,
        *,
        id: str,
        cron: str | Sequence[str] | None = None,
        every: float | str | timedelta | None = None,
        timezone: str | None = None,
        overlap: Overlap = "skip",
        paused: bool = False,
        note: str | None = None,
        if_exists: Literal["error", "replace"] = "error",
        mode: Mode = "run",
        context: Any = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        idle_timeout: float | str | None = None,
        max_history_events: int | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Start a run at certain times, by a schedule in Temporal: ``cron`` (one expression or several, in
        ``timezone``, else in UTC), ``every`` (seconds, or text like ``"1h"``), or both.

        Each run is a conversation of its own, ``<id>-<time>``. ``overlap`` applies to a run that is due while the last
        one is open, for instance waiting for an approval: "skip" leaves it out. ``if_exists="replace"`` replaces a
        schedule of that id; a paused one stays paused. The rest is as of :meth:`start`; but ``auth_context`` is sealed
        for one run: use ``auth_ref``. Raises ``ScheduleExistsError``, and as :meth:`start`.
        """
        client = cast("Client", self)
        _check_schedule_arguments(id, message, auth_context, if_exists)
        note, paused = check_schedule_note(note), _check_schedule_paused(paused)
        spec = build_schedule_spec(cron, every, timezone)
        policy = api.SchedulePolicy(overlap=get_overlap_policy(overlap))
        start = await build_start_input(
            client,
            agent,
            await client.build_user_message(check_message_input(agent, message), by=by),
            mode=mode,
            context=context,
            history=history,
            override=override,
            idle_timeout=idle_timeout,
            max_history_events=max_history_events,
            # A time that is backfilled twice, or triggered twice within its second, has the same id.
            resume=True,
        )
        start |= seal_auth(client.temporal, id, None, auth_ref)
        wanted = api.Schedule(
            action=build_schedule_action(id, start, task_queue=client.task_queue),
            spec=spec,
            policy=policy,
            state=api.ScheduleState(note=note, paused=paused),
        )
        return Schedule(client, await _create_schedule(client.temporal, id, wanted, if_exists))

    def get_schedule(self, id: str) -> Schedule:
        """Return a handle of the schedule; sends no request."""
        return Schedule(cast("Client", self), self.temporal.get_schedule_handle(id))

    async def schedules(self, *, agent: str | None = None, limit: int = 100) -> list[ScheduleStatus]:
        """List the schedules that start agents, or only ``agent``, by their ids; a new one appears after a moment."""
        found: list[ScheduleStatus] = []
        one_of, each = asyncio.Semaphore(_MAX_CONCURRENT_DESCRIBES), max(1, limit)

        async def see(id: str) -> ScheduleStatus | None:
            async with one_of:
                try:
                    return await self.get_schedule(id).describe()
                except (
                    ScheduleNotFoundError,
                    InvalidInputError,
                ):  # deleted meanwhile, or replaced by one of another workflow
                    return None

        ours = await list_schedule_ids(self.temporal)
        for at in range(0, len(ours), each):
            if len(found) >= limit:
                break
            seen = await asyncio.gather(*map(see, ours[at : at + each]))
            found += [one for one in seen if one is not None and agent in (None, one.agent)]
        return found[: max(0, limit)]


async def list_schedule_ids(temporal: TemporalClient, prefix: str = "") -> list[str]:
    """List the ids of all schedules that start agents and begin with ``prefix``, sorted."""
    try:
        listed = [one async for one in await temporal.list_schedules()]
    except RPCError as error:
        raise translate_schedule_error(temporal, "", error) from error
    return sorted(
        one.id for one in listed if _get_scheduled_workflow(one) == WORKFLOW_TYPE and one.id.startswith(prefix)
    )


def _get_scheduled_workflow(listed: api.ScheduleListDescription) -> str | None:
    action = listed.schedule.action if listed.schedule else None
    return action.workflow if isinstance(action, api.ScheduleListActionStartWorkflow) else None


def _check_schedule_arguments(
    id: str, message: MessageInput | None, auth_context: AuthMapping | None, if_exists: str
) -> None:
    """Raises ``InvalidInputError``."""
    if not isinstance(id, str) or not id or id != clean_text(id) or len(id.encode()) > MAX_SCHEDULE_ID_BYTES:
        raise InvalidInputError(
            f"the id of a schedule is a text of 1 to {MAX_SCHEDULE_ID_BYTES} bytes, not {id!r:.100}"
        )
    if message is None:
        raise InvalidInputError("a scheduled run needs a message: without one it would wait for somebody")
    if auth_context is not None:
        raise InvalidInputError(
            "an auth_context is sealed for one run, and a schedule begins many",
            hint="Give an auth_ref, which the worker resolves at each run: Worker(resolve_auth=…).",
        )
    if if_exists not in ("error", "replace"):
        raise InvalidInputError(f'if_exists is "error" or "replace", not {if_exists!r:.100}')


def _check_schedule_paused(paused: bool) -> bool:
    if not isinstance(paused, bool):
        raise InvalidInputError(f"paused is True or False, not {paused!r:.100}")
    return paused


async def _create_schedule(
    temporal: TemporalClient, id: str, wanted: api.Schedule, if_exists: str
) -> api.ScheduleHandle:
    try:
        return await temporal.create_schedule(id, wanted)
    except api.ScheduleAlreadyRunningError:
        if if_exists == "error":
            raise ScheduleExistsError(
                f"there is a schedule {id!r} already",
                hint='Give this one another id, or put it in its place with if_exists="replace".',
            ) from None
    except RPCError as error:
        raise translate_schedule_error(temporal, id, error) from error

    def renewed(given: api.ScheduleUpdateInput) -> api.ScheduleUpdate:
        if not is_agent_schedule(given.description):
            raise InvalidInputError(
                f"schedule {id!r} starts no agent: it is somebody's own", hint="Give this one another id."
            )
        before = given.description.schedule.state
        if not before.paused:
            return api.ScheduleUpdate(wanted)
        note = wanted.state.note or before.note
        return api.ScheduleUpdate(replace(wanted, state=replace(wanted.state, paused=True, note=note)))

    handle = temporal.get_schedule_handle(id)
    try:
        await handle.update(renewed)
    except RPCError as error:
        raise translate_schedule_error(temporal, id, error) from error
    return handle
