"""The state of a conversation: one object, carried whole through continue-as-new.

It holds references and counters, never the conversation itself. ``schema_version`` says how to read it; an
engine reads every older version (:func:`read_state`) and refuses a newer one.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, field_validator

from ..errors import InvalidInputError
from .approvals import ApprovalOutcome, DecidedApproval, RevokedApproval, StandingApproval, WaitState
from .interface import Mode, Parent, TurnStatus
from .limits import Bounds, LimitUse
from .messages import BlobRef, FinishReason, Usage
from .subagents import BackgroundRun, BranchOutcome, BranchRequest
from .tool_calls import Call, Clearance, Question
from .tool_calls import ToolAnswer as PersonsAnswer
from .validation_errors import describe_validation_error
from .wire import AgentLimits, NewItem, NewResult

SCHEMA_VERSION = 1
MAX_PAST_DECISIONS = 100
"""How many decisions on approvals are remembered, for whoever comes too late."""
MAX_SEEN_IDS = 1000
"""How many message ids are remembered to tell a repeated one."""
MAX_NAMED_TURNS = 1000
"""How many turns are remembered whose senders named them, to tell a repeated name."""


class StatePart(BaseModel):
    """Mutable piece of the state."""

    model_config = ConfigDict(extra="ignore")


class ToolCallState(StatePart):
    """A tool call of the last reply, until all of them have results."""

    call: Call
    op: int
    """Its operation number, given when the reply is applied."""
    result: NewItem | None = None
    held: bool = False
    """It waits until somebody raises the limit of tool calls."""
    released: bool = Field(default=False, exclude_if=operator.not_)
    """It has waited for that."""
    waiting: WaitState | None = None
    """Since when it waits for somebody's approval, if it was to; ``decided`` is what came of it."""
    decided: ApprovalOutcome | None = None
    question: Question | None = None
    """What its tool asks of a person now."""
    expects: WaitState | None = None
    """Since when it waits for an answer: to its question, or in the place of its result."""
    answers: list[PersonsAnswer] = Field(default=[], exclude_if=operator.not_)
    """What it was answered so far."""
    cleared: Clearance | None = Field(default=None, exclude_if=operator.not_)
    """Of one that is run elsewhere: that the worker has looked at it, and what it is made with."""
    returned: NewResult | None = Field(default=None, exclude_if=operator.not_)
    """What it came to there, until hooks have seen it."""
    error_type: str = Field(default="", exclude_if=operator.not_)
    """Class of what it failed with there."""


class TurnAnswer(StatePart):
    """The answer of the turn, kept until the turn is recorded as ended."""

    content: str = ""
    blob: BlobRef | None = None
    finish_reason: FinishReason | Literal["limit", "interrupted"] = "stop"
    called: bool = False
    typed: bool = False
    """``content`` is JSON, of the agent's output type."""


class TurnFailure(StatePart):
    """Why the turn failed: class name of the error, and its message."""

    type: str
    message: str


class Pause(StatePart):
    """Why the run waits for an operator, and since when (ISO 8601)."""

    reason: str
    since: str
    fault: bool = Field(default=False, exclude_if=operator.not_)
    """The engine failed: nothing else is tried before the run is resumed, or cancelled."""


class CompactionState(StatePart):
    """How the conversation is kept short."""

    due: bool = False
    """It is compacted before the next model call."""
    done: int = 0
    """Compactions since the last reply."""
    tighter: int = 0
    """How often the window was halved, because a model takes less than it lets through."""
    behind: str | None = None
    """The head at which a call was refused as too long, until one was answered."""


class PendingBranch(StatePart):
    """A branch of a step, until the step is recorded."""

    asked: BranchRequest
    op: int
    """Its operation number."""
    outcome: BranchOutcome | None = None


class BranchingStep(StatePart):
    """A step whose policy has asked for branches: it is tried again when they have ended."""

    taken: int
    """How many messages of the inbox the step is given: the same each time."""
    branches: list[PendingBranch] = []


class TurnState(StatePart):
    """One turn: from a user's message to the answer."""

    task_id: str
    iteration: int = 0
    """Replies of this turn so far."""
    unasked: int = 0
    """Those of them that no model gave."""
    rejected: int = 0
    """Answers that were not of the agent's output type."""
    at_limit: bool = False
    """No iterations are left; the turn ends when its last calls have results."""
    last_text: str = ""
    last_blob: BlobRef | None = None
    answer: TurnAnswer | None = None
    failure: TurnFailure | None = None
    overrides: dict[str, Any] | None = None
    """What the turn changes of the agent, an ``Override``."""
    usage_before: Usage = Usage()
    """What the run had used when the turn opened, as the three below."""
    cost_before: float | None = None
    worked_before: float = 0.0
    tool_calls_before: int = 0
    raised: Bounds | None = None
    """What a person allowed this turn instead, where that is more."""
    reached: LimitUse | None = None
    """The limit that it was ended or paused at, or told to finish for."""
    forced: bool = False
    """The model was told to finish."""
    denied: bool = False
    """A tool call was refused because no more were allowed."""
    said_by: list[str] = []
    """``hash_name`` of everybody who sent it a message."""
    unanswered: list[str] = Field(default=[], exclude_if=operator.not_)
    """Ids of messages that a limit has left without an answer, the last ones; empty for one without."""


