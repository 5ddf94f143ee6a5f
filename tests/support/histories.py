"""What a run has cost in Temporal's history: executions, events, bytes."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from perdure import Run


@dataclass(frozen=True, slots=True)
class Weight:
    """One execution of a run."""

    run_id: str
    events: int
    size: int
    """Bytes, as the server counts them."""


async def weights(run: Run) -> list[Weight]:
    """Every execution that the present one continues, the first one first."""
    temporal = run.client.temporal
    found: list[Weight] = []
    execution = (await temporal.get_workflow_handle(run.id).describe()).run_id
    while execution:
        handle = temporal.get_workflow_handle(run.id, run_id=execution)
        info = (await handle.describe()).raw_description.workflow_execution_info
        found.insert(0, Weight(execution, info.history_length, info.history_size_bytes))
        first = await anext(handle.fetch_history_events(page_size=1))
        execution = first.workflow_execution_started_event_attributes.continued_execution_run_id
    return found


async def histories(run: Run) -> list[WorkflowHistory]:
    """The same executions, event by event."""
    temporal = run.client.temporal
    return [
        await temporal.get_workflow_handle(run.id, run_id=weight.run_id).fetch_history()
        for weight in await weights(run)
    ]


def kinds(history: WorkflowHistory) -> list[str]:
    """The types of its events, without workflow tasks that a busy worker left until they were given to it again."""
    left: set[int] = set()
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            task = event.workflow_task_timed_out_event_attributes
            left |= {task.scheduled_event_id, task.started_event_id, event.event_id}
    return [EventType.Name(event.event_type) for event in history.events if event.event_id not in left]
