"""Starts of the workflow of a run: by a client, and by a schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.client import ScheduleActionStartWorkflow, WorkflowHandle
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.service import RPCError

from ..types.interface import WORKFLOW_TYPE, build_run_memo
from .attributes import build_start_attributes, forget_search_attributes
from .errors import is_missing_attribute, translate_rpc_error

TASK_TIMEOUT = timedelta(seconds=5)
"""Timeout of one workflow task: the time that a run stands still after its worker was killed in a task. Temporal's
default is 10 s; a task here takes milliseconds, and a replay of the longest history about two seconds."""


async def start_run_workflow(
    temporal: TemporalClient,
    id: str,
    start: dict[str, Any],
    *,
    task_queue: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.REJECT_DUPLICATE,
    memo: dict[str, Any] | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start a run with the input ``start``. ``memo`` is added to that of every run.

    Raises the SDK's ``WorkflowAlreadyStartedError``, which has a different meaning for each caller; else a
    ``PerdureError``.
    """

    attributes = await build_start_attributes(temporal, start)
    while True:
        try:
            return await temporal.start_workflow(
                WORKFLOW_TYPE,
                start,
                id=id,
                task_queue=task_queue,
                task_timeout=TASK_TIMEOUT,
                id_reuse_policy=reuse,
                memo={**build_run_memo(start), **(memo or {})},
                search_attributes=attributes,
            )
        except RPCError as error:
            if not attributes or not is_missing_attribute(error):
                raise translate_rpc_error(temporal, id, error) from error
            forget_search_attributes(temporal)  # the attribute was removed since the check
            attributes = TypedSearchAttributes.empty


def build_schedule_action(id: str, start: dict[str, Any], *, task_queue: str) -> ScheduleActionStartWorkflow:
    """Build the action of a schedule, which starts a run each time. ``id`` is the prefix of its runs' ids.

    It has no search attributes, which the run sets itself: in a namespace that has lost one, no run would start.
    """
    return ScheduleActionStartWorkflow(
        WORKFLOW_TYPE, start, id=id, task_queue=task_queue, task_timeout=TASK_TIMEOUT, memo=build_run_memo(start)
    )
