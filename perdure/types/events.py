"""The events of a run: a closed union, numbered per conversation.

    run · turn                                       the state of the conversation, and of a turn of it
    message.injected                                 a user's message has joined the conversation
    message.withheld                                 a model's API refused a part of it: requests omit it
    model.started · delta · completed · retracted    one model call; deltas count until one of the last two says else
    tool.started · progress · completed              one tool call
    approval.requested · reminded · decided · revoked  a call waits for a decision
    question.asked · answered                        a call waits for an answer, and who gave it
    step                                             the step policy has changed something before a model call
    branch.started · completed                       the step policy calls another agent
    compacted                                        the conversation was summarised
    limit · error                                    a limit was reached; an attempt failed

Events are kept in the store, beside the transcript, never in Temporal's history. ``seq`` orders the events of one
conversation, and ``run.events(after=…)`` takes it. Runs started by calls of other agents share the numbers of the run
at the top, so that one number is a reader's position in all of them. Numbers are missing only where a
``model.completed`` names them in ``replaces``: the deltas of a reply are deleted when the reply is complete.
"""

import json
import operator
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter

from .approvals import Consent, DecisionState, OnExpiry
from .limits import LimitName, LimitScope
from .messages import NO_USAGE, BlobRef, Data, FilePart, FinishReason, Usage
from .plain_json import is_none
from .subagents import PathStep


class EventBase(Data):
    """Fields of every event."""

    context_id: str = ""
    """Id of the conversation."""
    task_id: str | None = None
    """Id of the turn."""
    path: tuple[PathStep, ...] = Field(default=(), exclude_if=operator.not_)
    """For a subagent's event: the calls that lead from the followed run down to the subagent. Empty, and left out, for
    the events of the run itself."""
    seq: int = 0
    """Its number in the conversation and the subagents it calls, from 1; 0 for an event that is not recorded yet."""
    at: str = ""
    """When it happened: ISO 8601, UTC."""
    attempt: int = 1
    """Attempt of the activity that reports the event: more than 1 if an earlier attempt failed or its worker was
    lost."""


# ---
# Calls that wait for approval.


class ApprovalRequested(EventBase):
    """A call waits for approval."""

    type: Literal["approval.requested"] = "approval.requested"
    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None if they are too large for history."""
    summary: str = ""
    """The call in one line, for people: by the template of its tool, or its name and first arguments."""
    amount: float | None = Field(default=None, exclude_if=is_none)
    """The number of its arguments by which an inbox sorts calls."""
    hash: str = ""
    """Identifies the call with these arguments: an approval is sent with it."""
    expires_in: float | None = None
    """Seconds until ``on_expiry`` decides; None means no expiry."""
    on_expiry: OnExpiry = "deny"


class ApprovalReminded(EventBase):
    """The call still waits for approval; the approver is reminded."""

    type: Literal["approval.reminded"] = "approval.reminded"
    call_id: str
    name: str
    number: int
    """Number of the reminder, from 1."""
    expires_in: float | None = None
    """Seconds until it expires; None means no expiry."""


class ApprovalRevoked(EventBase):
    """Calls of a tool wait for approval again (``run.revoke``). Recorded with the next model call or the run's end."""

    type: Literal["approval.revoked"] = "approval.revoked"
    name: str
    """Name of the tool."""
    by: str | None = None
    revoked_at: str = ""
    """ISO 8601, UTC."""
    approved_by: tuple[str, ...] = ()
    """The approvers whose standing approvals were revoked."""


class ApprovalDecided(EventBase):
    """A call was approved or denied, or its request expired. For an approved call it is recorded when the tool starts;
    for another, with its result, when all calls of the reply have results."""

    type: Literal["approval.decided"] = "approval.decided"
    call_id: str
    name: str
    decision: DecisionState
    by: str | None = None
    """None if the request expired."""
    decided_at: str = ""
    """ISO 8601, UTC."""
    comment: str | None = None
    arguments: dict[str, Any] | None = None
    """The arguments of the tool, if the approver changed them."""
    always: bool = False
    """Later calls of the tool are approved, too."""
    standing: str | None = None
    """If a standing approval approved the call: when ``by`` gave it (ISO 8601, UTC)."""


# ---
# Events of branches of a step (``step.branch``).


class BranchStarted(EventBase):
    """The step policy calls another agent and waits for its answer; the run of that agent has events of its own."""

    type: Literal["branch.started"] = "branch.started"
    iteration: int = 0
    """Number of the model call that the step precedes."""
    agent: str = ""
    message: str = ""
    """The message after the conversation; empty if it is in ``blob``, or there is none."""
    blob: BlobRef | None = None
    child_context_id: str = ""
    """Id of the branch's run."""


class BranchCompleted(EventBase):
    """A branch has ended. Recorded when all branches that the policy waits for have ended and the step is tried again;
    not recorded for a step that is stopped before (interrupted, cancelled, at a limit)."""

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


