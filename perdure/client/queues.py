"""The status of task queues: who polls them, what waits in them, which versions get their tasks, which runs fail.

Each question to Temporal takes a bounded time. One without an answer is a :class:`Silence`, which says why: a page
about a server that is in trouble must not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio.api.deployment.v1 import WorkerDeploymentInfo
from temporalio.api.enums.v1 import TaskQueueType, VersionDrainageStatus, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueueStats
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    DescribeTaskQueueResponse,
    DescribeWorkerDeploymentRequest,
    ListWorkerDeploymentsRequest,
)
from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ..temporal.errors import is_denied, is_missing_attribute
from ..temporal.task_queues import describe_task_queue
from ..temporal.workflow_tasks import FailingTask, find_failing_task
from .handles import ClientHandle
from .progress import MAX_POLLER_AGE, format_version
from .visibility import RUNS_QUERY, attribute_of, quote_literal

logger = logging.getLogger("perdure.client")
T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""Longest wait for one question."""
_PROBLEMS = "TemporalReportedProblems"
"""Temporal's own search attribute of runs whose workflow tasks fail, or time out, several times in a row."""
_PROBLEMS_FILTER = f"{_PROBLEMS} IN ('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut')"
_CONCURRENT = 10
_MAX_DEPLOYMENTS, _MAX_VERSIONS = 10, 10
OPEN_RUNS_QUERY = f"{RUNS_QUERY} AND ExecutionStatus = 'Running'"


@dataclass(frozen=True, slots=True)
class Silence:
    """The answer that Temporal did not give."""

    reason: str
    """Why, without names of hosts."""


async def ask(question: Awaitable[T], *, seconds: float = ANSWER_SECONDS) -> T | Silence:
    """Await the answer of Temporal for a bounded time."""
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError:
        return Silence(f"Temporal did not answer within {seconds:g} s")
    except RuntimeError as error:  # of a client that is not connected yet
        logger.info("Temporal cannot be reached: %s", error)
        return Silence("Temporal cannot be reached")
    except RPCError as error:
        logger.info("Temporal does not answer: %s: %s", error.status.name, error.message)
        if is_missing_attribute(error):
            return Silence("this Temporal server does not have the search attribute")
        if is_denied(error):
            return Silence("Temporal does not tell this client")
        if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            return Silence("Temporal cannot be reached")
        return Silence(f"Temporal refused the question ({error.status.name.lower().replace('_', ' ')})")


