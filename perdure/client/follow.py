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
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from ..errors import NotWaitingYetError, PerdureError, RunNotFoundError, ServerUnreachableError, StoreError
from ..ports import EventBatch, EventRow, NewEvent, Store, build_batch_token, timestamp
from ..temporal_service import build_run_error
from ..types.approvals import PendingKind
from ..types.events import (
    ApprovalDecided,
    ApprovalRequested,
    BranchStarted,
    Event,
    ModelStarted,
    QuestionAnswered,
    QuestionAsked,
    RunEvent,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
    decode_event,
)
from ..types.interface import Status
from .event_reader import (
    EVENTS_PER_PAGE,
    SNAPSHOT_RETRY_SECONDS,
    STORE_RETRY_SECONDS,
    STORE_WAIT_SECONDS,
    EventReader,
    retry_store_read,
)

if TYPE_CHECKING:
    from .run import Run
    from .turn import Turn


# ---
# Waits for the workflow to catch up with the event log.
#
# An activity records the event of a pending call, or of a pause; the workflow gets it as the activity ends: a
# moment later, or after a crash some time later. A client that acts on the event waits in :func:`until_heard`.


T = TypeVar("T")
CATCH_UP_SECONDS = 30.0
"""Seconds for which a premature request is retried: a worker may have died before it reported to the workflow."""
_CATCH_UP_FIRST_DELAY, _CATCH_UP_MAX_DELAY = 0.02, 1.0
"""Seconds between two attempts: the first and the longest delay."""
_CATCH_UP_EVENTS = 500
"""Last event numbers that are read: what the workflow has not received yet is among the latest events."""


@dataclass(slots=True)
class EventLogState:
    """The state of a run according to its last events."""

    pending_calls: dict[str, PendingKind] = field(default_factory=dict)
    """Pending calls, by id."""
    starting_children: dict[str, str] = field(default_factory=dict)
    """Child runs that calls are to start, by call id."""
    paused_at: str | None = None
    """When the run paused: ISO 8601, UTC."""


class NotHeardYet(Exception):  # noqa: N818  # not an error: it never leaves :func:`until_heard`
    """The workflow is behind the event log; ``error`` is raised if it does not catch up in time."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


async def until_heard(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``attempt``, retried for ``CATCH_UP_SECONDS`` seconds while it raises ``NotHeardYet`` or
    ``NotWaitingYetError``. Raises that error at the end."""
    delay, until = _CATCH_UP_FIRST_DELAY, time.monotonic() + CATCH_UP_SECONDS
    while True:
        try:
            return await attempt()
        except (NotHeardYet, NotWaitingYetError) as early:
            if time.monotonic() >= until:
                raise (early.error if isinstance(early, NotHeardYet) else early) from None
        await asyncio.sleep(delay)
        delay = min(delay * 1.5, _CATCH_UP_MAX_DELAY)


async def wait_for_pause(run: Run) -> None:
    """Wait until the workflow of ``run`` has the pause that its events show, where a worker answers."""

    async def look() -> None:
        if not (paused := (await _read_event_log_state(run)).paused_at):
            return
        status = await run.status()
        running = status.state == "running" and status.since is not None
        if running and datetime.fromisoformat(paused) >= datetime.fromisoformat(str(status.since)):
            raise NotHeardYet(PerdureError("the run has not heard of its pause"))

    with suppress(PerdureError):  # without a worker, the signal arrives after the pause anyway
        await until_heard(look)


async def is_child_start_pending(run: Run) -> bool:
    """Whether the events of the parent of ``run`` show a call that is to start it: it starts once the parent's workflow
    has the call."""
    above = run.id.rpartition("/")[0]
    told = await _read_event_log_state(run, above) if above else EventLogState()
    return run.id in [child for call_id, child in told.starting_children.items() if call_id not in told.pending_calls]


