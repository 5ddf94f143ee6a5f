"""What there is to say of branches: that they begin, and what they came to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ports import NewEvent
from ..types.branch_events import BranchCompleted, BranchStarted
from ..types.wire import ModelInput, ModelOutput


def branches_begun(task: ModelInput, output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The branches that a step waits for. ``said`` is what every event has."""
    for place, one in enumerate(output.branches):
        event = BranchStarted(
            **said,
            iteration=task.iteration,
            agent=one.agent,
            message=one.message or "",
            blob=one.blob,
            child_context_id=f"{task.context_id}/{task.op + 1 + place}",  # as the loop numbers it (branching.py)
        )
        yield NewEvent(event)


def branches_ended(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """What the branches came to that the step has waited for."""
    for one in task.branches:
        event = BranchCompleted(
            **said,
            iteration=task.iteration,
            agent=one.agent,
            child_context_id=f"{task.context_id}/{one.op}",
            content=one.content,
            blob=one.blob,
            error_type=one.error_type,
            error=one.error,
        )
        yield NewEvent(event, key=f"branch/{task.scope}/{one.op}")