# ---
# One task queue.


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in a task queue for a worker. ``seconds``: the age of the oldest; rates are tasks per second."""

    count: int
    seconds: float
    added: float
    dispatched: float


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """A worker that polls a task queue. Times are by the server's clock."""

    identity: str
    version: str
    """``NAME.BUILD_ID``; "" for a worker without a version."""
    workflow_at: datetime | None = None
    """Its last poll for workflow tasks."""
    activity_at: datetime | None = None
    """Its last poll for activities."""

    @property
    def seen_at(self) -> datetime:
        """Its last poll."""
        return max(at for at in (self.workflow_at, self.activity_at) if at is not None)

    @property
    def is_live(self) -> bool:
        """Whether it has polled within the last poll interval: Temporal lists workers for minutes after their end."""
        return datetime.now(UTC) - self.seen_at < MAX_POLLER_AGE


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of a task queue. What Temporal does not tell is None."""

    name: str
    workers: tuple[QueueWorker, ...] = ()
    """The latest poll first."""
    workflow_backlog: Backlog | None = None
    activity_backlog: Backlog | None = None
    current: str = ""
    """The version that gets the tasks of runs that are not pinned; "": workers without a version."""
    ramping: str = ""
    ramp_percentage: float = 0.0
    """The share of those runs that ``ramping`` gets."""
    open_runs: int | None = None
    agents: tuple[str, ...] = ()
    """Agents of some of its open runs."""
    silence: str | None = None
    """Why Temporal says nothing of it."""

    @property
    def live(self) -> tuple[QueueWorker, ...]:
        """Workers that have polled lately."""
        return tuple(worker for worker in self.workers if worker.is_live)

    @property
    def unserved_versions(self) -> tuple[str, ...]:
        """Versions to which Temporal sends tasks, and for which no live worker asks for workflow tasks; "" stands for
        workers without a version."""
        polled = {worker.version for worker in self.live if worker.workflow_at is not None}
        wanted = [self.current, *([self.ramping] if self.ramp_percentage > 0 else [])]
        return tuple(version for version in wanted if version not in polled)


async def describe_queue(client: ClientHandle, name: str) -> QueueStatus:
    """Return the status of a task queue; with ``silence`` where Temporal does not answer."""
    temporal = client.temporal
    workflow_type, activity_type = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    workflow, activity, count = await asyncio.gather(
        ask(describe_task_queue(temporal, name, workflow_type, timeout=ANSWER_SECONDS, stats=True)),
        ask(describe_task_queue(temporal, name, activity_type, timeout=ANSWER_SECONDS, stats=True)),
        count_open_runs(client, f"TaskQueue = {quote_literal(name)}"),
    )
    open_runs = None if isinstance(count, Silence) else count
    if isinstance(workflow, Silence):
        return QueueStatus(name, open_runs=open_runs, silence=workflow.reason)
    if isinstance(activity, Silence):
        return QueueStatus(name, open_runs=open_runs, silence=activity.reason)
    versions = workflow.versioning_info
    return QueueStatus(
        name,
        _merge_workers(workflow, activity),
        _read_backlog(workflow),
        _read_backlog(activity),
        format_version(versions.current_deployment_version),
        format_version(versions.ramping_deployment_version),
        versions.ramping_version_percentage,
        open_runs,
    )


async def count_open_runs(client: ClientHandle, filter: str) -> int | Silence:
    """Count the open runs that a filter of Temporal's visibility finds."""
    temporal = client.temporal
    request = CountWorkflowExecutionsRequest(namespace=temporal.namespace, query=f"{OPEN_RUNS_QUERY} AND {filter}")
    timeout = timedelta(seconds=ANSWER_SECONDS)
    answer = await ask(temporal.workflow_service.count_workflow_executions(request, timeout=timeout))
    return answer if isinstance(answer, Silence) else answer.count


def _merge_workers(workflow: DescribeTaskQueueResponse, activity: DescribeTaskQueueResponse) -> tuple[QueueWorker, ...]:
    workers: dict[tuple[str, str], QueueWorker] = {}
    for is_workflow, described in ((True, workflow), (False, activity)):
        for poller in described.pollers:
            options, at = poller.deployment_options, poller.last_access_time.ToDatetime(UTC)
            is_versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
            key = (poller.identity, format_version(options) if is_versioned else "")
            known = workers.get(key, QueueWorker(*key))
            if is_workflow:
                workers[key] = replace(known, workflow_at=max(at, known.workflow_at or at))
            else:
                workers[key] = replace(known, activity_at=max(at, known.activity_at or at))
    return tuple(sorted(workers.values(), key=lambda worker: worker.seen_at, reverse=True))


def _read_backlog(described: DescribeTaskQueueResponse) -> Backlog | None:
    if not described.HasField("stats"):
        return None
    stats: TaskQueueStats = described.stats
    seconds = stats.approximate_backlog_age.ToTimedelta().total_seconds()
    return Backlog(stats.approximate_backlog_count, seconds, stats.tasks_add_rate, stats.tasks_dispatch_rate)


# ---
# Runs: those that are open, and those of them that cannot go on.


@dataclass(frozen=True, slots=True)
class FailingRun:
    """An open run whose workflow task fails, or times out, again and again."""

    id: str
    task_queue: str
    error: str
    attempt: int | None = None
    reset_to: int | None = None
    """Event id of the workflow task that a reset goes back to, if one was found."""
    is_timeout: bool = False
    """Whether the task times out: its worker is lost, or too slow."""

    @property
    def reset_command(self) -> str:
        """The command that resets the run to before the task that fails; "" if none helps."""
        named = f"--workflow-id {shlex.quote(self.id)} --event-id {self.reset_to}"
        return f"temporal workflow reset {named} --reason stuck" if self.reset_to else ""


async def list_open_executions(client: ClientHandle, limit: int, filter: str | None = None) -> list[WorkflowExecution]:
    """List the newest open runs. Raises ``RPCError``."""
    query = OPEN_RUNS_QUERY if filter is None else f"{OPEN_RUNS_QUERY} AND {filter}"
    listed = client.temporal.list_workflows(query, limit=limit, page_size=min(limit, 1000))
    return [execution async for execution in listed]


