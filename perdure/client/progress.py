"""Why a run does not progress: what its activities wait for or failed with, and whether a worker polls its queue; and
requests that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio.api.common.v1 import Payload
from temporalio.api.deployment.v1 import WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType, WorkerVersioningMode
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import WorkflowExecutionDescription
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError

from ..errors import NoWorkerError, PerdureError, RunNotReadyError, RunStuckError, join_sentences
from ..temporal.task_queues import describe_task_queue
from ..temporal.workflow_tasks import find_failing_task
from .handles import ClientHandle, RunHandle
from .tasks import background_task
from .visibility import read_deployment_version

logger = logging.getLogger("perdure.client")

T = TypeVar("T")

UNANSWERED_SECONDS = 5.0
"""Seconds without an answer after which a run is asked for a sign of life, which takes as long again without one."""
MAX_POLLER_AGE = timedelta(seconds=70)
"""Longest time between two polls of a worker, and a little more."""
_STUCK_SECONDS = 10.0
"""Seconds of refusals after which a run whose workflow task fails is said to be stuck: a task that failed because its
worker stood still succeeds before."""
_READY_RETRY_SECONDS, _MAX_READY_RETRY_SECONDS = 0.1, 2.0
"""Seconds between the first two requests to a run that is not ready, and the most."""


async def retry_while_not_ready(run: RunHandle, send: Callable[[], Awaitable[T]], *, within: float | None = None) -> T:
    """Return the result of ``send``, called again while Temporal holds requests back from ``run``; the caller bounds
    the time, or ``within`` seconds do. ``send`` must be safe to repeat.

    Raises ``RunNotReadyError`` after ``within``; ``RunStuckError`` if the run's workflow task fails, and was not only
    lost with its worker.
    """
    loop = asyncio.get_running_loop()
    begun_at, delay, stuck_checks = loop.time(), _READY_RETRY_SECONDS, 0
    while True:
        try:
            return await send()
        except RunNotReadyError as error:
            waited = loop.time() - begun_at
            if within is not None and waited + delay > within:
                raise
            if waited > _STUCK_SECONDS * (stuck_checks + 1):
                with run.temporal_errors():
                    failing = await find_failing_task(run.client.temporal, await run.describe())
                if failing is not None:
                    raise RunStuckError(f"run {run.id!r}: {failing}", hint=failing.way_out) from error
                stuck_checks += 1
                logger.warning("still waiting: %s", join_sentences(error.message, error.hint))
        await asyncio.sleep(delay)
        delay = min(delay * 2, _MAX_READY_RETRY_SECONDS)


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
            failed_attempt = pending.attempt - 1  # Temporal's number is that of the one that follows
            reason = f"{name}, attempt {failed_attempt}: {failure}"
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
    """Whether a worker that gets the run has polled its task queue since the run started and, with ``lately``, within
    the last poll interval. A live worker takes the run at once.

    A run that is pinned goes to workers of its version, others to those of the current or ramping one; without these,
    to workers without a version.
    """
    since = max(run.start_time, datetime.now(UTC) - MAX_POLLER_AGE) if lately else run.start_time
    described = await _describe_queue(client, run.task_queue)
    return bool(_list_polling_versions(described, since) & _list_versions_of_run(run, described))


async def build_no_worker_error(
    client: ClientHandle, run: WorkflowExecutionDescription, seconds: float
) -> NoWorkerError:
    """Build the error for a run for which :func:`has_poller` has found no worker for that many seconds."""
    queue, described = run.task_queue, await _describe_queue(client, run.task_queue)
    wanted = _list_versions_of_run(run, described)
    others = sorted(_list_polling_versions(described, datetime.now(UTC) - MAX_POLLER_AGE) - wanted)
    if not others:
        return NoWorkerError(
            f"no worker has polled task queue {queue!r} for {seconds:g} s",
            hint=f"Run {run.id!r} waits for one: perdure worker FILE --task-queue {queue}",
        )
    if read_deployment_version(run).get("version_pinned"):
        command = f"workflow update-options --workflow-id {run.id} --versioning-override-behavior auto_upgrade"
    else:
        name, _, build_id = (others[-1] or max(wanted)).partition(".")
        target = f"--build-id {build_id}" if others[-1] else "--unversioned"
        command = f"worker deployment set-current-version --deployment-name {name} {target}"
    return NoWorkerError(
        f"Temporal sends run {run.id!r} to workers {_describe_versions(wanted)}, and those that poll task queue "
        f"{queue!r} are {_describe_versions(others)}",
        hint=f"Start such a worker, or have Temporal send it to these: temporal {command}",
    )


async def describe_missing_worker(client: ClientHandle, run: WorkflowExecutionDescription) -> str:
    """Say that no worker answers for the run; where workers of other versions poll its task queue, also which, and what
    lets one take it: the words of :func:`build_no_worker_error`, which the workers' log has, too."""
    status = read_deployment_version(run)
    place = f"version {status['version']}, to which it is pinned" if status.get("version_pinned") else "its task queue"
    missing = f"no worker answers on {place}"
    try:
        described = await _describe_queue(client, run.task_queue)
        polling = _list_polling_versions(described, datetime.now(UTC) - MAX_POLLER_AGE)
        if not polling or polling & _list_versions_of_run(run, described):
            return missing
        error = await build_no_worker_error(client, run, UNANSWERED_SECONDS)
    except (PerdureError, RPCError):  # the server is asked for a detail
        return missing
    return join_sentences(f"{missing}: {error.message}", error.hint)


