"""What every event has; the events themselves are in :mod:`.events`."""

from __future__ import annotations

from .messages import Data


class Event(Data):
    """What every event has."""

    context_id: str = ""
    """Id of the conversation."""
    task_id: str | None = None
    """Id of the turn."""
    seq: int = 0
    """Its number in the conversation, from 1; 0 for one that is not recorded yet."""
    at: str = ""
    """When it happened: ISO 8601, UTC."""
    attempt: int = 1
    """Of the activity that says so: more than 1 where an earlier attempt failed or its worker was lost."""
