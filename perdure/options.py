"""How perdure's clients start workflows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.client import ScheduleActionStartWorkflow, WorkflowHandle
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.service import RPCError

from .search_attributes import forget, of_start, refuses
from .translate import translated
from .types.interface import WORKFLOW

TASK_TIMEOUT = timedelta(seconds=5)
"""Of one workflow task: how long a run stands still whose worker was killed in the middle of one. Temporal's own
default is 10 s; a task here takes milliseconds, and a replay of the longest history about two seconds."""
MEMO_AGENT = "agent"
"""Key of the memo that names the agent, so that a list of runs needs no store."""


async def begin(
    temporal: TemporalClient,
    id: str,
    start: dict[str, Any],
    *,
    task_queue: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.REJECT_DUPLICATE,
    memo: dict[str, Any] | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start a run with the input ``start``; ``memo`` besides the agent's name.

    Raises the SDK's ``WorkflowAlreadyStartedError``, which means another thing to each caller; else a ``PerdureError``.
    """

    async def started(attributes: TypedSearchAttributes) -> WorkflowHandle[Any, Any]:
        return await temporal.start_workflow(
            WORKFLOW,
            start,
            id=id,
            task_queue=task_queue,
            task_timeout=TASK_TIMEOUT,
            id_reuse_policy=reuse,
            memo={MEMO_AGENT: start["agent"], **(memo or {})},
            search_attributes=attributes,
        )

    try:
        try:
            return await started(await of_start(temporal, start["agent"]))
        except RPCError as error:
            if not refuses(error):
                raise
            forget(temporal)  # it was there a minute ago
            return await started(TypedSearchAttributes.empty)
    except RPCError as error:
        raise translated(temporal, id, error) from error


def scheduled(id: str, start: dict[str, Any], *, task_queue: str) -> ScheduleActionStartWorkflow:
    """The same for a schedule: what it does each time. ``id`` is the beginning of its runs' ids.

    Without search attributes, which the run gives itself: in a namespace that has lost one no run would begin any more.
    """
    return ScheduleActionStartWorkflow(
        WORKFLOW, start, id=id, task_queue=task_queue, task_timeout=TASK_TIMEOUT, memo={MEMO_AGENT: start["agent"]}
    )
