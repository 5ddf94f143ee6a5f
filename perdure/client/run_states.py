"""The states of open runs (``RunState``), as lists and ``status`` show them: Temporal's word, and what the store knows
beyond it. A page of a list takes three statements, whatever its number of runs; no run is asked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio.client import WorkflowExecution, WorkflowExecutionDescription
from temporalio.exceptions import ApplicationError

from ..errors import PerdureError, StoreError
from ..types.interface import STORE_MEMO, HeldUp, Status
from ..types.run_states import OPEN_STATES, RunState
from .handles import ClientHandle, RunHandle

if TYPE_CHECKING:
    from temporalio.api.workflow.v1 import PendingActivityInfo

    from ..ports.failures import FailingCall
    from ..ports.store import RunRow, Store
    from ..ports.waits import RunWaits

logger = logging.getLogger("perdure.client")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of ``perdure list``. Times are UTC."""

    id: str
    agent: str
    status: str
    """A :data:`~perdure.types.interface.RunState`. A client without a store knows of open runs only what Temporal's
    visibility has (``perdure server setup``): running, waiting or paused."""
    started: datetime | None = None
    closed: datetime | None = None
    tenant: str | None = None
    """Whose run it is, and ``user``; None also for a run that a plain client has started, and that has ended at once,
    unless the list is one of its tenant or user."""
    user: str | None = None
    held_up: tuple[HeldUp, ...] = ()
    """What holds it up, or a subagent of it, the oldest first."""
    first_message: str | None = None
    """The beginning of the message that the run began with; None until the store has it, and without a store."""
    error_type: str | None = None
    """The class of the error that the run, or its last turn, failed with, and ``error``, its text."""
    error: str | None = None
    execution: str | None = field(default=None, repr=False)
    """Temporal's run id of its last execution; None if Temporal does not have it."""
    store_id: str | None = field(default=None, repr=False)
    """The store of the client that has started it, if it has one; ``is_indexed``: its waits are a search attribute."""
    is_indexed: bool = field(default=False, repr=False)


