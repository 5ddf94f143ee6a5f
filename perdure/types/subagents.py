"""Subagents: calls about those in background, branches of a step, and the lineage of a run."""

import operator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .approvals import MAX_SENDERS, NameHash
from .limits import Bounds
from .messages import CALL_ID_CHARS, NAME_CHARS, NO_USAGE, RUN_ID_CHARS, BlobRef, Data, Usage

DEFAULT_BACKGROUND_RUNS = 10
"""Most subagents in background at a time, by default."""
MAX_BACKGROUND_RUNS = 20
"""Highest value that an author may set for it."""
CHILD_ANSWER_CHARS = 32 * 1024
"""Most characters of an answer in a child's message; a longer answer is sent as a reference."""
CHILD_ERROR_CHARS = 2000
"""Most characters of a child's error."""

MAX_ROW_NAMES = 16
"""Most names that a background run's row has: the state may have 200 rows."""

BackgroundState = Literal["starting", "running", "completed", "failed", "cancelled", "lost"]
"""``lost``: it was terminated or timed out, and could not notify its parent."""


class CollectCall(Data):
    """The call collects the answer of a subagent in background."""

    kind: Literal["collect"] = "collect"
    handle: str
    wait: bool = True
    """Wait until it has ended; otherwise the call reports its state."""


class TellCall(Data):
    """The call sends a message to a subagent in background."""

    kind: Literal["tell"] = "tell"
    handle: str
    message: str = ""
    """Empty if it is in ``blob``."""
    blob: BlobRef | None = None


class RunUsage(Data):
    """Usage of a run, including all its own subagents."""

    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    tool_calls: int = 0


class ChildEnding(Data):
    """How a run in background ended, as reported to its parent: the argument of the signal ``child_ended``."""

    context_id: str = Field(max_length=RUN_ID_CHARS)
    """Id of the run."""
    scope: str = Field(max_length=NAME_CHARS)
    """The journal scope assigned by its parent, which proves that it is the run that was started."""
    state: Literal["completed", "failed", "cancelled"]
    content: str = Field(default="", max_length=CHILD_ANSWER_CHARS)
    """Its answer; empty if it is in ``blob``, or there is none."""
    blob: BlobRef | None = None
    error: str | None = Field(default=None, max_length=CHILD_ERROR_CHARS)
    """``Type: message`` of a run that failed or was cancelled."""
    used: RunUsage = RunUsage.model_construct()
    asked_by: tuple[NameHash, ...] = Field(default=(), max_length=MAX_SENDERS)
    """``hash_name`` of the people whose input led to its answer."""


class BackgroundRun(BaseModel):
    """A subagent in background, in the state of its parent."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    handle: str
    """Its name for the model: ``b1``."""
    op: int
    """Operation number of the call that started it: the run's id ends with it."""
    call_id: str
    agent: str
    scope: str
    state: BackgroundState = "running"
    limits: Bounds | None = None
    """Part of the parent's limits that is reserved for it until it has ended."""
    text: str | None = None
    """Its answer, or why there is none; None if it is in ``blob``, or was dropped."""
    blob: BlobRef | None = None
    used: RunUsage = RunUsage.model_construct()
    """Usage that is already counted for the parent."""
    asked_by: list[str] = Field(default=[], exclude_if=operator.not_)
    """``hash_name`` of the people whose input led to its answer: they count in the turn that collects it. At most
    ``MAX_ROW_NAMES``; more count in every turn of the run."""
    collected: bool = False
    stopped: bool = False
    """Stopped because its parent ended."""
    looks: int = 0
    """How often its parent has checked whether it still exists; ``looked`` is the time of the last check, in seconds
    since 1970."""
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
    """The model has its answer."""


# ---
# Branches of a step: calls of other agents by a step policy, and their outcomes.


MAX_BRANCHES = 10
"""Most branches of one step, in all rounds of its policy: one activity's input has all their answers."""
BRANCH_MODEL_BYTES = 4 * 1024
"""Most bytes of a branch's models: one activity's outcome has the models of all branches."""
BRANCH_LABEL_CHARS = 100
"""Most characters of a branch's label in errors."""


class BranchRequest(Data):
    """A branch that a policy waits for."""

    key: str
    """Hash of the request, by which the policy finds the answer when it runs again."""
    label: str
    """The request, for people."""
    agent: str
    message: str | None = None
    """The message after the conversation; None if there is none, or it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``message`` is the JSON of a value of the agent's input type."""
    head: str | None = None
    """Head of the forked conversation; None if the agent gets only the message. Set by the transcript stage."""
    model: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Models to call in place of the agent's."""


class BranchOutcome(Data):
    """How a branch ended: with an answer, or with an error."""

    key: str
    label: str
    agent: str
    op: int
    """Number of the operation: the run's id is ``<context_id>/<op>``."""
    content: str = ""
    """The answer; empty if it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is JSON of the agent's output type."""
    error_type: str | None = None
    """Class name of the error that it ended with; ``error`` is its message."""
    error: str | None = None


# ---
# A run's path from the root, used to place its events in the root's stream.


class PathStep(Data):
    """A call of another agent: a step from the calling run to the run that answers it."""

    agent: str = Field(max_length=NAME_CHARS)
    """The agent that was called."""
    call_id: str = Field(max_length=CALL_ID_CHARS)
    task_id: str | None = Field(default=None, max_length=NAME_CHARS)
    """The caller's turn that made the call."""


class Lineage(Data):
    """The path from the run at the top to a run that a call of another agent has started."""

    root: str = Field(min_length=1, max_length=RUN_ID_CHARS)
    """Id of the run at the top, whose event stream has the events of all runs below it."""
    path: tuple[PathStep, ...] = Field(min_length=1, max_length=20)
    agent: str = Field(max_length=NAME_CHARS)
    """The agent of the run at the top."""

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The agents of the runs above, from the top."""
        return (self.agent, *(step.agent for step in self.path[:-1]))
