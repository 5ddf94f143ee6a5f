"""What Temporal itself says of the demo's run: what is in flight on which worker, how often things were tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...types.wire import MODEL_ACTIVITY

if TYPE_CHECKING:
    from ...run import Run
    from ..children import Child


@dataclass(frozen=True)
class InFlight:
    """An activity that a worker has begun and not finished."""

    name: str
    attempt: int
    worker: str
    """Identity of the worker: ``pid@host``."""

    @property
    def what(self) -> str:
        """For people."""
        return "a model call" if self.name == MODEL_ACTIVITY else f"the tool {self.name.removeprefix('tool.')}"

    def on(self, worker: Child) -> bool:
        """Whether that worker has it."""
        return self.worker.startswith(f"{worker.pid}@")


async def in_flight(run: Run) -> list[InFlight]:
    """What is begun; asked of the server, not of a worker, so it answers when there is none."""
    from temporalio.api.enums.v1 import PendingActivityState

    raw = (await run.handle.describe()).raw_description
    begun = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return [
        InFlight(pending.activity_type.name, pending.attempt, pending.last_worker_identity)
        for pending in raw.pending_activities
        if pending.state == begun
    ]


@dataclass(frozen=True)
class Tries:
    """From the run's history: how often things were begun."""

    model: int
    """Attempts of model calls, the recording of the end left out."""
    tools: int
    again: tuple[str, ...]
    """Tools that were begun more than once."""


async def tries(run: Run) -> Tries:
    """Count the attempts of all activities of a run that has ended."""
    from temporalio.api.enums.v1 import EventType

    names: dict[int, str] = {}
    attempts: Counter[int] = Counter()
    async for event in run.handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if b'"purpose":"close"' not in b"".join(payload.data for payload in scheduled.input.payloads):
                names[event.event_id] = scheduled.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            attempts[started.scheduled_event_id] = started.attempt
    tools = {event: name for event, name in names.items() if name != MODEL_ACTIVITY}
    return Tries(
        model=sum(attempts[event] for event, name in names.items() if name == MODEL_ACTIVITY),
        tools=sum(attempts[event] for event in tools),
        again=tuple(name.removeprefix("tool.") for event, name in tools.items() if attempts[event] > 1),
    )