async def is_unheard(run: Run, status: Status, *, approval: bool) -> bool:
    """Whether the events show a call that waits for approval, or for an answer, which ``status`` does not show yet."""
    unanswered = status.doing == "nothing" and status.state in ("running", "waiting")  # no worker answers for the run
    # The model's activity reports calls that the workflow does not have at all; a call's activity its own question.
    if not unanswered and status.doing not in (("model",) if approval else ("model", "tools")):
        return False
    known = {call.call_id for call in status.calls}
    past = {one.call_id for one in status.decided if approval or one.state != "approved"}
    return any(
        (kind == "approval") == approval
        and (unanswered or (call_id not in past and (call_id in known) == (status.doing == "tools")))
        for call_id, kind in (await _read_event_log_state(run)).pending_calls.items()
    )


async def _read_event_log_state(run: Run, of: str | None = None) -> EventLogState:
    """Read the state from the last events of ``run``, or of the run ``of``. Empty if the store cannot be read: the
    workflow's own state counts then."""
    of = of or run.id
    if not run.has_store:
        return EventLogState()
    rows: list[EventRow] = []
    try:
        store = await run.store()
        behind = max(await store.wait_for_event(of, 0, 0.0) - _CATCH_UP_EVENTS, 0)
        while page := await store.read_events(of, after=behind, limit=_CATCH_UP_EVENTS, children=False):
            rows += page
            behind = page[-1].seq
    except PerdureError:
        return EventLogState()
    read = (decode_event(of, row.seq, row.task_id, row.type, row.body, row.spans) for row in rows)
    return _build_event_log_state(event for event in read if event is not None)


def _build_event_log_state(events: Iterable[Event]) -> EventLogState:
    """Build the state at the end of ``events``."""
    told = EventLogState()
    for event in events:
        match event:
            case ApprovalRequested(call_id=call_id):
                told.pending_calls[call_id] = "approval"
            case QuestionAsked(call_id=call_id, kind=kind):
                told.pending_calls[call_id] = kind
            case ApprovalDecided(call_id=call_id) | QuestionAnswered(call_id=call_id) | ToolCompleted(call_id=call_id):
                told.pending_calls.pop(call_id, None)
                told.starting_children.pop(call_id, None)
            case ToolStarted(call_id=call_id, child_context_id=str(child)):
                told.starting_children[call_id] = child
            case RunEvent(state="paused", at=at):
                told.paused_at = at
            case ModelStarted() | RunEvent() | TurnEvent():  # all calls before it have their results
                told = EventLogState()
            case _:
                pass
    return told


# ---
# The end of a run according to the server: an end that no worker could record is recorded by the first follower.


logger = logging.getLogger("perdure.client")

_SERVER_RETRY_SECONDS = 1.0
"""Seconds until an unreachable server is asked again."""

EndState = Literal["completed", "failed", "cancelled", "terminated", "timed_out"]
_END_STATES: dict[WorkflowExecutionStatus, EndState] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of an execution, which the store may not have."""

    event: RunEvent
    key: str
    """The event's key, by which the store keeps it once."""
    run_id: str


async def wait_for_recorded_end(run: Run, store: Store) -> RunEnd | None:
    """Wait until the run has ended and its events have the end. One long poll, which adds nothing to its history.

    Waits while the server is unreachable: events may still come from the store. Returns the end if the store did not
    accept it. Raises ``StoreMismatchError`` if the run is kept in another store.
    """
    # Without a run id: a reopened conversation is not over.
    latest = run.client.run(run.id)
    while True:
        try:
            await _wait_for_workflow_close(latest)
            end = await find_run_end(run, store)
            if end is not None:
                recorded = await _record_run_end(run, store, end)
                # A run that was reopened meanwhile continues.
                if (await run.describe()).run_id == end.run_id:
                    return None if recorded else end
        except ServerUnreachableError:
            await asyncio.sleep(_SERVER_RETRY_SECONDS)
        except RunNotFoundError:  # deleted meanwhile: no more events will come
            return None


async def find_run_end(run: Run, store: Store, patience: float = STORE_RETRY_SECONDS) -> RunEnd | None:
    """Return how the last execution of the run ended, from the server; None if it is open. Writes nothing.

    ``patience``: see :func:`~perdure.client.event_reader.retry_store_read`. Raises ``RunNotFoundError``,
    ``ServerUnreachableError``, ``StoreMismatchError``.
    """
    seen = await run.describe()
    state = None if seen.status is None else _END_STATES.get(seen.status)
    if state is None or seen.close_time is None:
        return None
    await check_run_store(run, store, patience)
    at = timestamp(seen.close_time)
    event = (await _build_end_event(run, seen, state)).model_copy(update={"at": at})
    return RunEnd(event, f"ended/{seen.run_id}/{state}", seen.run_id)