async def list_flagged_executions(client: ClientHandle, limit: int) -> list[WorkflowExecution]:
    """List the open runs whose workflow tasks fail or time out, as far as the server flags them: by default after five
    times. Raises ``RPCError``, also from a server that flags none."""
    return await list_open_executions(client, limit, _PROBLEMS_FILTER)


async def find_failing_runs(client: ClientHandle, executions: Iterable[WorkflowExecution]) -> list[FailingRun]:
    """Return those of the open runs that cannot go on, each after a look at its last events. Raises ``RPCError``."""
    found = await _gather(lambda execution: _find_failing_run(client, execution), executions)
    return [run for run in found if run is not None]


async def _find_failing_run(client: ClientHandle, execution: WorkflowExecution) -> FailingRun | None:
    handle = client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        task = await find_failing_task(client.temporal, await handle.describe())
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # deleted meanwhile
            return None
        raise
    if isinstance(task, FailingTask):
        return FailingRun(task.run_id, execution.task_queue, task.error, task.attempt, task.reset_to)
    problems = attribute_of(execution, _PROBLEMS)
    if isinstance(problems, Sequence) and any("TimedOut" in str(problem) for problem in problems):
        return FailingRun(execution.id, execution.task_queue, "its workflow task times out", is_timeout=True)
    return None


async def _gather(function: Callable[[Any], Awaitable[T]], values: Iterable[Any]) -> list[T]:
    slots = asyncio.Semaphore(_CONCURRENT)

    async def call(value: Any) -> T:
        async with slots:
            return await function(value)

    return await asyncio.gather(*map(call, values))


# ---
# Deployments: the versions of workers, and which of them gets tasks.


@dataclass(frozen=True, slots=True)
class DeployedVersion:
    """A version of a deployment."""

    build_id: str
    state: str
    """current, ramping, draining (runs are pinned to it), drained or inactive."""
    created: datetime | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Worker Deployment of the namespace."""

    name: str
    current: str
    """The build id that gets runs that are not pinned; "": workers without a version."""
    ramping: str
    ramp_percentage: float
    versions: tuple[DeployedVersion, ...] = ()
    """The newest first, at most ten."""
    total: int = 0
    """Number of versions."""


async def list_deployments(client: ClientHandle) -> list[Deployment]:
    """List the Worker Deployments of the namespace, at most ten. Raises ``RPCError``."""
    service, namespace = client.temporal.workflow_service, client.temporal.namespace
    timeout = timedelta(seconds=ANSWER_SECONDS)
    request = ListWorkerDeploymentsRequest(namespace=namespace, page_size=_MAX_DEPLOYMENTS)
    listed = await service.list_worker_deployments(request, timeout=timeout)

    async def describe(name: str) -> Deployment:
        described = await service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=namespace, deployment_name=name), timeout=timeout
        )
        return _build_deployment(described.worker_deployment_info)

    return await _gather(describe, [summary.name for summary in listed.worker_deployments])


def _build_deployment(info: WorkerDeploymentInfo) -> Deployment:
    routing = info.routing_config
    current, ramping = routing.current_deployment_version.build_id, routing.ramping_deployment_version.build_id
    summaries = sorted(info.version_summaries, key=lambda summary: summary.create_time.ToDatetime(UTC), reverse=True)

    def name_state(build_id: str, drainage: VersionDrainageStatus.ValueType) -> str:
        if build_id in (current, ramping):
            return "current" if build_id == current else "ramping"
        draining, drained = (
            VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINING,
            VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINED,
        )
        return {draining: "draining", drained: "drained"}.get(drainage, "inactive")

    versions = [
        DeployedVersion(
            summary.deployment_version.build_id,
            name_state(summary.deployment_version.build_id, summary.drainage_info.status or summary.drainage_status),
            summary.create_time.ToDatetime(UTC) if summary.HasField("create_time") else None,
        )
        for summary in summaries
    ]
    return Deployment(
        info.name, current, ramping, routing.ramping_version_percentage, tuple(versions[:_MAX_VERSIONS]), len(versions)
    )