async def add_recorded_texts(client: ClientHandle, runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return ``runs`` with the texts that the store has of them, by one statement; without a store unchanged."""
    if client.store_url is None or not runs:
        return list(runs)
    try:
        store = await client.store()
        rows = await store.get_runs([run.id for run in runs])
        unrecorded = [run.id for run in runs if run.id not in rows]
        first = await store.find_first_messages(unrecorded) if unrecorded else {}
    except StoreError as error:  # a list without words is better than none
        logger.warning("the texts of runs cannot be read from the store: %s", error.message)
        return list(runs)
    return [
        replace(run, first_message=first.get(run.id)) if (row := rows.get(run.id)) is None else copy_texts(run, row)
        for run in runs
    ]


def copy_texts(run: RunSummary, row: RunRow) -> RunSummary:
    """Return ``run`` with the texts of its row. An error is of a run that has ended, or of its last turn: while a run
    that failed is tried again, the row is from before."""
    is_old = row.status == "failed" and run.status in OPEN_STATES
    error_type, error = (None, None) if is_old else (row.error_type, row.error)
    return replace(run, first_message=row.first_message, error_type=error_type, error=error)


async def refine_states(client: ClientHandle, runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return ``runs``, those that are open with the state that the store knows; unchanged for a client without one."""
    ids = [run.id for run in runs if run.status in OPEN_STATES]
    if client.store_url is None or not ids:
        return list(runs)
    try:
        store = await client.store()
        rows, waits = await store.get_runs(ids), await store.list_run_waits(ids)
        failures = await store.list_run_failures(ids)
    except StoreError as error:  # Temporal's word is better than none
        logger.warning("the states of runs cannot be read from the store: %s", error.message)
        return list(runs)
    return [
        _refine_state(run, store.store_id, rows.get(run.id), waits[run.id], failures.get(run.id, ()))
        if run.id in waits
        else run
        for run in runs
    ]


def _refine_state(
    run: RunSummary, store_id: str, row: RunRow | None, known: RunWaits, failures: Sequence[FailingCall]
) -> RunSummary:
    held_up = tuple(map(build_held_up, failures))
    return replace(run, status=choose_state(run, store_id, row, known, held_up), held_up=held_up)


def choose_state(
    run: RunSummary, store_id: str, row: RunRow | None, known: RunWaits, held_up: Sequence[HeldUp]
) -> RunState:
    """Return the state of an open run by what Temporal and the store have of it."""
    is_own = row is not None or held_up or known.waits
    recorded = None if row is None or known.is_at_work else row.status
    if not is_own and run.store_id not in (None, store_id):
        return "other_store"
    if "paused" in (run.status, recorded):
        return "paused"
    if held_up:
        return "held_up"
    if run.status == "waiting" or (not run.is_indexed and any(wait.context_id == run.id for wait in known.waits)):
        return "waiting"
    return "idle" if recorded == "idle" else "running"


async def read_store_memo(execution: WorkflowExecution) -> str | None:
    """Return the id of the store of the client that has started the run; None if it is not known."""
    if STORE_MEMO not in execution.raw_info.memo.fields:
        return None
    try:
        value = (await execution.memo()).get(STORE_MEMO)
    except Exception:  # written with another codec
        return None
    return value if isinstance(value, str) else None


def build_held_up(call: FailingCall) -> HeldUp:
    """Build what is shown of a call that holds a run up."""
    names = ("context_id", "agent", "call", "source", "error_type", "error", "status", "attempts")
    times = ("since", "last_at", "next_at")
    return HeldUp.model_validate({name: getattr(call, name) for name in (*names, *times)})


# ---
# The status of one run.


async def add_held_up(run: RunHandle, status: Status, description: WorkflowExecutionDescription) -> Status:
    """Return the ``status`` of an open run with what holds it up, and one word for its state.

    Where the store does not have it, because it is the store that fails, Temporal says what it knows of the run's own
    activities.
    """
    held_up: tuple[HeldUp, ...] = ()
    if run.has_store:
        try:
            store: Store = await run.client.store()
            failures = await store.list_run_failures([run.id])
            held_up = tuple(map(build_held_up, failures.get(run.id, ())))
            if not held_up and await read_store_memo(description) not in (None, store.store_id):
                is_own = await store.get_run(run.id) is not None or await store.read_events(run.id, limit=1)
                if not is_own:
                    return status.model_copy(update={"state": "other_store"})
        except PerdureError as error:
            logger.debug("what holds run %s up cannot be read from the store: %s", run.id, error)
    held_up = held_up or await _read_failing_activities(run, status, description)
    state = status.state
    if state in ("running", "waiting") and held_up:
        state = "held_up"
    elif state == "running" and status.approvals:
        state = "waiting"
    return status.model_copy(update={"state": state, "held_up": held_up if state == "held_up" else ()})


async def _read_failing_activities(
    run: RunHandle, status: Status, description: WorkflowExecutionDescription
) -> tuple[HeldUp, ...]:
    """Read from Temporal which activities of the run have failed often, with an error that says so."""
    from ..ports.failures import HELD_UP_ATTEMPTS  # here and below: few programs need these modules

    found = []
    for pending in description.raw_description.pending_activities:
        if pending.attempt <= HELD_UP_ATTEMPTS or not pending.HasField("last_failure"):
            continue
        try:
            error = await run.client.temporal.data_converter.decode_failure(pending.last_failure)
        except Exception:  # a codec is third-party code  # noqa: S112
            continue
        if isinstance(error, ApplicationError) and error.type != "RetryLaterError":
            found.append(_build_held_up_by(pending, error, status))
    return tuple(found)


def _build_held_up_by(pending: PendingActivityInfo, error: ApplicationError, status: Status) -> HeldUp:
    from ..ports.times import timestamp
    from ..types.wire import TOOL_ACTIVITY_PREFIX

    name, kind = pending.activity_type.name, error.type or "Failure"
    source = name.removeprefix(TOOL_ACTIVITY_PREFIX) if name.startswith(TOOL_ACTIVITY_PREFIX) else ""
    is_due = pending.HasField("next_attempt_schedule_time")
    return HeldUp(
        context_id=status.context_id,
        agent=status.agent,
        call=name,
        source="store" if "Store" in kind else source,
        error_type=kind,
        error=error.message,
        attempts=pending.attempt - 1,  # the number of Temporal's is that of the one that follows
        last_at=timestamp(pending.last_started_time.ToDatetime(UTC)),
        next_at=timestamp(pending.next_attempt_schedule_time.ToDatetime(UTC)) if is_due else None,
    )