class RunState(StatePart):
    """Everything that a conversation is, besides its transcript."""

    schema_version: int = SCHEMA_VERSION
    context_id: str
    agent: str
    mode: Mode = "run"
    scope: str
    context: dict[str, Any] | None = None
    auth_context: str | None = None
    """On whose behalf it acts, encrypted; or ``auth_ref``. Of the latest message that brought one."""
    auth_ref: str | None = None
    parent: Parent | None = None
    """Of a subagent."""
    is_child: bool = Field(default=False, exclude_if=operator.not_)
    """Temporal confirms that the parent has started it. A client that opens a subagent's run again only repeats who
    that was: what restricts the run holds then, and nothing is opened to it that is its parent's."""
    overrides: dict[str, Any] | None = None
    """What the run changes of the agent, an ``Override``."""
    max_history_events: int | None = None
    idle_timeout: float | None = None
    """Seconds that a session waits for a message before it closes."""
    store_id: str | None = None
    head: str | None = None
    resume: bool = False
    """``head`` is the conversation's last one in the store; the first activity finds it."""
    resend: bool = Field(default=False, exclude_if=operator.not_)
    """The next model call sends what was withheld once more: the run was resumed."""
    op: int = 0
    """Operations so far; the next one's number."""
    turns: int = 0
    turn: TurnState | None = None
    past: list[TurnStatus] = []
    """Turns that have ended, the latest last, as many as fit."""
    inbox: list[NewItem] = []
    """Messages that no model call was given yet."""
    waiting: int = Field(default=0, exclude_if=operator.not_)
    """How many messages there were, when ``waiting_bytes`` was counted."""
    waiting_bytes: int = Field(default=0, exclude_if=operator.not_)
    """Bytes of these as JSON."""
    carry: list[NewItem] = []
    """What the next model call must be given besides the inbox: results, reminders."""
    calls: list[ToolCallState] = []
    background: list[BackgroundRun] = Field(default=[], exclude_if=operator.not_)
    """Subagents in background, the latest last."""
    backgrounds: int = Field(default=0, exclude_if=operator.not_)
    """How many there were."""
    reported: int | None = Field(default=None, exclude_if=lambda given: given is None)
    """Of a run in background: the operation after which it told its parent that it has ended."""
    heard: float | None = Field(default=None, exclude_if=lambda given: given is None)
    """Of a run in background: when its parent was last known to be there, in seconds since 1970."""
    sought: int = Field(default=0, exclude_if=operator.not_)
    """Of a run in background: how often it has looked whether its parent is there."""
    decided: list[DecidedApproval] = []
    """Approvals that were decided, the latest last."""
    standing: list[StandingApproval] = Field(default=[], exclude_if=operator.not_)
    """Approvals of all calls of a tool, the latest last."""
    revoked: list[RevokedApproval] = Field(default=[], exclude_if=operator.not_)
    """Of those that were taken back: what the next call of the model, or the ending, says."""
    seen: dict[str, str] = {}
    """Ids of messages, the latest last, and the turn that each joined or opened."""
    named: list[str] = Field(default=[], exclude_if=operator.not_)
    """Hashes of the ids that senders gave to turns, the latest last."""
    refused: list[str] = []
    limits: AgentLimits = AgentLimits()
    compaction: CompactionState | None = None
    branching: BranchingStep | None = None
    pinned: BlobRef | None = None
    """The list of the tools of the agent's toolsets, as the run took it."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    largest: Bounds | None = None
    """Tokens and cost of the largest model call so far."""
    iterations: int = 0
    """Model calls of all turns."""
    tool_calls: int = 0
    """Tool calls of all turns that were begun."""
    worked: float = 0.0
    """Seconds that the run was at work: neither waiting for a message nor paused."""
    clock: float | None = None
    """Until when that is counted: seconds since 1970."""
    raised: Bounds | None = None
    """What a person allowed the run instead of the agent's limits, where that is more."""
    recorded: bool = False
    """The ending is in the store."""
    interrupt: Literal["stop", "go on"] | None = None
    """Somebody interrupted: what is in flight is to stop, and the turn ends, or goes on with a message."""
    pause: Pause | None = None
    indexed: list[str] | None = None
    """Search attributes that the namespace has, as a worker has said last."""
    noted: bool = Field(default=False, exclude_if=operator.not_)
    """What waits is kept in the memo too, as a worker has said."""
    closed: bool = False
    cancelled: bool = False

    @field_serializer("seen")
    def _dump_seen(self, seen: dict[str, str]) -> list[list[str]]:
        """Temporal sorts the keys of an object, and which id is the oldest would be forgotten on the way."""
        return [[sent, task_id] for sent, task_id in seen.items()]

    @field_validator("seen", mode="before")
    @classmethod
    def _load_seen(cls, raw: Any) -> Any:
        pairs = isinstance(raw, list) and all(isinstance(one, list) and len(one) == 2 for one in raw)
        return {sent: task_id for sent, task_id in raw if isinstance(sent, str)} if pairs else raw


class NewerStateError(InvalidInputError):
    """A newer engine wrote the state. This worker cannot go on with the run; one of the newer engine can."""


def read_state(raw: Any) -> RunState:
    """The state that an earlier execution carried over.

    Raises ``NewerStateError`` for one of a newer engine, and ``InvalidInputError`` for what is no state.
    """
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        raise InvalidInputError(
            "state: not the state of a run",
            hint='Only perdure hands a state on. Start a run with {"agent": "<name>", "message": "<text>"}.',
        )
    if version > SCHEMA_VERSION:
        raise NewerStateError(
            f"the run's state has schema version {version}, this engine reads up to {SCHEMA_VERSION}",
            hint="Run workers of the newer perdure on this task queue.",
        )
    try:
        return RunState.model_validate(raw)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "state", prefix="state")) from None
