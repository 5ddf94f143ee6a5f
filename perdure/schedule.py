"""``Schedule``: what begins a run at its times, seen from outside."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from temporalio.client import Client as TemporalClient
from temporalio.client import (
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleOverlapPolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from .errors import InvalidInputError, PerdureError, ScheduleNotFoundError
from .runs import RunSummary, runs_of_schedule
from .timetable import when
from .translate import translated
from .types.interface import WORKFLOW
from .types.messages import clean
from .types.plain import flaw

if TYPE_CHECKING:
    from .client import Client

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
"""What becomes of a run that is due while the last one is not over: Temporal's own policies, by name."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A run that a schedule has begun. Times are UTC."""

    id: str
    due: datetime
    started: datetime


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """How a schedule stands. Times are UTC."""

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
    """When it is due next, up to ten times; none if it never is."""
    begun: int
    """Runs that it has begun so far."""
    skipped: int
    """Times at which the run before was not over."""
    running: tuple[str, ...]
    """Ids of its runs that are not over."""
    recent: tuple[ScheduledRun, ...]
    """The last ten that it has begun, the oldest first."""
    start: dict[str, Any] = field(default_factory=dict)
    """The input of its runs, plain JSON: agent, message, context, …"""


class Schedule:
    """A schedule. Making one asks nothing of the server. ``handle`` is Temporal's own, which can do more."""

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
        """How it stands. Raises ``ScheduleNotFoundError``, as all of these do."""
        try:
            return await _status(self.client.temporal, await self.handle.describe())
        except RPCError as error:
            raise self._translated(error) from error

    async def pause(self, *, note: str | None = None, by: str | None = None) -> None:
        """It begins nothing until it is resumed, unless it is triggered. ``note`` says why."""
        try:
            await self.handle.pause(note=self._note("paused", note, by))
        except RPCError as error:
            raise self._translated(error) from error

    async def resume(self, *, note: str | None = None, by: str | None = None) -> None:
        """Go on. What was due meanwhile is not made up for: see :meth:`backfill`."""
        try:
            await self.handle.unpause(note=self._note("resumed", note, by))
        except RPCError as error:
            raise self._translated(error) from error

    async def trigger(self, *, overlap: Overlap | None = None) -> None:
        """Begin a run now, also while it is paused. With the overlap policy "skip", while the last run is not over,
        nothing begins: give another ``overlap`` for this time."""
        try:
            await self.handle.trigger(overlap=None if overlap is None else policy(overlap))
        except RPCError as error:
            raise self._translated(error) from error

    async def backfill(self, start: datetime, end: datetime, *, overlap: Overlap = "buffer_all") -> None:
        """Begin the runs that were due after ``start`` and up to ``end``, as if it were then; both with a time zone."""
        if not all(isinstance(one, datetime) and one.tzinfo is not None for one in (start, end)):
            raise InvalidInputError(
                "a backfill wants times with a time zone", hint="For instance datetime(2026, 1, 1, tzinfo=UTC)."
            )
        if start >= end:
            raise InvalidInputError(f"a backfill from {start} to {end} is of no time", hint="The earlier one is first.")
        try:
            await self.handle.backfill(ScheduleBackfill(start, end, policy(overlap)))
        except RPCError as error:
            raise self._translated(error) from error

    async def delete(self) -> None:
        """Take it away. Runs that it has begun go on."""
        try:
            await self.handle.delete()
        except RPCError as error:
            raise self._translated(error) from error

    async def runs(self, *, limit: int = 50) -> list[RunSummary]:
        """The runs that it has begun, the newest first, as Temporal's list has them: a new one is in it after a moment,
        and one that Temporal has forgotten is not. ``describe().recent`` knows the last ten at once."""
        try:
            return await runs_of_schedule(self.client, self.id, limit)
        except RPCError as error:
            raise self._translated(error) from error

    def _note(self, verb: str, note: str | None, by: str | None) -> str:
        return clean(f"{verb} by {by or self.client.actor}{f': {note}' if note else ''}")

    def _translated(self, error: RPCError) -> PerdureError:
        return schedule_error(self.client.temporal, self.id, error)


def policy(overlap: str) -> ScheduleOverlapPolicy:
    """Temporal's. Raises ``InvalidInputError``."""
    if overlap not in get_args(Overlap):
        raise InvalidInputError(f"overlap is one of {', '.join(get_args(Overlap))}, not {overlap!r:.100}")
    return ScheduleOverlapPolicy[overlap.upper()]


def checked_note(note: str | None) -> str | None:
    """As it can be kept. Raises ``InvalidInputError``."""
    if note is not None and not isinstance(note, str):
        raise InvalidInputError(f"a schedule's note is text, not {note!r:.100}")
    return None if note is None else clean(note)


def schedule_error(temporal: TemporalClient, id: str, error: RPCError) -> PerdureError:
    """What Temporal's refusal means for schedule ``id``."""
    if error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
        return ScheduleNotFoundError(
            f"there is no schedule {id!r:.100}", hint="`perdure schedule list` shows the schedules there are."
        )
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return InvalidInputError(f"Temporal refuses schedule {id!r:.100}: {error.message}")
    return translated(temporal, id, error)


def is_ours(seen: ScheduleDescription) -> bool:
    """Whether it starts runs of agents, and not somebody's own workflow."""
    action = seen.schedule.action
    return isinstance(action, ScheduleActionStartWorkflow) and action.workflow == WORKFLOW


async def _status(temporal: TemporalClient, seen: ScheduleDescription) -> ScheduleStatus:
    if not is_ours(seen):
        raise InvalidInputError(f"schedule {seen.id!r} starts no agent: it is somebody's own")
    spec, info, state = seen.schedule.spec, seen.info, seen.schedule.state
    start = await _input(temporal, seen)
    recent = [
        ScheduledRun(one.action.workflow_id, one.scheduled_at, one.started_at)
        for one in info.recent_actions
        if isinstance(one.action, ScheduleActionExecutionStartWorkflow)
    ]
    running = [one.workflow_id for one in info.running_actions if isinstance(one, ScheduleActionExecutionStartWorkflow)]
    return ScheduleStatus(
        id=seen.id,
        agent=str(start.get("agent", "")),
        when=when(spec),
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


async def _input(temporal: TemporalClient, seen: ScheduleDescription) -> dict[str, Any]:
    action = seen.schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow), "asked before"
    try:
        found = await temporal.data_converter.decode(list(action.args))
    except Exception:  # somebody else's codec wrote it
        return {}
    start = found[0] if found else None
    if not isinstance(start, dict):
        return {}
    try:
        read: dict[str, Any] = json.loads(clean(json.dumps(start, ensure_ascii=False)))
    except RecursionError:
        return {}
    return {} if flaw(read) else read  # no run would begin with it
