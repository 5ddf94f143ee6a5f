"""The state of a conversation: one object, carried as a whole through continue-as-new.

It holds references and counters, never the conversation itself. ``schema_version`` is the version of its format; an
engine reads every older version (:func:`read_state`) and refuses a newer one.
"""

import operator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, field_validator

from ..errors import InvalidInputError
from .approvals import ApprovalOutcome, DecidedApproval, RevokedApproval, StandingApproval, WaitPeriod
from .client_tools import ClientTools
from .interface import Mode, OperatorPause, Parent, TurnStatus
from .limits import Bounds, LimitUse
from .messages import NO_USAGE, BlobRef, FinishReason, Usage
from .plain_json import is_none
from .schema_version import SCHEMA_VERSION, check_schema_version
from .subagents import BackgroundRun, BranchOutcome, BranchRequest
from .tool_calls import Call, Clearance, Question, ToolAnswer
from .validation_errors import describe_validation_error
from .wire import AgentLimits, NewItem, NewResult, TurnFailure

MAX_SEEN_IDS = 1000
"""Most message ids that are kept to recognise a repeated message."""
MAX_NAMED_TURNS = 1000
"""Most turns named by their senders that are kept to recognise a repeated name."""


def _is_first(version: int) -> bool:
    return version == 1


class StatePart(BaseModel):
    """Mutable part of the state."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class ToolCallState(StatePart):
    """A tool call of the last reply, until all its calls have results."""

    call: Call
    op: int
    """Its operation number, assigned when the reply is applied."""
    result: NewItem | None = None
    held: bool = False
    """It waits until the limit of tool calls is raised."""
    released: bool = Field(default=False, exclude_if=operator.not_)
    """The limit was raised for it."""
    approval_wait: WaitPeriod | None = None
    """Since when it waits for approval, if it needs approval; ``approval`` is the outcome."""
    approval: ApprovalOutcome | None = None
    question: Question | None = None
    """The question of its tool that is pending now."""
    answer_wait: WaitPeriod | None = None
    """Since when it waits for an answer: to its question, or in place of its result."""
    answers: list[ToolAnswer] = Field(default=[], exclude_if=operator.not_)
    """Its answers so far."""
    clearance: Clearance | None = Field(default=None, exclude_if=operator.not_)
    """For an external call: the worker has checked it; with changed arguments."""
    external_result: NewResult | None = Field(default=None, exclude_if=operator.not_)
    """Its external result, until hooks have seen it."""
    error_type: str = Field(default="", exclude_if=operator.not_)
    """Class of the error that it failed with externally."""


class TurnAnswer(StatePart):
    """The answer of the turn, kept until the turn is recorded as ended."""

    content: str = ""
    blob: BlobRef | None = None
    finish_reason: FinishReason | Literal["limit", "interrupted"] = "stop"
    called: bool = False
    typed: bool = False
    """``content`` is JSON of the agent's output type."""


class Pause(StatePart):
    """Why the run waits for an operator, and since when (ISO 8601)."""

    reason: str
    since: str
    fault: bool = Field(default=False, exclude_if=operator.not_)
    """The engine failed: nothing is tried until the run is resumed or cancelled."""


class RequestedPause(StatePart):
    """A pause that a client has asked for: from when what is in flight has ended until it is resumed."""

    asked: OperatorPause
    recorded: bool = False
    """The run has paused, and the event log says so."""
    resumed: OperatorPause | None = None
    """The run goes on; the event log is told first if the pause was recorded."""


class CompactionState(StatePart):
    """State of the compaction of the conversation."""

    is_due: bool = False
    """The conversation is compacted before the next model call."""
    summaries: int = 0
    """Compactions since the last reply."""
    window_halvings: int = 0
    """How often the window was halved because a model accepts less than it."""
    refused_head: str | None = None
    """The head at which a call was refused as too long, until a call succeeds."""
    warned: bool = Field(default=False, exclude_if=operator.not_)
    """A summary has reported that the conversation remains too long for its settings."""


class PendingBranch(StatePart):
    """A branch of a step, until the step is recorded."""

    request: BranchRequest
    op: int
    """Its operation number."""
    outcome: BranchOutcome | None = None


class BranchingStep(StatePart):
    """A step whose policy waits for branches: it is tried again when they have ended."""

    taken: int
    """Number of messages of the inbox that the step gets: the same for each try."""
    branches: list[PendingBranch] = []