# ---
# Events of model calls.


Span = tuple[int, int]
"""First and last number of consecutive events."""


class ModelStarted(EventBase):
    """A model is called. One model call may have several of these events: an attempt, or a model of a chain, may
    fail."""

    type: Literal["model.started"] = "model.started"
    iteration: int = 0
    model: str = ""
    """``"<provider>:<model>"``."""
    left_out: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Names of tools that the model is not offered: client tools whose names the agent's tools have, tools that
    a toolset has wrong, and tools that the model's API would refuse; the worker's log has the reasons."""


class ModelDelta(EventBase):
    """A piece of a reply. It counts until ``model.retracted`` or ``model.completed`` says otherwise."""

    type: Literal["model.delta"] = "model.delta"
    iteration: int = 0
    kind: Literal["text", "thinking", "tool_call"] = "text"
    text: str = ""
    """The piece: text, thinking, or a tool call's arguments as raw JSON."""
    offset: int = 0
    """Characters of the same text, thinking or arguments before this piece."""
    index: int = 0
    """For a tool call: its position among the calls of the reply."""
    call_id: str = ""
    name: str = ""
    inside: str | None = None
    """For ``__finish__``, if the output is not an object: name of the argument that holds it."""
    partial: Any = None
    """For a tool call: its arguments as far as they can be parsed, an object in which fields may be missing; for
    ``__finish__`` the output so far. The reader of the events computes it from all deltas of the call so far, above
    10,000 characters as often as they have grown by a hundredth; it is not stored."""


class CallSaid(Data):
    """A tool call of a reply."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are large: they are in the transcript."""


