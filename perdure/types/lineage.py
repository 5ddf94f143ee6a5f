"""Where a run stands among the runs that began it: by this its events join those of the run at the top."""

from __future__ import annotations

from pydantic import Field

from .messages import CALL_ID_CHARS, Data


class PathStep(Data):
    """A call of another agent: a step down from the run that made it to the run that answers it."""

    agent: str = Field(max_length=200)
    """The agent that was called."""
    call_id: str = Field(max_length=CALL_ID_CHARS)
    task_id: str | None = Field(default=None, max_length=200)
    """The turn of the caller that made the call."""


class Lineage(Data):
    """The way from the run at the top down to a run that a call of another agent has begun."""

    root: str = Field(min_length=1, max_length=2000)
    """Id of the run at the top, in whose order the events of all runs below it stand."""
    path: tuple[PathStep, ...] = Field(min_length=1, max_length=20)
    agent: str = Field(max_length=200)
    """The agent of the run at the top."""

    @property
    def above(self) -> tuple[str, ...]:
        """The agents of the runs above, the top one first."""
        return (self.agent, *(step.agent for step in self.path[:-1]))
