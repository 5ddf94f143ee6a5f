"""Why a run does not progress: what its activities wait for or failed with, and whether a worker polls its queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowExecutionDescription
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError

from ..temporal_service import find_failing_task, find_pollers
from .handles import ClientHandle
from .visibility import read_deployment_version

_MAX_POLLER_AGE = timedelta(seconds=70)
"""Longest time between two polls of a worker, and a little more."""


async def find_pending_reason(client: ClientHandle, description: WorkflowExecutionDescription) -> str | None:
    """Return in one line why the run does not progress: what its activities wait for or failed with."""
    if (failing := await find_failing_task(client.temporal, description)) is not None:
        return f"{failing}. {failing.way_out}"
    raw = description.raw_description
    converter = client.temporal.data_converter
    for pending in raw.pending_activities:
        name = pending.activity_type.name
        begun = pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        # The attempt in progress is more informative than the failed one before it.
        if begun and (waiting := await _read_heartbeat_wait(converter, pending.heartbeat_details.payloads)):
            return f"{name} waits: {_join_reason_lines(waiting)}"
        if pending.HasField("last_failure"):
            failure = await _format_attempt_failure(converter, pending.last_failure)
            reason = f"{name}, attempt {pending.attempt}: {failure}"
            if begun or not pending.HasField("next_attempt_schedule_time"):
                return reason
            # A provider may ask for an hour (Retry-After).
            due = pending.next_attempt_schedule_time.ToDatetime(UTC)
            return f"{reason} (next attempt at {due:%Y-%m-%d %H:%M:%S} UTC)"
        if not begun:
            return f"{name} waits for a worker"
    if raw.HasField("pending_workflow_task") and raw.pending_workflow_task.attempt > 1:
        return f"its worker was lost in a workflow task; attempt {raw.pending_workflow_task.attempt} is under way"
    return None


async def _format_attempt_failure(converter: DataConverter, failure: Failure) -> str:
    """Format the class and message of an attempt's failure."""
    try:
        error = await converter.decode_failure(failure)
    except Exception as flaw:  # a codec is third-party code, often a server, which may be unavailable
        return f"{failure.message} (it cannot be decoded: {_join_reason_lines(str(flaw))})"
    kind = type(error).__name__
    if isinstance(error, ApplicationError):
        kind = error.type or "Failure"
    text = error.message if isinstance(error, FailureError) else str(error)
    return f"{kind}: {_join_reason_lines(text)}"


def _join_reason_lines(message: str) -> str:
    """Join the lines of an error and its hint into one."""
    return " ".join(message.split())


async def has_poller(client: ClientHandle, run: WorkflowExecutionDescription, *, lately: bool = False) -> bool:
    """Whether a worker has polled the run's task queue since the run started and, with ``lately``, within the last poll
    interval. A live worker takes the run at once. Of a run that is pinned to a version, a worker of that version."""
    since = max(run.start_time, datetime.now(UTC) - _MAX_POLLER_AGE) if lately else run.start_time
    status = read_deployment_version(run)
    return await _is_polled_since(
        client, run.task_queue, since, version=status["version"] if status.get("version_pinned") else None
    )


async def is_queue_polled(client: ClientHandle, task_queue: str) -> bool:
    """Whether a worker has polled the task queue within the last poll interval."""
    return await _is_polled_since(client, task_queue, datetime.now(UTC) - _MAX_POLLER_AGE)


async def _is_polled_since(
    client: ClientHandle, task_queue: str, since: datetime, *, version: str | None = None
) -> bool:
    """The server lists pollers for minutes after they have stopped; a live worker begins a new poll every minute."""
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    polls = await find_pollers(client.temporal, task_queue, kind, version=version)
    return any(polled_at >= since for polled_at in polls.values())


async def _read_heartbeat_wait(converter: DataConverter, payloads: Sequence[Payload]) -> str | None:
    """Return what the activity waits for according to the engine's heartbeats, if anything."""
    try:
        decoded = await converter.decode(payloads) if payloads else []
    except Exception:  # an unavailable codec, or a tool's own heartbeat details of an unknown type
        return None
    for details in decoded:
        if isinstance(details, dict) and isinstance(details.get("waiting"), str):
            return str(details["waiting"])
    return None
