"""The calls and replies that pass through the stages, and the protocols of stages.

A stage's signature says what it needs. Outside, a model call has what its activity was given (``ModelCall``); from the
transcript stage on also its conversation (``ConversationCall``); from the iteration stage on also its agent and the
request to the model (``RequestCall``). All three share the lists of what is recorded with the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

from ..agent.agent import Agent
from ..context.auth import AuthContext
from ..errors import AbortError
from ..hooks import Hook
from ..loop.transcript import CallIds
from ..ports.model import ModelRequest, StreamEvent
from ..ports.store import Blob, Commit, MemoryWrite, NewEvent
from ..tools import ArgumentsError, RunContext, format_error
from ..types.events import MessageInjected, StepTaken
from ..types.messages import Message, Usage, Withheld
from ..types.subagents import BranchOutcome
from ..types.transcript import Transcript, iter_pieces
from ..types.wire import CollectInput, ModelInput, ModelOutput, ToolInput, ToolOutput
from .journal_keys import build_tool_key


def _ignore(*_: object) -> None:
    """Ignore a report: there is no follower."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """An attempt of a model call or a tool call."""

    owner: str = ""
    """Names this attempt: workflow run, activity and attempt number."""
    attempt: int = 1
    asked_at: str = ""
    """When the first attempt of its activity was scheduled (``RunRow.asked_at``), by the server's clock."""
    auth: AuthContext | None = field(default=None, repr=False)
    """The ``auth_context`` of the call, if the run has one; resolved by the prepare stage, or by the model call that an
    inline tool call is part of."""
    memory_writes: list[MemoryWrite] = field(default_factory=list)
    """Memory writes of the author's code during the call; committed with its outcome, unless that is a tool's error."""
    blobs: list[Blob] = field(default_factory=list)
    """Files that the author's code put into new messages, or returned; committed with the outcome."""
    pending_events: list[NewEvent] = field(default_factory=list)
    """Events of this attempt that are not recorded yet; the next write of events includes them."""
    nothing_recorded: bool = False
    """The journal has no outcome of the call, and its effect has not begun: an attempt that ends so leaves nothing to
    collect. False while that is not known."""


@dataclass(slots=True, kw_only=True)
class CollectCall(Attempt):
    """An attempt to collect what an activity had recorded that ended without a result."""

    input: CollectInput


@dataclass(frozen=True, slots=True)
class PaidRequest:
    """A request that a model has answered, for the table of usage."""

    provider: str
    model: str
    usage: Usage
    cost_usd: float | None
    seconds: float


@dataclass(slots=True)
class ModelCall(Attempt):
    """An attempt of a model call."""

    input: ModelInput
    paid: list[PaidRequest] = field(default_factory=list)
    """Requests of the call that a model has answered, also those whose reply an earlier attempt has kept."""
    scheduled: float = field(default_factory=monotonic)
    """``asked_at`` on this process's monotonic clock, independent of this machine's wall clock."""
    report_model: Callable[[str], None] = _ignore
    """Called with the model (``"<provider>:<model>"``) right before it is called."""
    emit: Callable[[StreamEvent], None] = _ignore
    """Called with every stream event of the model."""
    left_out: list[str] = field(default_factory=list)
    """Names of tools that are not offered: client tools whose names the agent's tools have, tools that a toolset has
    wrong, and tools that the model's API would refuse."""
    report_messages: Callable[[Sequence[Message]], None] = _ignore
    """Called with the users' messages as hooks have left them, before the model is called."""


@dataclass(slots=True)
class ConversationCall(ModelCall):
    """A model call with its conversation."""

    head: str | None = None
    """The transcript's last node."""
    prefix: Sequence[Message] = ()
    """The transcript up to the head."""
    new_messages: Sequence[Message] = ()
    """New messages since the head."""
    branches: Sequence[BranchOutcome] = ()
    """Outcomes of the step's branches, none of it in a blob."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of the files in ``prefix`` and ``new_messages``, by the hash of their blobs."""


@dataclass(slots=True, kw_only=True)
class RequestCall(ConversationCall):
    """A model call with its agent, and the request that is sent to the model."""

    agent: Agent
    """The agent with the overrides of run, turn and step."""
    run_context: RunContext[Any]
    """The context that is passed to the author's code."""
    request: ModelRequest
    edited: bool = False
    """Whether the step policy has edited the conversation."""
    call_ids: CallIds = field(init=False)
    """The ids of the reply's calls."""

    def __post_init__(self) -> None:
        self.renew_call_ids()

    def renew_call_ids(self) -> CallIds:
        """Begin the ids of a reply anew, and return them."""
        said = Transcript(iter_pieces(self.prefix, self.new_messages))
        self.call_ids = CallIds(said, self.input.scope, self.input.op, edited=self.edited)
        return self.call_ids


def share_fields(call: ModelCall) -> dict[str, Any]:
    """Return the fields of ``call`` for a call with more of them. Both then have the same lists."""
    return {each.name: getattr(call, each.name) for each in fields(call)}


@dataclass(frozen=True, slots=True)
class BranchConversation:
    """A conversation that branches off a transcript: ``messages`` after ``head``, or alone if that is None."""

    head: str | None
    messages: Sequence[Message]