class TurnState(StatePart):
    """One turn: from a user's message to the answer."""

    task_id: str
    iteration: int = 0
    """Replies of this turn so far."""
    replies_without_model: int = 0
    """Replies of the turn that no model gave."""
    rejected: int = 0
    """Answers that did not fit the agent's output type."""
    cut: int = Field(default=0, exclude_if=operator.not_)
    """Its last replies, without one in between that was whole, that the output limit cut before they had an answer."""
    at_limit: bool = False
    """No iterations remain; the turn ends when its last calls have results."""
    last_text: str = ""
    last_blob: BlobRef | None = None
    answer: TurnAnswer | None = None
    failure: TurnFailure | None = None
    overrides: dict[str, Any] | None = None
    """Changes of the agent for the turn, an ``Override``."""
    caller_overrides: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    """The same of its callers, a ``CallerOverride``."""
    is_external: bool = Field(default=False, exclude_if=operator.not_)
    """A caller of a service has sent it a message."""
    client_tools: ClientTools | None = Field(default=None, exclude_if=is_none)
    """Tools that the turn's client has declared, for its further model calls."""
    usage_before: Usage = NO_USAGE
    """Usage of the run when the turn opened; the next three likewise."""
    cost_before: float | None = None
    worked_before: float = 0.0
    tool_calls_before: int = 0
    raised: Bounds | None = None
    """Limits that an operator raised for this turn."""
    reached: LimitUse | None = None
    """The limit at which the turn ended or paused, or for which the model was told to finish."""
    forced: bool = False
    """The model was told to finish."""
    denied: bool = False
    """A tool call was refused because no more were allowed."""
    said_by: list[str] = []
    """``hash_name`` of everyone whose input it took: see ``record_requester``."""
    unanswered: list[str] = Field(default=[], exclude_if=operator.not_)
    """Ids of the last messages that have no answer because of a limit; empty for a message without an id."""


class UncollectedActivity(StatePart):
    """An activity without an output that is applied, which may have recorded effects."""

    activity: str
    """Its type."""
    input: dict[str, Any]
    taken: int = 0
    """Of a model call: how many messages of the inbox are among its input."""


