"""Follows the events of a run or a turn from the store: those recorded so far, then new ones until the end.

    store ── rows after `after` ──► event ──► the follower
      ▲                                           │ no more rows
      └── new events, or the end ◄────────────────┘

A follower may stop at any time and continue later from the number of the last event that it has seen. Also here:
waiting for the workflow to catch up with the event log, recording the end of a run, and listing its child runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from temporalio.client import WorkflowExecutionDescription

from .. import events
from ..errors import NotWaitingYetError, PerdureError, RunIdError, RunNotFoundError, ServerUnreachableError, StoreError
from ..types.approvals import PendingKind
from ..types.interface import Status
from ..types.run_ids import get_parent_id
from .event_reader import (
    SNAPSHOT_RETRY_SECONDS,
    STORE_RETRY_SECONDS,
    EventReader,
    decode_row,
    iter_own_rows,
    retry_store_read,
)
from .handles import RunHandle, TurnHandle
from .tasks import background_task
from .visibility import STATUS_NAMES
from .watches import STORE_WAIT_SECONDS, EndWatch, join_watch

if TYPE_CHECKING:
    from ..ports.store import Store

logger = logging.getLogger("perdure.client")

T = TypeVar("T")
CATCH_UP_SECONDS = 30.0
"""Seconds for which a premature request is retried: a worker may have died before it reported to the workflow."""
_CATCH_UP_FIRST_DELAY, _CATCH_UP_MAX_DELAY = 0.02, 1.0
"""Seconds between two attempts: the first and the longest delay."""
_CATCH_UP_EVENTS = 500
"""Last event numbers that are read: what the workflow has not received yet is among the latest events."""
_SERVER_RETRY_SECONDS = 1.0
"""Seconds until an unreachable server is asked again."""
_STORE_CHECK_SECONDS = 5.0
"""Seconds without a row of the run in the store after which its store id is checked."""
_TURN_POLL_FIRST_DELAY, _TURN_POLL_MAX_DELAY = 0.02, 1.0
"""Seconds between two checks whether a turn is over whose end is recorded."""


# ---
# Waits for the workflow to catch up with the event log.
#
# An activity records the event of a pending call, or of a pause; the workflow gets it as the activity ends: a
# moment later, or after a crash some time later. A client that acts on the event waits in :func:`retry_while_behind`.


@dataclass(slots=True)
class EventLogState:
    """The state of a run according to its last events."""

    pending_calls: dict[str, PendingKind] = field(default_factory=dict)
    """Pending calls, by id."""
    starting_children: dict[str, str] = field(default_factory=dict)
    """Child runs that calls are to start, by call id."""
    paused_at: str | None = None
    """When the run paused: ISO 8601, UTC."""


class WorkflowBehind(Exception):  # noqa: N818  # not an error: it never leaves :func:`retry_while_behind`
    """The workflow is behind the event log; ``error`` is raised if it does not catch up in time."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


