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
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

from .approval_events import ApprovalDecided as ApprovalDecided
from .approval_events import ApprovalReminded as ApprovalReminded
from .approval_events import ApprovalRequested as ApprovalRequested
from .approval_events import ApprovalRevoked as ApprovalRevoked
from .bounds import LimitName, LimitScope
from .branch_events import BranchCompleted as BranchCompleted
from .branch_events import BranchStarted as BranchStarted
from .event import Event as _Event
from .lineage import PathStep
from .messages import BlobRef, FilePart, Usage
from .model_events import CallSaid as CallSaid
from .model_events import ModelCompleted as ModelCompleted
from .model_events import ModelDelta as ModelDelta
from .model_events import ModelRetracted as ModelRetracted
from .model_events import ModelStarted as ModelStarted
from .model_events import Span as Span
from .question_events import QuestionAnswered as QuestionAnswered
from .question_events import QuestionAsked as QuestionAsked
from .tool_events import ToolCompleted as ToolCompleted
from .tool_events import ToolProgress as ToolProgress
from .tool_events import ToolStarted as ToolStarted


class RunEvent(_Event):
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


class TurnEvent(_Event):
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


class MessageInjected(_Event):
    """A user's message has joined the conversation: the model call that follows is given it."""

    type: Literal["message.injected"] = "message.injected"
    id: str | None = None
    """The sender's id of it."""
    by: str | None = None
    content: str = ""
    """Its text; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    files: tuple[FilePart, ...] = ()


class MessageWithheld(_Event):
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


class StepTaken(_Event):
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


class ConversationCompacted(_Event):
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


class LimitReached(_Event):
    """A limit was reached: the model is asked for its answer now, or the turn ends, or waits for a person."""

    type: Literal["limit"] = "limit"
    kind: LimitName = "max_iterations"
    scope: LimitScope = "turn"
    """Whose limit it is: of one turn, or of the run, all its turns together."""
    limit: float = 0
    """How much is allowed: calls, tokens, dollars, or seconds of ``wall_time``."""
    used: float | None = None
    """How much of it was used."""


class ErrorEvent(_Event):
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

_events: TypeAdapter[Event] = TypeAdapter(Event)
_OWN = {"context_id", "task_id", "path", "seq", "type", "replaces", "retracts", "partial"}
"""What the store keeps apart, or makes."""


def event_body(event: Event) -> bytes:
    """What is stored of ``event`` beside its number, type, conversation and turn: JSON, defaults left out."""
    try:
        # The serialiser itself: a third of the time that a model's method takes, and this is done for every event.
        return event.__pydantic_serializer__.to_json(event, exclude_defaults=True, exclude=_OWN)
    except ValueError:  # a lone surrogate, in somebody else's error message for instance
        return json.dumps(event.model_dump(mode="json", exclude_defaults=True, exclude=_OWN)).encode()


def read_event(
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
    return _events.validate_python(plain)


def lost(delta: Event, at: str) -> ModelRetracted:
    """What a store says of open deltas, ``delta`` one of them, when somebody else takes the call or the run over."""
    iteration = delta.iteration if isinstance(delta, ModelDelta) else 0
    return ModelRetracted(task_id=delta.task_id, at=at, attempt=delta.attempt, iteration=iteration, reason="WorkerLost")


EVENT_TYPES = frozenset(kind.model_fields["type"].default for kind in get_args(get_args(Event)[0]))
"""Every ``type`` of the union."""
