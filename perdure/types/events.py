"""What happens in a run, as whoever follows it is told: a closed union of events, numbered per conversation.

    run · turn                                       how the conversation, and a turn of it, stand
    message.injected                                 a user's message has joined the conversation
    message.withheld                                 a model's API refused a part of it: requests go out without
    model.started · delta · completed · retracted    one model call; deltas count until one of the last two says else
    tool.started · progress · completed              one tool call
    approval.requested · reminded · decided · revoked  a call waits for a person
    question.asked · answered                        a call waits for an answer, and who gave it
    step                                             the step policy has changed something before a model call
    branch.started · completed                       the step policy asks another agent
    compacted                                        the conversation was summed up
    limit · error                                    a limit was reached; an attempt failed

Events are kept in the store, beside the transcript, never in Temporal's history. ``seq`` orders those of one
conversation and is what ``run.events(after=…)`` takes. Runs that calls of other agents have begun are numbered together
with the run at the top, so one number says how far somebody has read in all of them. Numbers are missing only where a
``model.completed`` names them in ``replaces``: the deltas of a reply go when the reply is whole.
"""

from __future__ import annotations

import json
import operator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

from .approvals import DecisionState, OnExpiry
from .limits import LimitName, LimitScope
from .messages import BlobRef, Data, FilePart, FinishReason, Usage
from .subagents import PathStep

# ---
# What every event has; the events themselves are in :mod:`.events`.


class EventBase(Data):
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


# ---
# What is told of a call that waits for a person: part of the union in :mod:`.events`.


class ApprovalRequested(EventBase):
    """A call waits for somebody to approve it."""

    type: Literal["approval.requested"] = "approval.requested"
    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are too large for history."""
    hash: str = ""
    """Names the call with these arguments: an approval is sent with it."""
    expires_in: float | None = None
    """Seconds until ``on_expiry`` decides; None waits for as long as it takes."""
    on_expiry: OnExpiry = "deny"


class ApprovalReminded(EventBase):
    """The call still waits, and whoever is to approve it is reminded."""

    type: Literal["approval.reminded"] = "approval.reminded"
    call_id: str
    name: str
    number: int
    """Of the reminder, from 1."""
    expires_in: float | None = None
    """Seconds that are left; None waits for as long as it takes."""


class ApprovalRevoked(EventBase):
    """Calls of a tool wait for approval again (``run.revoke``). Said with the model call or the ending that follows."""

    type: Literal["approval.revoked"] = "approval.revoked"
    name: str
    """Of the tool."""
    by: str | None = None
    revoked_at: str = ""
    """ISO 8601, UTC."""
    approved_by: tuple[str, ...] = ()
    """Whose approvals of all its calls had stood."""


class ApprovalDecided(EventBase):
    """What was decided on a call. Of one that was approved it is said as the tool begins; of another, with its result,
    when all calls of the reply have theirs."""

    type: Literal["approval.decided"] = "approval.decided"
    call_id: str
    name: str
    decision: DecisionState
    by: str | None = None
    """None where nobody decided in time."""
    decided_at: str = ""
    """ISO 8601, UTC."""
    comment: str | None = None
    arguments: dict[str, Any] | None = None
    """What the tool is called with, where that was changed."""
    always: bool = False
    """Later calls of the tool are approved with it."""
    standing: str | None = None
    """When ``by`` had said so, where nobody was asked about this call: ISO 8601, UTC."""


# ---
# Events of branches of a step (``step.branch``).


class BranchStarted(EventBase):
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


class BranchCompleted(EventBase):
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


# ---
# Events of model calls.


Span = tuple[int, int]
"""First and last number of a row of events."""


class ModelStarted(EventBase):
    """A model is asked. Of one model call there may be several: an attempt, or a model of a chain, may fail."""

    type: Literal["model.started"] = "model.started"
    iteration: int = 0
    model: str = ""
    """``"<provider>:<model>"``."""


class ModelDelta(EventBase):
    """More of a reply. It counts until ``model.retracted`` or ``model.completed`` says otherwise."""

    type: Literal["model.delta"] = "model.delta"
    iteration: int = 0
    kind: Literal["text", "thinking", "tool_call"] = "text"
    text: str = ""
    """More text or thinking, or more of a tool call's arguments as raw JSON."""
    offset: int = 0
    """Characters of the same text, thinking or arguments before this."""
    index: int = 0
    """Of a tool call: its place among the calls of the reply."""
    call_id: str = ""
    name: str = ""
    inside: str | None = None
    """Of ``__finish__``, where the output is no object: the argument that has it."""
    partial: Any = None
    """Of a tool call: its arguments as far as they can be read, an object of which fields may be missing; of
    ``__finish__`` the output so far. Read from all deltas of the call so far, by whoever follows; not stored."""