async def _record_run_end(run: Run, store: Store, end: RunEnd) -> bool:
    """Record the end, once for all followers. Tried once: a follower that cannot write still gets the event."""
    batch = EventBatch(run.id, [NewEvent(end.event, key=end.key)], build_batch_token(end.event.at), advances=True)
    try:
        await store.append(batch)
    except StoreError as error:  # another follower that can write will record it
        logger.warning("the end of run %s could not be recorded: %s", run.id, error.message)
        return False
    return True


async def check_run_store(run: Run, store: Store, patience: float = STORE_RETRY_SECONDS) -> None:
    """Raise ``StoreMismatchError`` if the store does not have the run because it is kept in another one."""
    if await retry_store_read(lambda: store.get_run(run.id), patience) is None:
        run.check_store((await run.status()).store_id, store.store_id, store.place)


async def _wait_for_workflow_close(run: Run) -> None:
    try:
        await run.client.temporal.get_workflow_handle(run.id).result()
    except WorkflowFailureError:
        pass
    except RPCError as error:
        raise run.translate_rpc_error(error) from error


async def _build_end_event(run: Run, seen: WorkflowExecutionDescription, state: EndState) -> RunEvent:
    if state in ("completed", "cancelled"):  # as a worker records it
        return RunEvent(state=state)
    execution = run.client.temporal.get_workflow_handle(run.id, run_id=seen.run_id)
    try:
        await execution.result(follow_runs=False)
    except WorkflowFailureError as error:
        cause = build_run_error(run.id, error)
        return RunEvent(state=state, error_type=type(cause).__name__, error=cause.message)
    except RPCError as error:
        raise run.translate_rpc_error(error) from error
    return RunEvent(state=state)


_STORE_CHECK_SECONDS = 5.0
"""Seconds without a row of the run in the store after which its store id is checked."""
_TURN_POLL_FIRST_DELAY, _TURN_POLL_MAX_DELAY = 0.02, 1.0
"""Seconds between two checks whether a turn is over whose end is recorded."""