async def retry_while_behind(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``attempt``, retried for ``CATCH_UP_SECONDS`` seconds while it raises ``WorkflowBehind`` or
    ``NotWaitingYetError``. Raises that error at the end."""
    delay, deadline = _CATCH_UP_FIRST_DELAY, time.monotonic() + CATCH_UP_SECONDS
    while True:
        try:
            return await attempt()
        except (WorkflowBehind, NotWaitingYetError) as error:
            if time.monotonic() >= deadline:
                raise (error.error if isinstance(error, WorkflowBehind) else error) from None
        await asyncio.sleep(delay)
        delay = min(delay * 1.5, _CATCH_UP_MAX_DELAY)


async def is_child_start_pending(run: RunHandle) -> bool:
    """Whether the events of the parent of ``run`` show a call that is to start it: it starts once the parent's workflow
    has the call."""
    parent_id = get_parent_id(run.id)
    if parent_id is None:
        return False
    log_state = await read_event_log_state(run, parent_id)
    calls = log_state.starting_children.items()
    return any(child == run.id and call_id not in log_state.pending_calls for call_id, child in calls)


async def is_workflow_behind(run: RunHandle, status: Status, *, approval: bool) -> bool:
    """Whether the events show a call that waits for approval, or for an answer, which ``status`` does not show yet."""
    # No worker answers for the run.
    unanswered = status.doing == "nothing" and status.state in ("running", "held_up", "waiting")
    # The model's activity reports calls that the workflow does not have at all; a call's activity its own question.
    if not unanswered and status.doing not in (("model",) if approval else ("model", "tools")):
        return False
    known_ids = {call.call_id for call in status.calls}
    decided_ids = {decided.call_id for decided in status.decided if approval or decided.state != "approved"}
    pending_calls = (await read_event_log_state(run, run.id)).pending_calls
    waiting_ids = {call_id for call_id, kind in pending_calls.items() if (kind == "approval") == approval}
    if unanswered:
        return bool(waiting_ids)
    waiting_ids -= decided_ids
    return bool(waiting_ids & known_ids if status.doing == "tools" else waiting_ids - known_ids)


async def read_event_log_state(run: RunHandle, context_id: str) -> EventLogState:
    """Read the state of run ``context_id`` from its last events. Empty if the store cannot be read: the workflow's own
    state counts then."""
    if not run.has_store:
        return EventLogState()
    try:
        store = await run.client.store()
        after = max(await store.wait_for_event(context_id, 0, 0.0) - _CATCH_UP_EVENTS, 0)
        rows = [row async for row in iter_own_rows(store, context_id, after, retry_seconds=0.0)]
    except PerdureError:
        return EventLogState()
    return _build_event_log_state(decode_row(context_id, row) for row in rows)


def _build_event_log_state(log: Iterable[events.Event | None]) -> EventLogState:
    """Build the state at the end of ``events``."""
    state = EventLogState()
    for event in log:
        match event:
            case events.ApprovalRequested(call_id=call_id):
                state.pending_calls[call_id] = "approval"
            case events.QuestionAsked(call_id=call_id, kind=kind):
                state.pending_calls[call_id] = kind
            case (
                events.ApprovalDecided(call_id=call_id)
                | events.QuestionAnswered(call_id=call_id)
                | events.ToolCompleted(call_id=call_id)
            ):
                state.pending_calls.pop(call_id, None)
                state.starting_children.pop(call_id, None)
            case events.ToolStarted(call_id=call_id, child_context_id=str(child)):
                state.starting_children[call_id] = child
            case events.RunEvent(state="paused", at=at):
                state.paused_at = at
            case events.RunEvent(state="resumed"):
                state.paused_at = None
            case events.RunEvent(state="held_up" | "recovered"):
                pass  # of one call of several
            case events.ModelStarted() | events.RunEvent() | events.TurnEvent():
                state = EventLogState()  # all calls before it have their results
            case _:
                pass
    return state


# ---
# The end of a run according to the server: an end that no worker could record is recorded by the first follower.


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of an execution, which the store may not have."""

    event: events.RunEvent
    run_id: str


async def _wait_for_recorded_end(run: RunHandle, store: Store) -> RunEnd | None:
    """Wait until the run has ended and its events have the end. One long poll, which adds nothing to its history.

    Waits while the server is unreachable: events may still come from the store. Returns the end if the store did not
    accept it. Raises ``StoreMismatchError`` if the run is kept in another store.
    """
    latest = run.client.run(run.id)  # without a run id: a reopened conversation is not over
    while True:
        try:
            await latest.wait_for_close()
            end = await _find_run_end(latest, await latest.describe(), store)
            if end is not None:
                recorded = await _record_run_end(latest, store, end)
                # A run that was reopened meanwhile continues.
                if (await latest.describe()).run_id == end.run_id:
                    return None if recorded else end
        except ServerUnreachableError:
            await asyncio.sleep(_SERVER_RETRY_SECONDS)
        except RunNotFoundError:  # deleted meanwhile: no more events will come
            return None


async def _find_run_end(
    run: RunHandle,
    description: WorkflowExecutionDescription,
    store: Store,
    retry_seconds: float = STORE_RETRY_SECONDS,
) -> RunEnd | None:
    """Return how the described execution of the run ended, from the server; None if it is open. Writes nothing.

    ``retry_seconds``: see :func:`~perdure.client.event_reader.retry_store_read`. Raises ``ServerUnreachableError``,
    ``StoreMismatchError``.
    """
    from ..ports.times import timestamp

    if description.close_time is None or description.status is None:
        return None
    state = STATUS_NAMES.get(description.status, "running")
    if state == "running":
        return None
    await _check_run_store(run, store, retry_seconds)
    fields = {"state": state, "at": timestamp(description.close_time)}
    if state not in ("completed", "cancelled"):  # a worker records these two without an error
        error = await run.read_end(description.run_id)
        if isinstance(error, PerdureError):
            fields |= {"error_type": type(error).__name__, "error": error.message}
    return RunEnd(events.RunEvent.model_validate(fields), description.run_id)


async def _record_run_end(run: RunHandle, store: Store, end: RunEnd) -> bool:
    """Record the end, once for all followers. Tried once: a follower that cannot write still gets the event."""
    from ..ports.store import EventBatch, NewEvent, build_batch_token

    if end.event.error_type == RunIdError.__name__:  # the events of that id are another run's
        return False
    event = NewEvent(end.event, key=f"ended/{end.run_id}/{end.event.state}")
    try:
        await store.append(EventBatch(run.id, [event], build_batch_token(end.event.at), advances=True))
    except (StoreError, RunIdError) as error:  # another follower that can write will record it
        logger.warning("the end of run %s could not be recorded: %s", run.id, error.message)
        return False
    return True


async def record_run_end(run: RunHandle, store: Store) -> None:
    """Record the end of the run, if it has ended and the store does not have it. Raises ``RunNotFoundError``,
    ``ServerUnreachableError``, ``StoreMismatchError``."""
    end = await _find_run_end(run, await run.describe(), store, retry_seconds=0.0)
    if end is not None:
        await _record_run_end(run, store, end)


async def _check_run_store(run: RunHandle, store: Store, retry_seconds: float = STORE_RETRY_SECONDS) -> None:
    """Raise ``StoreMismatchError`` if the store does not have the run because it is kept in another one."""
    if await retry_store_read(lambda: store.get_run(run.id), retry_seconds) is None:
        run.check_store((await run.status(decided=False)).store_id, store)


# ---
# Follows the events of a run or a turn.


async def follow_run(
    run: RunHandle, after: int = 0, *, wait: bool = True, children: bool = True, texts: bool = True
) -> AsyncGenerator[events.Event]:
    """Yield the events of ``run`` after number ``after`` until it has ended; without ``wait`` only those recorded so
    far.

    Includes those of the runs below it, unless ``children`` is false. ``texts``: see ``EventReader``. Raises
    ``RunNotFoundError``, ``TranscriptUnavailableError`` where the client has no store, ``StoreMismatchError`` where it
    has another one than the run, ``StoreError``.
    """
    store = await run.client.store()
    reader = EventReader(run.id, store, after, children=children, wait=wait, texts=texts)
    if wait:
        async with join_end_watch(run, store) as watch, aclosing(reader.read_until(run.client, watch)) as events:
            async for event in events:
                yield event
            end = watch.end.result()
    else:
        # The server is asked only by who reads to the end: a page in the middle of the events needs nothing of it.
        async with aclosing(reader.read_recorded(to_end=False)) as events:
            async for event in events:
                yield event
        end = await _find_end(run, store)
        async with aclosing(reader.read_recorded()) as events:
            async for event in events:
                yield event
    if end is not None and (unrecorded := await reader.build_unrecorded_end(end.event)) is not None:
        yield unrecorded


async def follow_turn(
    turn: TurnHandle, after: int = 0, *, wait: bool = True, children: bool = True, texts: bool = True
) -> AsyncGenerator[events.Event]:
    """Yield the events of one turn after number ``after`` until it has ended; without ``wait`` only those recorded so
    far.

    Raises as :func:`follow_run`; also ``RunNotFoundError`` for an unknown turn.
    """
    store = await turn.run.client.store()
    if not await _resolve_task_id(turn):
        return
    reader = EventReader(turn.run.id, store, after, turn.task_id, children=children, wait=wait, texts=texts)
    if not wait:
        await turn.over()
        async with aclosing(reader.read_recorded()) as events:
            async for event in events:
                yield event
        return
    client = turn.run.client
    async with (
        join_watch(client, "turn", turn.run.id, turn.task_id, build=lambda: TurnWatch(turn, store)) as turn_watch,
        aclosing(reader.read_until(client, turn_watch)) as events,
    ):
        async for event in events:
            turn_watch.note_event(event)
            yield event


def join_end_watch(run: RunHandle, store: Store) -> AbstractAsyncContextManager[EndWatch[RunEnd | None]]:
    """Follow by the watch of the run's end: that of :func:`_wait_for_end`."""
    return join_watch(run.client, "end", run.id, build=lambda: EndWatch(_wait_for_end(run, store)))


async def _wait_for_end(run: RunHandle, store: Store) -> RunEnd | None:
    """Wait until the run has ended and its end is recorded as an event. Return the end if it could not be recorded.

    Raises ``RunNotFoundError`` if neither the server nor the store has the run.
    """

    async def describe() -> WorkflowExecutionDescription | None:
        try:
            return await _describe_known_run(run, store)
        except RunNotFoundError as unknown:
            if await is_child_start_pending(run):
                raise WorkflowBehind(unknown) from None
            raise

    return None if await retry_while_behind(describe) is None else await _wait_for_end_in_store(run, store)


async def _find_end(run: RunHandle, store: Store) -> RunEnd | None:
    """Return the end of the run, if it has ended, which the events may not have. Writes nothing. Raises as
    :func:`_wait_for_end`."""
    description = await _describe_known_run(run, store)
    return None if description is None else await _find_run_end(run, description, store, SNAPSHOT_RETRY_SECONDS)


async def _describe_known_run(run: RunHandle, store: Store) -> WorkflowExecutionDescription | None:
    """Return the server's description of the run; None for one that only the store still has. Raises
    ``RunNotFoundError``."""
    try:
        return await run.describe()
    except RunNotFoundError:
        if await store.get_run(run.id) is not None or await store.read_events(run.id, limit=1):
            return None  # deleted after Temporal's retention
        raise


async def _wait_for_end_in_store(run: RunHandle, store: Store) -> RunEnd | None:
    async with background_task(_wait_for_recorded_end(run, store)) as end_task:
        await asyncio.wait([end_task], timeout=_STORE_CHECK_SECONDS)
        if not end_task.done():
            await _check_run_store(run, store)
        return await end_task


async def _resolve_task_id(turn: TurnHandle) -> bool:
    """Wait until the turn's ``task_id`` is known; false if the run has ended without one."""
    delay = _TURN_POLL_FIRST_DELAY
    while not turn.task_id:
        if await turn.over():
            return bool(turn.task_id)
        if not turn.task_id:  # no worker answers for the workflow yet
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _TURN_POLL_MAX_DELAY)
    return True