class CallSaid(Data):
    """A tool call of a reply."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are large: they are in the transcript."""


class ModelCompleted(EventBase):
    """The reply is whole and recorded. What it says counts in place of every delta that ``replaces`` names."""

    type: Literal["model.completed"] = "model.completed"
    iteration: int = 0
    model: str = ""
    """As the API names the model that answered; empty where none was asked, and a hook or a step gave the reply."""
    text: str = ""
    """The reply's text; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    calls: tuple[CallSaid, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    cost_usd: float | None = None
    head: str | None = None
    """The transcript's node that ends with the reply."""
    replaces: tuple[Span, ...] = ()
    """Numbers of events that are gone: the only ones that a reader may miss."""


class ModelRetracted(EventBase):
    """What was streamed of a reply does not count: the attempt failed, or its worker was lost."""

    type: Literal["model.retracted"] = "model.retracted"
    iteration: int = 0
    retracts: tuple[Span, ...] = ()
    """Numbers of the deltas that do not count."""
    reason: str = ""
    """Class name of the error, ``WorkerLost``, ``Interrupted`` or ``WorkerStopped``."""


# ---
# Events of calls that wait for an answer.


class QuestionAsked(EventBase):
    """A call waits for an answer: its tool asks something, or a client is to run it (``kind="callback"``).

    Of a callback, ``tool.started`` stands before it. Of one that somebody has to approve first it is said then.
    """

    type: Literal["question.asked"] = "question.asked"
    call_id: str
    name: str
    kind: Literal["question", "callback"] = "question"
    question: str = ""
    """What the tool asks."""
    arguments: dict[str, Any] | None = None
    """Of a callback: what it is called with."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""
    expires_in: float | None = None
    """Seconds until the call ends as an error; None waits for as long as it takes."""


class QuestionAnswered(EventBase):
    """A tool's question was answered: said as the tool runs again. Of a callback ``tool.completed`` says it."""

    type: Literal["question.answered"] = "question.answered"
    call_id: str
    name: str
    by: str | None = None
    answered_at: str = ""
    """ISO 8601, UTC."""
    value: Any = None
    """Plain JSON."""
    error: str | None = None
    """Why there is no answer."""


# ---
# Events of tool calls.


class ToolStarted(EventBase):
    """A tool begins."""

    type: Literal["tool.started"] = "tool.started"
    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are large: they are in the transcript."""
    child_context_id: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Of a call of another agent: the id of its run, which has events of its own."""
    background: bool = Field(default=False, exclude_if=operator.not_)
    """That run goes on in background: the call ends as soon as it has begun."""


class ToolProgress(EventBase):
    """What a tool says of itself while it runs (``ctx.progress``)."""

    type: Literal["tool.progress"] = "tool.progress"
    call_id: str
    name: str
    message: str = ""
    data: Any = None
    """Plain JSON of the author's."""


class ToolCompleted(EventBase):
    """What a tool call came to."""

    type: Literal["tool.completed"] = "tool.completed"
    call_id: str
    name: str
    content: str = ""
    """What the model is told; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    files: tuple[FilePart, ...] = ()
    is_error: bool = False
    answered_by: str | None = None
    """Of a callback: who gave it."""


class RunEvent(EventBase):
    """The conversation was begun, waits, is paused, or has ended."""

    type: Literal["run"] = "run"
    state: Literal["started", "waiting", "paused", "completed", "failed", "cancelled", "terminated", "timed_out"]
    """``waiting`` for the next message; ``paused`` until an operator resumes it: then its model is asked again."""
    agent: str = ""
    reason: str | None = None
    """Why it is paused; who or what ended it."""
    error_type: str | None = None
    """Class name of what it failed with; ``error`` is its message."""
    error: str | None = None


class TurnEvent(EventBase):
    """A turn was begun or has ended.

    A message that arrives as a turn ends extends it: then more events of the turn follow its end, and another end.
    """

    type: Literal["turn"] = "turn"
    state: Literal["started", "completed", "failed", "cancelled"]
    content: str = ""
    """The answer; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    finish_reason: str | None = None
    iterations: int = 0
    usage: Usage = Usage()
    """Tokens of the turn; ``cost_usd`` is their cost."""
    cost_usd: float | None = None
    unanswered: tuple[str, ...] = ()
    """Ids of messages that a limit has left without an answer, as ``Response`` has them."""
    error_type: str | None = None
    error: str | None = None