async def follow_run(run: Run, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
    """Yield the events of ``run`` after number ``after`` until it has ended; without ``wait`` only those recorded so
    far.

    Includes those of the runs below it, unless ``children`` is false. Raises ``RunNotFoundError``,
    ``TranscriptUnavailableError`` where the client has no store, ``StoreMismatchError`` where it has another one than
    the run, ``StoreError``.
    """
    store = await run.store()
    over = asyncio.ensure_future(_find_or_wait_for_end(run, store, wait=wait))
    reader = EventReader(
        run.id, store, after, children=children, patience=STORE_RETRY_SECONDS if wait else SNAPSHOT_RETRY_SECONDS
    )
    async with aclosing(_read_events_until(over, reader, wait=wait)) as events:
        async for event in events:
            yield event
    if (end := over.result()) is not None and (untold := await reader.build_unrecorded_end(end.event)) is not None:
        yield untold


async def follow_turn(turn: Turn, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
    """Yield the events of one turn after number ``after`` until it has ended; without ``wait`` only those recorded so
    far.

    Raises as :func:`follow_run`; also ``RunNotFoundError`` for an unknown turn.
    """
    store = await turn.run.store()
    if not await _resolve_task_id(turn):
        return
    said = asyncio.Event()
    over = asyncio.ensure_future(_wait_for_turn_end(turn, store, said, wait=wait))
    patience = STORE_RETRY_SECONDS if wait else SNAPSHOT_RETRY_SECONDS
    reader = EventReader(turn.run.id, store, after, turn.task_id, children=children, patience=patience)
    async with aclosing(_read_events_until(over, reader, wait=wait)) as events:
        async for event in events:
            if event.path:  # another run's turn
                pass
            elif isinstance(event, TurnEvent):
                said.set() if event.state != "started" else said.clear()
            elif not isinstance(event, RunEvent):
                said.clear()  # a message has extended it
            yield event


async def _read_events_until(over: asyncio.Future[Any], reader: EventReader, *, wait: bool) -> AsyncGenerator[Event]:
    """Yield the events of ``reader`` until ``over`` is done and all events recorded by then are read. Raises what
    ``over`` raises.

    Without ``wait`` reading starts when ``over`` is done, which is soon.
    """
    try:
        if not wait:
            await asyncio.wait([over])
        while True:
            last = over.done()
            if last:
                over.result()
            while rows := await reader.read_rows():
                for row in rows:
                    if (event := await reader.build_event(row)) is not None:
                        yield event
                if len(rows) < EVENTS_PER_PAGE and not last:
                    break
            if last:
                return
            await reader.wait_for_more(over)
    finally:
        over.cancel()
        await asyncio.gather(over, return_exceptions=True)


# --- when it is over


async def _find_or_wait_for_end(run: Run, store: Store, *, wait: bool) -> RunEnd | None:
    """Wait until the run has ended and its events have the end; without ``wait`` return at once. Returns an end that
    the events may not have: without ``wait`` nothing is written.

    Raises ``RunNotFoundError`` if neither the server nor the store has the run.
    """

    async def look() -> bool:
        try:
            await run.describe()
        except RunNotFoundError as unknown:
            if await store.get_run(run.id) is not None or await store.read_events(run.id, limit=1):
                return False  # deleted after Temporal's retention
            if wait and await is_child_start_pending(run):
                raise NotHeardYet(unknown) from None
            raise
        return True

    if not await until_heard(look):
        return None
    return (
        await _wait_for_end_in_store(run, store)
        if wait
        else await find_run_end(run.client.run(run.id), store, SNAPSHOT_RETRY_SECONDS)
    )


async def _wait_for_end_in_store(run: Run, store: Store) -> RunEnd | None:
    ended = asyncio.ensure_future(wait_for_recorded_end(run, store))
    try:
        await asyncio.wait([ended], timeout=_STORE_CHECK_SECONDS)
        if not ended.done():
            await check_run_store(run, store)
        return await ended
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


async def _resolve_task_id(turn: Turn) -> bool:
    """Wait until the turn's ``task_id`` is known; false if the run has ended without one."""
    delay = _TURN_POLL_FIRST_DELAY
    while turn.task_id is None:
        if await turn.over():
            return turn.task_id is not None
        if turn.task_id is None:  # no worker answers for the workflow yet
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _TURN_POLL_MAX_DELAY)
    return True


async def _wait_for_turn_end(turn: Turn, store: Store, said: asyncio.Event, *, wait: bool) -> None:
    """Wait until the turn is over. Asks the workflow at first, when an end was ``said`` by the events, and now and
    then.

    The store has an end before the workflow does, and a message that arrives in between extends the turn. Raises
    ``RunNotFoundError`` for an unknown turn.
    """
    if await turn.over() or not wait:
        return
    run = asyncio.ensure_future(_wait_for_end_in_store(turn.run, store))
    run.add_done_callback(lambda _: said.set())
    delay = _TURN_POLL_FIRST_DELAY
    try:
        while not await turn.over():
            if run.done():
                run.result()
            if not (said.is_set() or run.done()):
                delay = _TURN_POLL_FIRST_DELAY
                with suppress(TimeoutError):
                    async with asyncio.timeout(STORE_WAIT_SECONDS):
                        await said.wait()
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 1.5, _TURN_POLL_MAX_DELAY)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


# ---
# Child runs of a run, from its events.


async def list_child_runs(run: Run) -> dict[str, bool]:
    """Return the ids of the child runs in their order, each with whether it runs in background. Raises as
    :func:`perdure.client.follow.follow_run`."""
    found: dict[str, bool] = {}
    async with aclosing(follow_run(run, wait=False, children=False)) as events:
        async for event in events:
            if isinstance(event, ToolStarted) and event.child_context_id is not None:
                found.setdefault(event.child_context_id, event.background)
            elif isinstance(event, BranchStarted):
                found.setdefault(event.child_context_id, False)
    return found
