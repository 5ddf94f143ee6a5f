"""Task queues, as Temporal describes them: who polls them, and what waits in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse
from temporalio.client import Client as TemporalClient


async def describe_task_queue(
    temporal: TemporalClient,
    task_queue: str,
    kind: TaskQueueType.ValueType,
    *,
    timeout: float | None = None,
    stats: bool = False,
) -> DescribeTaskQueueResponse:
    """Return the pollers of a task queue, to which versions Temporal routes its tasks, and with ``stats`` what waits in
    it. Raises ``RPCError``."""
    queue = TaskQueue(name=task_queue)
    request = DescribeTaskQueueRequest(namespace=temporal.namespace, task_queue=queue, task_queue_type=kind)
    request.report_stats = stats
    return await temporal.workflow_service.describe_task_queue(
        request, retry=timeout is None, timeout=None if timeout is None else timedelta(seconds=timeout)
    )


async def find_pollers(
    temporal: TemporalClient, task_queue: str, kind: TaskQueueType.ValueType, *, timeout: float | None = None
) -> dict[str, datetime]:
    """Return when each worker has polled the task queue last: by identity, by the server's clock. The server lists
    workers for minutes after they have stopped. Raises ``RPCError``."""
    polls: dict[str, datetime] = {}
    for poller in (await describe_task_queue(temporal, task_queue, kind, timeout=timeout)).pollers:
        at = poller.last_access_time.ToDatetime(UTC)
        polls[poller.identity] = max(polls.get(poller.identity, at), at)
    return polls
