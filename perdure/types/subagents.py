"""Subagents in background: calls about them, what their parent keeps of each, what each tells it when it has ended."""

from __future__ import annotations

import operator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .limits import Bounds
from .messages import CALL_ID_CHARS, NAME_CHARS, RUN_ID_CHARS, BlobRef, Data, Usage

DEFAULT_BACKGROUND_RUNS = 10
"""How many run at once, unless the author says otherwise."""
MAX_BACKGROUND_RUNS = 20
"""How many an author may let run at once."""
CHILD_ANSWER_CHARS = 32 * 1024
"""Of an answer that a child sends; a longer one it sends as a reference."""
CHILD_ERROR_CHARS = 2000
"""Of what it failed with."""

BackgroundState = Literal["starting", "running", "completed", "failed", "cancelled", "lost"]
"""``lost``: it was terminated, or timed out, and could say nothing any more."""


class CollectCall(Data):
    """The call asks for the answer of a subagent in background."""

    kind: Literal["collect"] = "collect"
    handle: str
    wait: bool = True
    """Until it has ended; else the call says how it stands."""


class TellCall(Data):
    """The call sends a message to a subagent in background."""

    kind: Literal["tell"] = "tell"
    handle: str
    message: str = ""
    """Empty where it is in ``blob``."""
    blob: BlobRef | None = None


class RunUsage(Data):
    """What a run has used, all its own subagents counted."""

    usage: Usage = Usage()
    cost_usd: float | None = None
    tool_calls: int = 0


class ChildEnding(Data):
    """How a run in background ended, as it tells its parent: the argument of the signal ``child_ended``."""

    context_id: str = Field(max_length=RUN_ID_CHARS)
    """Its id."""
    scope: str = Field(max_length=NAME_CHARS)
    """The journal scope that its parent gave it, by which it is known to be the one that was started."""
    state: Literal["completed", "failed", "cancelled"]
    content: str = Field(default="", max_length=CHILD_ANSWER_CHARS)
    """Its answer; empty where that is in ``blob``, or there is none."""
    blob: BlobRef | None = None
    error: str | None = Field(default=None, max_length=CHILD_ERROR_CHARS)
    """``Type: message`` of one that did not end well."""
    used: RunUsage = RunUsage()


class BackgroundRun(BaseModel):
    """A row of the parent's table."""

    model_config = ConfigDict(extra="ignore")

    handle: str
    """What the model calls it: ``b1``."""
    op: int
    """Of the call that started it: its id ends with that."""
    call_id: str
    agent: str
    scope: str
    state: BackgroundState = "running"
    limits: Bounds | None = None
    """What is set aside for it, until it has ended."""
    text: str | None = None
    """Its answer, or why there is none; None where it is in ``blob``, or was dropped."""
    blob: BlobRef | None = None
    used: RunUsage = RunUsage()
    """What of it counts for the parent already."""
    collected: bool = False
    stopped: bool = False
    """It was stopped because its parent ended."""
    looks: int = 0
    """How often it was looked whether it is still there, and when last, in seconds since 1970."""
    looked: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self.state in ("starting", "running")


class BackgroundStatus(Data):
    """A subagent in background, as the parent's ``status`` shows it."""

    handle: str
    agent: str
    context_id: str
    """Id of its run."""
    state: BackgroundState
    collected: bool = False
    """Its answer was given to the model."""


# ---
# Branches of a step: what a policy asks of other agents, and what came of it, as far as the loop is told.


MAX_BRANCHES = 10
"""Branches of one step, all rounds of its policy together: what they answer stands in one activity's input."""
BRANCH_MODEL_BYTES = 4 * 1024
"""Of the models that one branch is asked with: those of all branches stand in one activity's outcome."""
BRANCH_LABEL_CHARS = 100
"""Of what a branch was asked, as errors name it."""


class BranchRequest(Data):
    """A branch that a policy waits for."""

    key: str
    """Hash of what is asked: by it the policy that runs again is given the answer."""
    said: str
    """What is asked, for a person."""
    agent: str
    message: str | None = None
    """What the agent is asked behind the conversation; None for nothing, or where it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``message`` is the JSON of a value of the agent's input type."""
    head: str | None = None
    """Where the forked conversation ends; None where the agent sees the message alone. Set by the transcript stage."""
    model: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Models that are asked in place of the agent's."""


class BranchOutcome(Data):
    """How a branch ended: with an answer, or with an error."""

    key: str
    said: str
    agent: str
    op: int
    """Number of the operation: its run is ``<context_id>/<op>``."""
    content: str = ""
    """The answer; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is JSON, of the agent's output type."""
    error_type: str | None = None
    """Class name of what it failed with; ``error`` is its message."""
    error: str | None = None


# ---
# Where a run stands among the runs that began it: by this its events join those of the run at the top.


class PathStep(Data):
    """A call of another agent: a step down from the run that made it to the run that answers it."""

    agent: str = Field(max_length=NAME_CHARS)
    """The agent that was called."""
    call_id: str = Field(max_length=CALL_ID_CHARS)
    task_id: str | None = Field(default=None, max_length=NAME_CHARS)
    """The turn of the caller that made the call."""


class Lineage(Data):
    """The way from the run at the top down to a run that a call of another agent has begun."""

    root: str = Field(min_length=1, max_length=RUN_ID_CHARS)
    """Id of the run at the top, in whose order the events of all runs below it stand."""
    path: tuple[PathStep, ...] = Field(min_length=1, max_length=20)
    agent: str = Field(max_length=NAME_CHARS)
    """The agent of the run at the top."""

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The agents of the runs above, the top one first."""
        return (self.agent, *(step.agent for step in self.path[:-1]))