class RunState(StatePart):
    """The whole state of a conversation, except its transcript."""

    schema_version: int = SCHEMA_VERSION
    rules: int = Field(default=1, exclude_if=_is_first)
    """The version of the loop's rules by which the execution decides: ``loop.RULES`` of the engine that began it. It
    stays, whichever engine continues it."""
    context_id: str
    agent: str
    mode: Mode = "run"
    scope: str
    context: dict[str, Any] | None = None
    auth_context: str | None = None
    """Identity on whose behalf it acts, encrypted; or ``auth_ref``. From the latest message that had one."""
    auth_ref: str | None = None
    parent: Parent | None = None
    """For a subagent's run."""
    tenant: str | None = Field(default=None, exclude_if=is_none)
    """The tenant and the user whose run it is."""
    user: str | None = Field(default=None, exclude_if=is_none)
    caller: str | None = Field(default=None, exclude_if=is_none)
    """Who has sent the last message that a step has taken."""
    asked_by: list[str] = Field(default=[], exclude_if=operator.not_)
    """``hash_name`` of the people whose input counts in every turn: who gave the run its override, context or
    history."""
    is_child: bool = Field(default=False, exclude_if=operator.not_)
    """Temporal confirms that the parent has started the run. If a client opens a subagent's run again, it only repeats
    who the parent was: then the restrictions of the run apply, and it gets no access to data of the parent."""
    overrides: dict[str, Any] | None = None
    """Changes of the agent for the run, an ``Override``."""
    caller_overrides: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    """The same of the caller who has started it, a ``CallerOverride``."""
    max_history_events: int | None = None
    idle_timeout: float | None = None
    """Seconds that a session waits for a message before it closes."""
    store_id: str | None = None
    head: str | None = None
    resume: bool = False
    """``head`` is the conversation's last one in the store; the first activity looks it up."""
    resend: bool = Field(default=False, exclude_if=operator.not_)
    """The next model call sends withheld content once more: the run was resumed."""
    op: int = 0
    """Number of operations so far; the number of the next one."""
    turns: int = 0
    turn: TurnState | None = None
    past_turns: list[TurnStatus] = []
    """Ended turns, the latest last, as many as fit."""
    inbox: list[NewItem] = []
    """Messages that no model call had yet."""
    measured_inbox_count: int = Field(default=0, exclude_if=operator.not_)
    """Number of messages when ``measured_inbox_bytes`` was counted."""
    measured_inbox_bytes: int = Field(default=0, exclude_if=operator.not_)
    """Their bytes as JSON."""
    unsent: list[NewItem] = []
    """Further items for the next model call: results, reminders."""
    calls: list[ToolCallState] = []
    background_runs: list[BackgroundRun] = Field(default=[], exclude_if=operator.not_)
    """Subagents in background, the latest last."""
    background_count: int = Field(default=0, exclude_if=operator.not_)
    """Number of subagents in background so far."""
    reported: int | None = Field(default=None, exclude_if=is_none)
    """For a run in background: the operation after which it notified its parent of its end."""
    parent_seen_at: float | None = Field(default=None, exclude_if=is_none)
    """For a run in background: when its parent was last known to exist, in seconds since 1970."""
    parent_checks: int = Field(default=0, exclude_if=operator.not_)
    """For a run in background: how often it has checked whether its parent exists."""
    decided: list[DecidedApproval] = []
    """Decided approvals, the latest last."""
    standing: list[StandingApproval] = Field(default=[], exclude_if=operator.not_)
    """Standing approvals, the latest last."""
    revoked: list[RevokedApproval] = Field(default=[], exclude_if=operator.not_)
    """Revoked standing approvals that the next model call, or the ending, reports."""
    turn_by_message_id: dict[str, str] = {}
    """Ids of messages, the latest last, with the turn that each joined or opened."""
    turn_by_message_id_bytes: int = Field(default=0, exclude_if=operator.not_)
    """Bytes of ``turn_by_message_id`` as JSON; 0 if not measured, by an older engine."""
    used_task_hashes: list[str] = Field(default=[], exclude_if=operator.not_)
    """Hashes of the ids of turns that senders named, the latest last."""
    refused: list[str] = []
    limits: AgentLimits = AgentLimits.model_construct()
    compaction: CompactionState | None = None
    branching: BranchingStep | None = None
    pinned: BlobRef | None = None
    """The pinned list of the tools of the agent's toolsets."""
    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    largest: Bounds | None = None
    """Tokens and cost of the largest model call so far."""
    iterations: int = 0
    """Model calls of all turns."""
    tool_calls: int = 0
    """Started tool calls of all turns."""
    worked: float = 0.0
    """Seconds at work: neither waiting for a message nor paused."""
    worked_until: float | None = None
    """Time up to which ``worked`` counts, in seconds since 1970."""
    raised: Bounds | None = None
    """Limits that an operator raised for the run."""
    recorded: bool = False
    """The ending is recorded in the store."""
    interrupt: Literal["stop", "go on"] | None = None
    """An interrupt was requested: running work is stopped, and the turn ends, or continues with a message."""
    pause: Pause | None = None
    requested_pause: RequestedPause | None = Field(default=None, exclude_if=is_none)
    uncollected: list[UncollectedActivity] = Field(default=[], exclude_if=operator.not_)
    """What the run has to collect before it goes on or ends; it paused because that could not be read or applied."""
    search_attributes: list[str] | None = None
    """Search attributes of the namespace, as last reported by a worker."""
    memo_is_written: bool = Field(default=False, exclude_if=operator.not_)
    """The pending calls are kept in the memo, too, as reported by a worker."""
    closed: bool = False
    cancelled: bool = False

    @property
    def is_pause_requested(self) -> bool:
        """Whether a client has asked for a pause that was not resumed, of a run that has not failed: no work begins."""
        has_failed = self.turn is not None and self.turn.failure is not None
        return self.requested_pause is not None and self.requested_pause.resumed is None and not has_failed

    @field_serializer("turn_by_message_id")
    def _dump_message_ids(self, seen: dict[str, str]) -> list[list[str]]:
        """Dump as pairs: Temporal sorts the keys of an object, and the order of the ids would be lost."""
        return [[sent, task_id] for sent, task_id in seen.items()]

    @field_validator("turn_by_message_id", mode="before")
    @classmethod
    def _load_message_ids(cls, raw: Any) -> Any:
        is_pairs = isinstance(raw, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in raw)
        return {sent: task_id for sent, task_id in raw if isinstance(sent, str)} if is_pairs else raw


def read_state(raw: Any) -> RunState:
    """Parse the state that an earlier execution carried over.

    Raises ``NewerStateError`` for the state of a newer engine, and ``InvalidInputError`` for anything else that is not
    a state.
    """
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        hint = 'Only perdure passes a state on. Start a run with {"agent": "<name>", "message": "<text>"}.'
        raise InvalidInputError("state: not the state of a run", hint=hint)
    check_schema_version(raw, "the run's state")
    try:
        return RunState.model_validate({**raw, "schema_version": SCHEMA_VERSION})
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "state", prefix="state")) from None
