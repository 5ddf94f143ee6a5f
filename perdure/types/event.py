"""What every event has; the events themselves are in :mod:`.events`."""

from __future__ import annotations

import operator

from pydantic import Field

from .lineage import PathStep
from .messages import Data


class Event(Data):
    """What every event has."""

    context_id: str = ""
    """Id of the conversation."""
    task_id: str | None = None
    """Id of the turn."""
    path: tuple[PathStep, ...] = Field(default=(), exclude_if=operator.not_)
    """Of a subagent's event: the calls that lead from the run that is followed down to the subagent. Empty, and left
    out, for the run's own."""
    seq: int = 0
    """Its number in the conversation and the subagents it calls, from 1; 0 for one that is not recorded yet."""
    at: str = ""
    """When it happened: ISO 8601, UTC."""
    attempt: int = 1
    """Of the activity that says so: more than 1 where an earlier attempt failed or its worker was lost."""