async def refuse_without_worker(run: RunHandle, sending: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``sending``, a request that a worker of the run answers.

    Raises ``NoWorkerError`` when neither the request nor a question for the run's state has an answer for
    ``2 * UNANSWERED_SECONDS``: the request is given up then, and may still have an effect.
    """
    async with background_task(sending) as task:
        while not task.done():
            await asyncio.wait({task}, timeout=UNANSWERED_SECONDS)
            if not task.done() and (missing := await _find_silence(run)) is not None and not task.done():
                raise missing
        return await task


async def _find_silence(run: RunHandle) -> NoWorkerError | None:
    """Ask the run's worker for a sign of life; None if there is one, or if that cannot be known."""
    try:
        await run.ask_workflow("status")
    except NoWorkerError:
        pass
    except PerdureError:  # the request itself raises what is wrong
        return None
    described, seconds = await run.describe(), 2 * UNANSWERED_SECONDS
    if described.close_time is not None:
        return None
    if not await has_poller(run.client, described, lately=True):
        return await build_no_worker_error(run.client, described, seconds)
    reason = await find_pending_reason(run.client, described)
    return NoWorkerError(
        f"no worker of task queue {described.task_queue!r} has answered for run {run.id!r} for {seconds:g} s"
        + (f": {reason}" if reason else ""),
        hint="Repeat it when one answers: the same request counts once.",
    )


async def is_queue_polled(client: ClientHandle, task_queue: str) -> bool:
    """Whether a worker has polled the task queue within the last poll interval."""
    described = await _describe_queue(client, task_queue)
    return bool(_list_polling_versions(described, datetime.now(UTC) - MAX_POLLER_AGE))


async def _describe_queue(client: ClientHandle, task_queue: str) -> DescribeTaskQueueResponse:
    return await describe_task_queue(client.temporal, task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)


def _list_polling_versions(described: DescribeTaskQueueResponse, since: datetime) -> set[str]:
    """List the versions, ``NAME.BUILD_ID``, of the workers that have polled since then; "" for workers without one.

    The server lists pollers for minutes after they have stopped; a live worker begins a new poll every minute.
    """
    pollers = [poller for poller in described.pollers if poller.last_access_time.ToDatetime(UTC) >= since]
    versioned = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return {
        format_version(options) if (options := poller.deployment_options).worker_versioning_mode == versioned else ""
        for poller in pollers
    }


def _list_versions_of_run(run: WorkflowExecutionDescription, described: DescribeTaskQueueResponse) -> set[str]:
    """List the versions to whose workers Temporal may send the run's next task; "" for workers without one."""
    status, info = read_deployment_version(run), described.versioning_info
    if status.get("version_pinned"):
        return {status["version"]}
    ramping = [info.ramping_deployment_version] if info.ramping_version_percentage > 0 else []
    return {format_version(version) for version in (info.current_deployment_version, *ramping)}


def _describe_versions(versions: Iterable[str]) -> str:
    return " or ".join(f"of version {version}" if version else "without a version" for version in sorted(versions))


def format_version(version: WorkerDeploymentVersion | WorkerDeploymentOptions) -> str:
    """Return ``NAME.BUILD_ID``; "" for no version."""
    return f"{version.deployment_name}.{version.build_id}" if version.build_id else ""


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
