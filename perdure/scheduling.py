"""What a client does with schedules: begins, lists and finds them. Part of :class:`perdure.client.Client`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from temporalio import client as api
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from .errors import InvalidInputError, ScheduleExistsError, ScheduleNotFoundError
from .options import scheduled
from .schedule import Overlap, Schedule, ScheduleStatus, checked_note, is_ours, policy, schedule_error
from .sealing import Auth, sealed
from .starting import ID_BYTES, History, checked_input, start_input
from .timetable import timetable
from .types.files import Asked
from .types.interface import WORKFLOW, Mode, Override
from .types.messages import clean

if TYPE_CHECKING:
    from .agent import Agent
    from .client import Client

SCHEDULE_ID_BYTES = ID_BYTES - 100
"""Of the id of a schedule: its runs have 21 more, and their subagents some."""
_AT_ONCE = 10


class Scheduling:
    """The verbs."""

    temporal: TemporalClient

    async def schedule(
        self,
        agent: str | Agent,
        message: Asked,
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
        auth_context: Auth | None = None,
        auth_ref: str | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        idle_timeout: float | str | None = None,
        max_history_events: int | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Begin a run at certain times, by a schedule of Temporal's: ``cron`` (one expression or several, in
        ``timezone``, else in UTC), ``every`` so long (seconds, or text like ``"1h"``), or both.

        Each run is a conversation of its own, ``<id>-<time>``. ``overlap`` is what becomes of one that is due while the
        last one is not over, for instance as it waits for an approval: "skip" leaves it out. ``if_exists="replace"``
        puts this one in the place of a schedule of that id; one that is paused stays so. The rest is as of
        :meth:`start`; but an ``auth_context`` is sealed for one run: it is an ``auth_ref`` here.

        Raises ``ScheduleExistsError``, and as :meth:`start`.
        """
        client = cast("Client", self)
        _check(id, message, auth_context, if_exists)
        note, paused = checked_note(note), _checked_paused(paused)
        spec, policies = timetable(cron, every, timezone), api.SchedulePolicy(overlap=policy(overlap))
        start = await start_input(
            client,
            agent,
            await client.as_message(checked_input(agent, message), by=by),
            mode=mode,
            context=context,
            history=history,
            override=override,
            idle_timeout=idle_timeout,
            max_history_events=max_history_events,
            # A time that is made up for twice, or triggered twice within its second, has the same id.
            resume=True,
        )
        start |= sealed(client.temporal, id, None, auth_ref)
        wanted = api.Schedule(
            action=scheduled(id, start, task_queue=client.task_queue),
            spec=spec,
            policy=policies,
            state=api.ScheduleState(note=note, paused=paused),
        )
        return Schedule(client, await _create(client.temporal, id, wanted, if_exists))

    def get_schedule(self, id: str) -> Schedule:
        """The schedule of that id; nothing is asked of the server yet."""
        return Schedule(cast("Client", self), self.temporal.get_schedule_handle(id))

    async def schedules(self, *, agent: str | None = None, limit: int = 100) -> list[ScheduleStatus]:
        """The schedules that start agents, or ``agent``, by their ids; a new one is among them after a moment."""
        found: list[ScheduleStatus] = []
        one_of, each = asyncio.Semaphore(_AT_ONCE), max(1, limit)

        async def see(id: str) -> ScheduleStatus | None:
            async with one_of:
                try:
                    return await self.get_schedule(id).describe()
                except (ScheduleNotFoundError, InvalidInputError):  # deleted meanwhile, or somebody's own since
                    return None

        ours = await schedule_ids(self.temporal)
        for at in range(0, len(ours), each):
            if len(found) >= limit:
                break
            seen = await asyncio.gather(*map(see, ours[at : at + each]))
            found += [one for one in seen if one is not None and agent in (None, one.agent)]
        return found[: max(0, limit)]


async def schedule_ids(temporal: TemporalClient, prefix: str = "") -> list[str]:
    """Of all schedules that start agents, those that begin with ``prefix``, sorted."""
    try:
        listed = [one async for one in await temporal.list_schedules()]
    except RPCError as error:
        raise schedule_error(temporal, "", error) from error
    return sorted(one.id for one in listed if _starts(one) == WORKFLOW and one.id.startswith(prefix))


def _starts(listed: api.ScheduleListDescription) -> str | None:
    action = listed.schedule.action if listed.schedule else None
    return action.workflow if isinstance(action, api.ScheduleListActionStartWorkflow) else None


def _check(id: str, message: Asked | None, auth_context: Auth | None, if_exists: str) -> None:
    """Raises ``InvalidInputError``."""
    if not isinstance(id, str) or not id or id != clean(id) or len(id.encode()) > SCHEDULE_ID_BYTES:
        raise InvalidInputError(f"the id of a schedule is a text of 1 to {SCHEDULE_ID_BYTES} bytes, not {id!r:.100}")
    if message is None:
        raise InvalidInputError("a scheduled run needs a message: without one it would wait for somebody")
    if auth_context is not None:
        raise InvalidInputError(
            "an auth_context is sealed for one run, and a schedule begins many",
            hint="Give an auth_ref, which the worker resolves at each run: Worker(resolve_auth=…).",
        )
    if if_exists not in ("error", "replace"):
        raise InvalidInputError(f'if_exists is "error" or "replace", not {if_exists!r:.100}')


def _checked_paused(paused: bool) -> bool:
    if not isinstance(paused, bool):
        raise InvalidInputError(f"paused is True or False, not {paused!r:.100}")
    return paused


async def _create(temporal: TemporalClient, id: str, wanted: api.Schedule, if_exists: str) -> api.ScheduleHandle:
    try:
        return await temporal.create_schedule(id, wanted)
    except api.ScheduleAlreadyRunningError:
        if if_exists == "error":
            raise ScheduleExistsError(
                f"there is a schedule {id!r} already",
                hint='Give this one another id, or put it in its place with if_exists="replace".',
            ) from None
    except RPCError as error:
        raise schedule_error(temporal, id, error) from error

    def renewed(given: api.ScheduleUpdateInput) -> api.ScheduleUpdate:
        if not is_ours(given.description):
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
        raise schedule_error(temporal, id, error) from error
    return handle