class TurnWatch(EndWatch[None]):
    """Waits until a turn is over. Asks the workflow at first, when the events have an end, and now and then.

    The store has an end before the workflow does, and a message that arrives in between extends the turn. The end
    raises ``RunNotFoundError`` for an unknown turn.
    """

    def __init__(self, turn: TurnHandle, store: Store) -> None:
        self._turn, self._store = turn, store
        self._ended_at = self._continued_at = 0
        self._end_recorded = asyncio.Event()
        super().__init__(self._wait_for_end())

    def note_event(self, event: events.Event) -> None:
        """Note an event that a follower has read: followers may be at different places."""
        if isinstance(event, events.TurnEvent) and event.state != "started" and not event.path:
            self._ended_at = max(event.seq, self._ended_at)
        elif not isinstance(event, events.RunEvent) and not event.path:  # not of another run: a message has extended it
            self._continued_at = max(event.seq, self._continued_at)
        if self._ended_at > self._continued_at:
            self._end_recorded.set()
        else:
            self._end_recorded.clear()

    async def _wait_for_end(self) -> None:
        delay = _TURN_POLL_FIRST_DELAY
        async with join_end_watch(self._turn.run, self._store) as run_watch:
            run_watch.end.add_done_callback(lambda _: self._end_recorded.set())
            while not await self._turn.over():
                if run_watch.end.done():
                    run_watch.end.result()
                if self._end_recorded.is_set() or run_watch.end.done():
                    await asyncio.sleep(delay)
                    delay = min(delay * 1.5, _TURN_POLL_MAX_DELAY)
                    continue
                delay = _TURN_POLL_FIRST_DELAY
                with suppress(TimeoutError):
                    async with asyncio.timeout(STORE_WAIT_SECONDS):
                        await self._end_recorded.wait()


# ---
# Child runs of a run, from its events.


async def list_child_runs(run: RunHandle) -> dict[str, bool]:
    """Return the ids of the child runs in their order, each with whether it runs in background. Raises as
    :func:`perdure.client.follow.follow_run`."""
    children: dict[str, bool] = {}
    async with aclosing(follow_run(run, wait=False, children=False)) as events:
        async for event in events:
            if (child := extract_child_run(event)) is not None:
                children.setdefault(*child)
    return children


def extract_child_run(event: events.Event) -> tuple[str, bool] | None:
    """Return the id of the run that ``event`` starts, and whether it runs in background; None for any other event."""
    if isinstance(event, events.ToolStarted) and event.child_context_id is not None:
        return event.child_context_id, event.background
    return (event.child_context_id, False) if isinstance(event, events.BranchStarted) else None