class MessageInjected(EventBase):
    """A user's message has joined the conversation: the model call that follows is given it."""

    type: Literal["message.injected"] = "message.injected"
    id: str | None = None
    """The sender's id of it."""
    by: str | None = None
    content: str = ""
    """Its text; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    files: tuple[FilePart, ...] = ()


class MessageWithheld(EventBase):
    """A model's API refused a file, a user's message or a tool's result. The reply that follows was given without it,
    and so are later ones; the transcript has it unchanged. ``run.resume()`` sends it once more."""

    type: Literal["message.withheld"] = "message.withheld"
    kind: Literal["file", "message", "result"] = "file"
    """What is withheld: a file of a message or result, or the whole message or result."""
    what: str = ""
    """For people: ``image/png cat.png``, ``message``, ``result of lookup``."""
    id: str | None = None
    """The sender's id of the message."""
    call_id: str | None = None
    """Of a tool's result."""
    reason: str = ""
    """The error's class name and the beginning of its message."""


class StepTaken(EventBase):
    """The step policy has changed something, for the model call that is recorded with it. What it said to the model
    follows as ``message.injected``."""

    type: Literal["step"] = "step"
    iteration: int = 0
    """Of the model call."""
    model: str | None = None
    """The model that is asked instead (``"<provider>:<model>"``; of a chain, the first)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that are other than before; None for one that is taken away."""
    instructions: bool = False
    """Whether the system prompt is another one."""
    tools_added: tuple[str, ...] = ()
    tools_removed: tuple[str, ...] = ()
    kept: tuple[Literal["turn", "run"], ...] = ()
    """For how long what the policy keeps is to hold; all else holds for this call."""
    results: tuple[str, ...] = ()
    """Ids of the calls of whose results the model is told something else."""
    injected: int = 0
    """Messages that the policy has said."""
    edited: bool = False
    """Whether the conversation was rewritten: the transcript begins anew."""
    head_before: str | None = None
    """Then: where the old one ends, which stays in the store."""
    finished: bool = False
    """Whether the policy has given the answer: no model was asked."""


class ConversationCompacted(EventBase):
    """The conversation was summed up: the next model call is given a summary, and the last messages behind it."""

    type: Literal["compacted"] = "compacted"
    messages_before: int = 0
    messages_after: int = 0
    tokens_before: int = 0
    """As a provider counted them, or about so many; as ``tokens_after``."""
    tokens_after: int = 0
    head: str | None = None
    """The transcript's node that the conversation goes on from."""
    head_before: str | None = None
    """Where it ended until now: it stays in the store."""
    model: str = ""
    usage: Usage = Usage()
    """What the summary took; ``cost_usd`` is its cost."""
    cost_usd: float | None = None


class LimitReached(EventBase):
    """A limit was reached: the model is asked for its answer now, or the turn ends, or waits for a person."""

    type: Literal["limit"] = "limit"
    kind: LimitName = "max_iterations"
    scope: LimitScope = "turn"
    """Whose limit it is: of one turn, or of the run, all its turns together."""
    limit: float = 0
    """How much is allowed: calls, tokens, dollars, or seconds of ``wall_time``."""
    used: float | None = None
    """How much of it was used."""


class ErrorEvent(EventBase):
    """An attempt failed."""

    type: Literal["error"] = "error"
    activity: str = ""
    """``perdure.model``, or ``tool.<name>``."""
    error_type: str = ""
    error: str = ""
    final: bool = False
    """Whether it is not tried again."""
    retry_in: float | None = None
    """Seconds from ``at`` until the next attempt, where the provider said so: at most the agent's ``retry_wait``."""
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

_event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
_ENVELOPE_FIELDS = {"context_id", "task_id", "path", "seq", "type", "replaces", "retracts", "partial"}
"""What the store keeps apart, or makes."""


def encode_event_body(event: Event) -> bytes:
    """What is stored of ``event`` beside its number, type, conversation and turn: JSON, defaults left out."""
    try:
        # The serialiser itself: a third of the time that a model's method takes, and this is done for every event.
        return event.__pydantic_serializer__.to_json(event, exclude_defaults=True, exclude=_ENVELOPE_FIELDS)
    except ValueError:  # a lone surrogate, in somebody else's error message for instance
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
    """The event again; None for a type that only a newer perdure knows. ``spans``, ``path``: see ``EventRow``."""
    if type not in EVENT_TYPES:
        return None
    plain = json.loads(body) | {"context_id": context_id, "seq": seq, "task_id": task_id, "type": type}
    if path:
        plain["path"] = path
    if spans:
        plain["replaces" if type == "model.completed" else "retracts"] = spans
    return _event_adapter.validate_python(plain)


def build_worker_lost_retraction(delta: Event, at: str) -> ModelRetracted:
    """What a store says of open deltas, ``delta`` one of them, when somebody else takes the call or the run over."""
    iteration = delta.iteration if isinstance(delta, ModelDelta) else 0
    return ModelRetracted(task_id=delta.task_id, at=at, attempt=delta.attempt, iteration=iteration, reason="WorkerLost")


EVENT_TYPES = frozenset(kind.model_fields["type"].default for kind in get_args(get_args(Event)[0]))
"""Every ``type`` of the union."""
