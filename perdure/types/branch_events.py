"""Events of branches of a step (``step.branch``)."""

from __future__ import annotations

from typing import Literal

from .event import Event
from .messages import BlobRef


class BranchStarted(Event):
    """The step policy asks another agent, and waits for its answer; what happens there are events of its own run."""

    type: Literal["branch.started"] = "branch.started"
    iteration: int = 0
    """Of the model call that the step is before."""
    agent: str = ""
    message: str = ""
    """What it is asked behind the conversation; empty where it is in ``blob``, or nothing is said."""
    blob: BlobRef | None = None
    child_context_id: str = ""
    """Id of its run."""


class BranchCompleted(Event):
    """What a branch came to. It is said when all branches that the policy waits for have ended and the step is tried
    again: of a step that is stopped before (interrupted, cancelled, at a limit) it is not said."""

    type: Literal["branch.completed"] = "branch.completed"
    iteration: int = 0
    agent: str = ""
    child_context_id: str = ""
    content: str = ""
    """The answer; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    error_type: str | None = None
    """Class name of what it failed with; ``error`` is its message."""
    error: str | None = None
