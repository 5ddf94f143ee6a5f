"""Workflow tasks of an open run, as its history has them: the one that fails again and again, and news without one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from temporalio.api.common.v1 import WorkflowExecution as ExecutionMessage
from temporalio.api.enums.v1 import PendingWorkflowTaskState, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionDescription

_PAGE = 50
"""Events that are read at once, from a history's end."""
_MOST = 500
"""Events among which the task before a failing one is looked for."""
_CHARS = 300
_NO_FAULT = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Causes for which a task is given out again in the ordinary course of things."""
_EVENT = re.compile(r"HistoryEvent\(id: (\d+)")
"""How the SDK names the event of a history that it cannot replay."""


@dataclass(frozen=True, slots=True)
class FailingTask:
    """A workflow task that workers fail again and again: the run stands still."""

    run_id: str
    attempt: int
    error: str
    reset_to: int | None
    """The task to which a reset of the run helps: a WorkflowTaskCompleted. None where none was found."""

    def __str__(self) -> str:
        return f"its workflow task fails, attempt {self.attempt}: {self.error}"

    @property
    def way_out(self) -> str:
        """What an operator does."""
        reset = f"temporal workflow reset --workflow-id {self.run_id} --event-id {self.reset_to} --reason stuck"
        named = f", or reset it to before the task that fails: {reset}" if self.reset_to else ""
        return f"Run workers of the version that began it{named}"


async def failing_task(temporal: TemporalClient, seen: WorkflowExecutionDescription) -> FailingTask | None:
    """The workflow task that fails again and again; None where none does, as far as the last events say."""
    task = seen.raw_description.pending_workflow_task
    if not seen.raw_description.HasField("pending_workflow_task") or task.attempt < 2:
        return None
    failed = None
    async for event in _last_events(temporal, seen):
        if event.HasField("workflow_task_completed_event_attributes"):
            if failed is None:
                return None  # it was lost with its worker, and did not fail
            named = _EVENT.search(failed)
            if named is None or event.event_id < int(named[1]):
                return FailingTask(seen.id, task.attempt, failed[:_CHARS], event.event_id)
        elif failed is None and event.HasField("workflow_task_failed_event_attributes"):
            attributes = event.workflow_task_failed_event_attributes
            if attributes.cause in _NO_FAULT:
                return None
            failed = await _message(temporal, attributes.failure)
    return None if failed is None else FailingTask(seen.id, task.attempt, failed[:_CHARS], None)


async def has_news(temporal: TemporalClient, seen: WorkflowExecutionDescription) -> bool:
    """Whether something has come, or may have come, for an open run that no workflow task has given to it yet.

    A task that is pending need not mean that: it may be there only because a client asked for the run's status.
    """
    if not seen.raw_description.HasField("pending_workflow_task"):
        return False
    if seen.raw_description.pending_workflow_task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED:
        return True  # what comes meanwhile is in no history until the task ends, or its worker is found to be lost
    async for event in _last_events(temporal, seen):
        if event.event_id > seen.history_length:
            return True  # the run has got on since it was described
        if event.HasField("workflow_task_completed_event_attributes"):
            return False
        name = event.WhichOneof("attributes") or ""
        by_workflow = hasattr(getattr(event, name, None), "workflow_task_completed_event_id")
        if not by_workflow and not name.startswith("workflow_task_"):
            return True
    return True


async def _last_events(temporal: TemporalClient, seen: WorkflowExecutionDescription) -> AsyncIterator[HistoryEvent]:
    """The latest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=temporal.namespace,
        execution=ExecutionMessage(workflow_id=seen.id, run_id=seen.run_id or ""),
        maximum_page_size=_PAGE,
    )
    for _ in range(_MOST // _PAGE):
        answer = await temporal.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        for event in answer.history.events:
            yield event
        if not answer.next_page_token:
            return
        request.next_page_token = answer.next_page_token


async def _message(temporal: TemporalClient, failure: Failure) -> str:
    try:
        error = await temporal.data_converter.decode_failure(failure)
    except Exception:  # a codec that is away
        return " ".join(failure.message.split())
    return " ".join(str(getattr(error, "message", error)).split())