@dataclass(slots=True)
class ModelReply:
    """A reply on its way back out. ``output.head`` is set by the transcript stage."""

    output: ModelOutput
    message: Message | None
    """The model's message; None if no model was called (``close``)."""
    system: str | None = None
    """The system prompt that the model was given."""
    rewritten_messages: Sequence[Message] = ()
    """The rewritten conversation that replaces ``ConversationCall.prefix``: recorded as a chain of its own."""
    compaction_due: bool = False
    """The conversation is to be compacted before the next call; set by the compaction stage."""
    branch_conversations: Sequence[BranchConversation | None] = ()
    """The conversation that each of ``output.branches`` continues; None for a branch without one."""
    step_events: Sequence[StepTaken | MessageInjected] = ()
    """Events of the step policy's changes and messages, without the common fields; set by the iteration stage."""
    new_withheld: Sequence[Withheld] = ()
    """Content that was withheld from the request for the first time; set by the transcript stage."""
    commit: Commit = field(default_factory=Commit)
    """What the journal stage writes together with the outcome; made by the transcript stage."""


@dataclass(slots=True)
class ToolCall(Attempt):
    """An attempt of a tool call."""

    input: ToolInput
    key: str = field(init=False)
    """Journal key; also the tool's idempotency key, unless the call ran before and asked a question."""
    arguments: Mapping[str, Any] = field(init=False)
    """From the input, or loaded by the prepare stage where they are too large for history."""
    hook_writes: list[MemoryWrite] = field(default_factory=list)
    """Memory writes of hooks; committed with the outcome, whatever it is."""
    before_hook_writes: Sequence[MemoryWrite] | None = None
    """Memory writes of the hooks before the call, once they have allowed it: they do not run again with it."""
    changed_by: Hook | None = None
    """The hook that has changed the arguments."""
    check_arguments: Callable[[str], Awaitable[ToolOutput | None]] | None = None
    """Returns the result of a call that may not run with the ``arguments`` as the hook of this name changed them; set
    by the iteration stage for the hook stage inside it."""
    error: Exception | None = None
    """The tool's exception, if that is its outcome."""
    report_progress: Callable[[str, Any], None] = _ignore
    """Called with the tool's progress (``ctx.progress``): a text, and plain data; from any thread."""
    first_key: str = ""
    """The journal key of the call's first run, if this is a later one."""
    has_begun: bool = False
    """Whether this attempt may have called the function: set before it, and never unset."""

    def __post_init__(self) -> None:
        self.key, self.arguments = build_tool_key(self.input), self.input.arguments or {}


def build_error_output(call: ToolCall, error: Exception | str, note: str = "") -> ToolOutput:
    """Build the result of a call that failed, with ``note`` behind the error. An ``AbortError`` ends the run."""
    if isinstance(error, AbortError):
        return ToolOutput(key=call.key, content=format_error(error.plain()), is_error=True, status="aborted")
    text = str(error) if isinstance(error, str | ArgumentsError) else format_error(error)
    return ToolOutput(key=call.key, content=f"{text}{note}", is_error=True)


CallT = TypeVar("CallT", ModelCall, RequestCall)

NextModel = Callable[[ModelCall], Awaitable[ModelReply]]
NextConversation = Callable[[ConversationCall], Awaitable[ModelReply]]
NextRequest = Callable[[RequestCall], Awaitable[ModelReply]]
NextTool = Callable[[ToolCall], Awaitable[ToolOutput]]


class ModelStage(Protocol[CallT]):
    """Middleware around a model call. ``next`` runs the inner stages and the call; a stage may return a reply without
    calling it."""

    async def model(self, call: CallT, next: Callable[[CallT], Awaitable[ModelReply]]) -> ModelReply:
        """Run around a model call."""
        ...


class ToolStage(Protocol):
    """Middleware around a tool call, also an inline one. ``next`` is as in :class:`ModelStage`."""

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Run around a tool call."""
        ...


class ConversationLoader(Protocol):
    """The stage that gives a call its conversation."""

    async def model(self, call: ModelCall, next: NextConversation) -> ModelReply:
        """Run around a model call."""
        ...


class RequestMaker(Protocol):
    """The stage that gives a call its agent and its request."""

    async def model(self, call: ConversationCall, next: NextRequest) -> ModelReply:
        """Run around a model call."""
        ...


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a worker, each list from the outside in."""

    of_model_call: Sequence[ModelStage[ModelCall]]
    transcript: ConversationLoader
    iteration: RequestMaker
    of_request: Sequence[ModelStage[RequestCall]]
    of_tool_call: Sequence[ToolStage]

    def wrap_model(self, call: NextRequest) -> NextModel:
        """Return the bare ``call`` of a model with its stages around it."""
        request = _wrap_model_call(self.of_request, call)
        conversation = partial(self.iteration.model, next=request)
        return _wrap_model_call(self.of_model_call, partial(self.transcript.model, next=conversation))

    def wrap_tool(self, call: NextTool) -> NextTool:
        """Return the bare ``call`` of a tool with its stages around it."""
        return wrap_tool_call(self.of_tool_call, call)


def _wrap_model_call(
    stages: Sequence[ModelStage[CallT]], call: Callable[[CallT], Awaitable[ModelReply]]
) -> Callable[[CallT], Awaitable[ModelReply]]:
    for stage in reversed(stages):
        call = partial(stage.model, next=call)
    return call


def wrap_tool_call(stages: Sequence[ToolStage], call: NextTool) -> NextTool:
    """Return the bare ``call`` of a tool with ``stages``, from the outside in, around it."""

    def begin(tool_call: ToolCall) -> Awaitable[ToolOutput]:
        tool_call.has_begun = True
        return call(tool_call)

    wrapped: NextTool = begin
    for stage in reversed(stages):
        wrapped = partial(stage.tool, next=wrapped)
    return wrapped