class ModelCompleted(EventBase):
    """The reply is complete and recorded. It replaces every delta that ``replaces`` names."""

    type: Literal["model.completed"] = "model.completed"
    iteration: int = 0
    model: str = ""
    """The model that answered, as named by the API; empty if no model was called and a hook or a step gave the
    reply."""
    text: str = ""
    """The reply's text; empty if it is in ``blob``."""
    blob: BlobRef | None = None
    calls: tuple[CallSaid, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    head: str | None = None
    """The transcript node that ends with the reply."""
    replaces: tuple[Span, ...] = ()
    """Numbers of deleted events: the only numbers that a reader may miss."""


class ModelRetracted(EventBase):
    """The streamed pieces of a reply do not count: the attempt failed, or its worker was lost."""

    type: Literal["model.retracted"] = "model.retracted"
    iteration: int = 0
    retracts: tuple[Span, ...] = ()
    """Numbers of the deltas that do not count."""
    reason: str = ""
    """Class name of the error, ``WorkerLost``, ``Interrupted`` or ``WorkerStopped``."""


# ---
# Events of calls that wait for an answer.


class QuestionAsked(EventBase):
    """A call waits for an answer: its tool asks something, or a client runs the call (``kind="callback"``).

    For a callback, ``tool.started`` precedes it. For a call that needs approval, it follows the approval.
    """

    type: Literal["question.asked"] = "question.asked"
    call_id: str
    name: str
    kind: Literal["question", "callback"] = "question"
    question: str = ""
    """The question of the tool."""
    arguments: dict[str, Any] | None = None
    """For a callback: its arguments."""
    summary: str = ""
    """The question, or the call of a callback, in one line."""
    amount: float | None = Field(default=None, exclude_if=is_none)
    """As of :class:`ApprovalRequested`."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None accepts any value."""
    consent: Consent | None = Field(default=None, exclude_if=is_none)
    """The question is answered by a sign-in at an MCP server."""
    expires_in: float | None = None
    """Seconds until the call ends as an error; None means no expiry."""
    hash: str = ""
    """Identifies the question: an answer may be sent with it. Empty in events of older workers."""


class QuestionAnswered(EventBase):
    """A tool's question was answered: recorded when the tool runs again. For a callback, ``tool.completed`` reports the
    answer."""

    type: Literal["question.answered"] = "question.answered"
    call_id: str
    name: str
    by: str | None = None
    answered_at: str = ""
    """ISO 8601, UTC."""
    value: Any = None
    """Plain JSON."""
    error: str | None = None
    """Why the question was not answered."""


# ---
# Events of tool calls.


class ToolStarted(EventBase):
    """A tool call starts."""

    type: Literal["tool.started"] = "tool.started"
    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are large: they are in the transcript."""
    child_context_id: str | None = Field(default=None, exclude_if=is_none)
    """For a call of another agent: the id of its run, which has events of its own."""
    background: bool = Field(default=False, exclude_if=operator.not_)
    """That run continues in background: the call ends as soon as the run has started."""


class ToolProgress(EventBase):
    """A report of a running tool (``ctx.progress``)."""

    type: Literal["tool.progress"] = "tool.progress"
    call_id: str
    name: str
    message: str = ""
    data: Any = None
    """Plain JSON from the author's code."""


class ToolCompleted(EventBase):
    """A tool call has ended."""

    type: Literal["tool.completed"] = "tool.completed"
    call_id: str
    name: str
    content: str = ""
    """The result for the model; empty if it is in ``blob``."""
    blob: BlobRef | None = None
    files: tuple[FilePart, ...] = ()
    is_error: bool = False
    answered_by: str | None = None
    """For a callback: who gave the result; empty if unknown."""


class RunEvent(EventBase):
    """The conversation has started, waits, is paused, or has ended."""

    type: Literal["run"] = "run"
    state: Literal[
        "started", "idle", "held_up", "recovered", "paused", "resumed",
        "completed", "failed", "cancelled", "terminated", "timed_out",
    ]  # fmt: skip
    """``idle`` until the next message; ``paused`` until an operator resumes it. ``resumed`` follows a pause that a
    client asked for, and ``idle`` follows it between two turns; after any other pause, the next event is that of the
    step that is tried again. A turn that ends while its session is paused is followed by another ``paused``.
    ``held_up``: three attempts of one call have failed in a row, and more follow; ``recovered`` once that call has an
    outcome. A run that ends, or stops that call, does not recover first."""
    agent: str = ""
    reason: str | None = None
    """Why it is paused; who or what ended it."""
    by: str | None = Field(default=None, exclude_if=is_none)
    """Who paused or resumed it."""
    failing_call: str | None = Field(default=None, exclude_if=is_none)
    """What holds it up, or did: the id of a tool call, or the type of the activity, as in ``error`` events."""
    error_type: str | None = None
    """Class name of what it failed with, or of the last error of what holds it up; ``error`` is its message."""
    error: str | None = None


class TurnEvent(EventBase):
    """A turn has started or ended.

    A message that arrives as a turn ends extends it: then more events of the turn follow its end, and another end.
    """

    type: Literal["turn"] = "turn"
    state: Literal["started", "completed", "failed", "cancelled"]
    content: str = ""
    """The answer; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    finish_reason: str | None = None
    iterations: int = 0
    usage: Usage = NO_USAGE
    """Tokens of the turn; ``cost_usd`` is their cost."""
    cost_usd: float | None = None
    unanswered: tuple[str, ...] = ()
    """Ids of messages that have no answer because of a limit, as in ``Response``."""
    error_type: str | None = None
    error: str | None = None


class MessageInjected(EventBase):
    """A user's message has joined the conversation: the next model call includes it."""

    type: Literal["message.injected"] = "message.injected"
    id: str | None = None
    """The sender's id of the message."""
    by: str | None = None
    content: str = ""
    """Its text; empty if it is in ``blob``."""
    blob: BlobRef | None = None
    files: tuple[FilePart, ...] = ()


class MessageWithheld(EventBase):
    """A model's API refused a file, a user's message or a tool's result. The following reply was given without it, and
    so are later ones; the transcript has it unchanged. ``run.resume()`` sends it once more."""

    type: Literal["message.withheld"] = "message.withheld"
    kind: Literal["file", "message", "result"] = "file"
    """What is withheld: a file of a message or result, or the whole message or result."""
    what: str = ""
    """For people: ``image/png cat.png``, ``message``, ``result of lookup``."""
    id: str | None = None
    """The sender's id of the message."""
    call_id: str | None = None
    """For a tool's result."""
    reason: str = ""
    """The error's class name and the beginning of its message."""


class StepTaken(EventBase):
    """The step policy has changed something for the model call that is recorded with it. Its messages to the model
    follow as ``message.injected``."""

    type: Literal["step"] = "step"
    iteration: int = 0
    """Number of the model call."""
    model: str | None = None
    """The model that is called instead (``"<provider>:<model>"``; the first of a chain)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Changed settings; None for a setting that is removed."""
    instructions: bool = False
    """Whether the system prompt is changed."""
    tools_added: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()
    kept: tuple[Literal["turn", "run"], ...] = ()
    """How long the changes that the policy keeps apply; all others apply to this call."""
    results: tuple[str, ...] = ()
    """Ids of the calls whose results are changed for the model."""
    injected: int = 0
    """Number of messages from the policy."""
    edited: bool = False
    """Whether the conversation was rewritten: the transcript starts again."""
    head_before: str | None = None
    """If so: the head of the old conversation, which stays in the store."""
    finished: bool = False
    """Whether the policy gave the answer: no model was called."""


class ConversationCompacted(EventBase):
    """The conversation was summarised: the next model call gets a summary, followed by the last messages."""

    type: Literal["compacted"] = "compacted"
    messages_before: int = 0
    messages_after: int = 0
    tokens_before: int = 0
    """Counted by a provider, or estimated; also ``tokens_after``."""
    tokens_after: int = 0
    head: str | None = None
    """The transcript node from which the conversation continues."""
    head_before: str | None = None
    """The head before; it stays in the store."""
    warning: str | None = Field(default=None, exclude_if=is_none)
    """Why the next summary is due soon: what stays is longer than the agent's ``summarise(at=…)``. Once in a run."""
    model: str = ""
    usage: Usage = NO_USAGE
    """Tokens of the summary; ``cost_usd`` is its cost."""
    cost_usd: float | None = None


class LimitReached(EventBase):
    """A limit was reached: the model is asked for its answer now, or the turn ends, or the run waits for an
    operator."""

    type: Literal["limit"] = "limit"
    kind: LimitName = "max_iterations"
    scope: LimitScope = "turn"
    """Of one turn, or of the run with all its turns."""
    limit: float = 0
    """The limit: calls, tokens, dollars, or seconds of ``wall_time``."""
    used: float | None = None
    """How much was used."""


class ErrorEvent(EventBase):
    """An attempt failed."""

    type: Literal["error"] = "error"
    activity: str = ""
    """The activity's type: ``tool.<name>``, ``perdure.model``, or another of the run's own."""
    error_type: str = ""
    error: str = ""
    source: str = Field(default="", exclude_if=operator.not_)
    """What failed: the model, ``"<provider>:<model>"``, or the tool's name. Empty for the engine's own work, and for
    code of authors that is not a tool."""
    status: int | None = Field(default=None, exclude_if=is_none)
    """HTTP status of the provider's answer."""
    fallback: str | None = Field(default=None, exclude_if=is_none)
    """The model of the chain that is called instead, in the same attempt."""
    final: bool = False
    """Whether no further attempt follows."""
    retry_in: float | None = None
    """Seconds from ``at`` until the next attempt: those that the provider gave, at most the agent's ``retry_wait``, or
    Temporal's, which grow with each failure. None if none follows, or the same call is made with a shorter
    conversation."""
    call_id: str | None = None


Event = Annotated[
    RunEvent
    | TurnEvent
    | MessageInjected
    | MessageWithheld
    | ModelStarted
    | ModelDelta
    | ModelCompleted
    | ModelRetracted
    | ToolStarted
    | ToolProgress
    | ToolCompleted
    | ApprovalRequested
    | ApprovalReminded
    | ApprovalRevoked
    | ApprovalDecided
    | QuestionAsked
    | QuestionAnswered
    | StepTaken
    | BranchStarted
    | BranchCompleted
    | ConversationCompacted
    | LimitReached
    | ErrorEvent,
    Field(discriminator="type"),
]

event_adapter: TypeAdapter[Event] = TypeAdapter(Event, config=ConfigDict(defer_build=True))
"""Validates an event of any type."""
_ENVELOPE_FIELDS = {"context_id", "task_id", "path", "seq", "type", "replaces", "retracts", "partial"}
"""Fields that the store keeps in columns, or that are computed."""


def encode_event_body(event: Event) -> bytes:
    """Encode what is stored of ``event`` beside its number, type, conversation and turn: JSON, defaults left out."""
    try:
        # The serialiser itself: a third of the time that a model's method takes, and this is done for every event.
        return event.__pydantic_serializer__.to_json(event, exclude_defaults=True, exclude=_ENVELOPE_FIELDS)
    except ValueError:  # a lone surrogate, for instance in an error message of a library
        return json.dumps(event.model_dump(mode="json", exclude_defaults=True, exclude=_ENVELOPE_FIELDS)).encode()


def decode_event(
    context_id: str,
    seq: int,
    task_id: str | None,
    type: str,
    body: bytes,
    spans: tuple[Span, ...] = (),
    path: tuple[PathStep, ...] = (),
) -> Event | None:
    """Decode an event; None for a type that only a newer perdure knows. ``spans``, ``path``: see ``EventRow``."""
    if type not in EVENT_TYPES:
        return None
    plain = json.loads(body) | {"context_id": context_id, "seq": seq, "task_id": task_id, "type": type}
    if path:
        plain["path"] = path
    if spans:
        plain["replaces" if type == "model.completed" else "retracts"] = spans
    return event_adapter.validate_python(plain)


def build_worker_lost_retraction(delta: Event, at: str) -> ModelRetracted:
    """Build the retraction that a store writes for open deltas when another worker takes the call or the run over.
    ``delta`` is one of them."""
    iteration = delta.iteration if isinstance(delta, ModelDelta) else 0
    return ModelRetracted(task_id=delta.task_id, at=at, attempt=delta.attempt, iteration=iteration, reason="WorkerLost")


EVENT_TYPES = frozenset(kind.model_fields["type"].default for kind in get_args(get_args(Event)[0]))
"""Every ``type`` of the union."""
