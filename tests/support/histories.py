"""What a run has cost in Temporal's history: executions, events, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
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


@dataclass(frozen=True, slots=True)
class IdleTask:
    """A completed workflow task without a command: docs/decisions/028-commands-of-a-task.md."""

    events: tuple[int, int, int]
    """Ids of its three events: scheduled, started, completed."""
    received: bool
    """It brought an event that the workflow waits for, or a signal."""


def idle_tasks(events: Sequence[HistoryEvent]) -> Iterator[IdleTask]:
    """The workflow tasks that were completed without a command."""
    received = False
    for event, following in pairwise([*events, HistoryEvent()]):
        if event.HasField("workflow_task_completed_event_attributes"):
            task = event.workflow_task_completed_event_attributes
            if not _is_command(following):
                yield IdleTask((task.scheduled_event_id, task.started_event_id, event.event_id), received)
            received = False
        elif _is_received(event):
            received = True


def _is_command(event: HistoryEvent) -> bool:
    kind = event.WhichOneof("attributes") or ""
    updated = kind.startswith(("workflow_execution_update_accepted_", "workflow_execution_update_completed_"))
    return updated or hasattr(getattr(event, kind, None), "workflow_task_completed_event_id")


def _is_received(event: HistoryEvent) -> bool:
    kind = event.WhichOneof("attributes") or ""
    acknowledged = (
        "workflow_task_",
        "activity_task_started_",
        "external_workflow_execution_cancel_requested_",
        "workflow_execution_options_updated_",
    )
    return not (_is_command(event) or kind.startswith(acknowledged) or "_update_" in kind)
