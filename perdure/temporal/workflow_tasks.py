"""Workflow tasks of an open run, read from its history: a task that fails repeatedly, and events without a task."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass

from temporalio.api.common.v1 import WorkflowExecution as ExecutionMessage
from temporalio.api.enums.v1 import PendingWorkflowTaskState, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionDescription

_HISTORY_PAGE = 50
"""Events per page, read from a history's end."""
_MAX_HISTORY_EVENTS = 500
"""Most events that are searched for the task before a failing one."""
_MAX_ERROR_CHARS = 300
_ORDINARY_CAUSES = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Causes for which a task is repeated in normal operation."""
_REPLAY_EVENT = re.compile(r"HistoryEvent\(id: (\d+)")
"""The SDK's text for the event of a history that it cannot replay."""


@dataclass(frozen=True, slots=True)
class FailingTask:
    """A workflow task that fails repeatedly: the run stands still."""

    run_id: str
    attempt: int
    error: str
    reset_to: int | None
    """Event id of the task to which a reset helps: a WorkflowTaskCompleted. None if none was found."""

    def __str__(self) -> str:
        return f"its workflow task fails, attempt {self.attempt}: {self.error}"

    @property
    def way_out(self) -> str:
        """The way out, for an operator."""
        named = f"--workflow-id {shlex.quote(self.run_id)} --event-id {self.reset_to}"
        reset = f"temporal workflow reset {named} --reason stuck"
        reset_hint = f", or reset it to before the task that fails: {reset}" if self.reset_to else ""
        return f"Run workers of the version that began it{reset_hint}"


async def find_failing_task(temporal: TemporalClient, run: WorkflowExecutionDescription) -> FailingTask | None:
    """Find the workflow task that fails repeatedly; None if none does, according to the last events."""
    task = run.raw_description.pending_workflow_task
    if task.attempt < 2:
        return None
    failed = None
    async for event in _read_last_events(temporal, run):
        if event.HasField("workflow_task_completed_event_attributes"):
            if failed is None:
                return None  # the task was lost with its worker, and did not fail
            event_match = _REPLAY_EVENT.search(failed)
            if event_match is None or event.event_id < int(event_match[1]):
                return FailingTask(run.id, task.attempt, failed[:_MAX_ERROR_CHARS], event.event_id)
        elif failed is None and event.HasField("workflow_task_failed_event_attributes"):
            attributes = event.workflow_task_failed_event_attributes
            if attributes.cause in _ORDINARY_CAUSES:
                return None
            failed = await _decode_failure_message(temporal, attributes.failure)
    return None if failed is None else FailingTask(run.id, task.attempt, failed[:_MAX_ERROR_CHARS], None)


async def has_unhandled_events(temporal: TemporalClient, run: WorkflowExecutionDescription) -> bool:
    """Whether an open run has, or may have, an event that no workflow task has handled yet.

    A pending task does not prove it: the cause may be a client's query of the run's status.
    """
    if not run.raw_description.HasField("pending_workflow_task"):
        return False
    if run.raw_description.pending_workflow_task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED:
        return True  # new events enter the history when the task ends, or its worker is found to be lost
    async for event in _read_last_events(temporal, run):
        if event.event_id > run.history_length:
            return True  # the run has continued since it was described
        if event.HasField("workflow_task_completed_event_attributes"):
            return False
        name = event.WhichOneof("attributes") or ""
        by_workflow = hasattr(getattr(event, name, None), "workflow_task_completed_event_id")
        if not by_workflow and not name.startswith("workflow_task_"):
            return True
    return True


async def _read_last_events(temporal: TemporalClient, run: WorkflowExecutionDescription) -> AsyncIterator[HistoryEvent]:
    """Iterate over the last events, the latest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=temporal.namespace,
        execution=ExecutionMessage(workflow_id=run.id, run_id=run.run_id or ""),
        maximum_page_size=_HISTORY_PAGE,
    )
    for _ in range(_MAX_HISTORY_EVENTS // _HISTORY_PAGE):
        page = await temporal.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        for event in page.history.events:
            yield event
        if not page.next_page_token:
            return
        request.next_page_token = page.next_page_token


async def _decode_failure_message(temporal: TemporalClient, failure: Failure) -> str:
    try:
        error = await temporal.data_converter.decode_failure(failure)
    except Exception:  # an unreachable codec
        return " ".join(failure.message.split())
    return " ".join(str(getattr(error, "message", error)).split())
