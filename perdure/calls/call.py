"""The calls that pass through the stages, and the replies that come back.

    JSON -> the call of a step -> with its conversation -> with its agent and request -> the model
    JSON <- output (journal) <- reply, with what is to be recorded <- message <- the model

A stage's signature says what it needs. All calls of one step share what is recorded with its outcome (``Recording``)
and where they report what happens meanwhile (``Feed``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from ..agent.spec import AgentSpec
from ..context.auth import AuthContext
from ..errors import AbortError, NewerStateError
from ..hooks import Hook
from ..loop.transcript import CallIds
from ..ports.model import ModelRequest, StreamEvent
from ..ports.store import Blob, Commit, MemoryWrite, NewEvent
from ..tools import ArgumentsError, RunContext, format_error
from ..types.events import MessageInjected, StepTaken
from ..types.messages import Data, Message, Usage, Withheld
from ..types.schema_version import check_schema_version
from ..types.subagents import BranchOutcome
from ..types.transcript import Transcript, iter_pieces
from ..types.wire import (
    CLOSE_ACTIVITY,
    COLLECT_ACTIVITY,
    COMPACT_ACTIVITY,
    ENGINE_ACTIVITY_PREFIX,
    MODEL_ACTIVITY,
    REMIND_ACTIVITY,
    CloseInput,
    CloseOutput,
    CollectInput,
    CollectOutput,
    CompactInput,
    CompactOutput,
    ModelInput,
    ModelOutput,
    RemindInput,
    RemindOutput,
    ToolInput,
    ToolOutput,
)
from .journal_keys import build_tool_key


@dataclass(frozen=True, slots=True)
class PaidRequest:
    """A request that a model has answered, for the table of usage."""

    provider: str
    model: str
    usage: Usage
    cost_usd: float | None
    seconds: float


@dataclass(slots=True)
class Recording:
    """What is recorded with the outcome of a call."""

    memory_writes: list[MemoryWrite] = field(default_factory=list)
    """Memory writes of the author's code during the call; not recorded with a tool's error."""
    blobs: list[Blob] = field(default_factory=list)
    """Files that the author's code put into new messages, or returned."""
    pending_events: list[NewEvent] = field(default_factory=list)
    """Events of this attempt that are not recorded yet; the next write of events includes them."""
    paid: list[PaidRequest] = field(default_factory=list)
    """Requests of the call that a model has answered, also those whose reply an earlier attempt has kept."""
    model: str = ""
    """The model that was called last, ``"<provider>:<model>"``."""
    left_out: list[str] = field(default_factory=list)
    """Names of tools that are not offered: client tools whose names the agent's tools have, tools that a toolset has
    wrong, and tools that the model's API would refuse."""


def _ignore(*_: object) -> None:
    """Ignore a report: there is no follower."""


@dataclass(slots=True)
class Feed:
    """Where a call reports what happens while it runs; by default nowhere."""

    report_model: Callable[[str], None] = _ignore
    """Called with the model (``"<provider>:<model>"``) right before it is called."""
    emit: Callable[[StreamEvent], None] = _ignore
    """Called with every stream event of the model."""
    report_messages: Callable[[Sequence[Message]], None] = _ignore
    """Called with the users' messages as hooks have left them, before the model is called."""
    report_progress: Callable[[str, Any], None] = _ignore
    """Called with the tool's progress (``ctx.progress``): a text, and plain data; from any thread."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """An attempt of a call."""

    owner: str = ""
    """Names this attempt: workflow run, activity and attempt number."""
    attempt: int = 1
    asked_at: str = ""
    """When the first attempt of its activity was scheduled (``RunRow.asked_at``), by the server's clock."""
    scheduled: float = field(default_factory=monotonic)
    """``asked_at`` on this process's monotonic clock, independent of this machine's wall clock."""
    auth: AuthContext | None = field(default=None, repr=False)
    """The ``auth_context`` of the call, if the run has one; resolved by the prepare stage, or by the model call that an
    inline tool call is part of."""
    recording: Recording = field(default_factory=Recording)
    feed: Feed = field(default_factory=Feed)
    nothing_recorded: bool = False
    """The journal has no outcome of the call, and its effect has not begun: an attempt that ends so leaves nothing to
    collect. False while that is not known."""


@dataclass(slots=True, kw_only=True)
class CollectCall(Attempt):
    """An attempt to collect what an activity had recorded that ended without a result."""

    input: CollectInput


@dataclass(slots=True)
class ModelCall(Attempt):
    """An attempt of a model call."""

    output_type: ClassVar[type[ModelOutput]] = ModelOutput
    input: ModelInput


@dataclass(slots=True)
class CompactCall(Attempt):
    """An attempt to rewrite the conversation to a shorter one."""

    output_type: ClassVar[type[CompactOutput]] = CompactOutput
    input: CompactInput


@dataclass(slots=True)
class CloseCall(Attempt):
    """An attempt to record an ending."""

    output_type: ClassVar[type[CloseOutput]] = CloseOutput
    input: CloseInput


@dataclass(slots=True)
class RemindCall(Attempt):
    """An attempt to send reminders."""

    output_type: ClassVar[type[RemindOutput]] = RemindOutput
    input: RemindInput


StepCall = ModelCall | CompactCall | CloseCall | RemindCall
"""A call of the run itself; the others are those of its tools."""
CallT = TypeVar("CallT", bound=StepCall)
FactsT = TypeVar("FactsT", bound=ModelInput | CompactInput | CloseInput | RemindInput)


@dataclass(slots=True, kw_only=True)
class ConversationCall(Attempt, Generic[FactsT]):
    """A step's call with its conversation."""

    input: FactsT
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
class RequestCall(Attempt):
    """A request to a model, of a model call or for a summary."""

    input: ModelInput | CompactInput
    prefix: Sequence[Message] = ()
    """As in :class:`ConversationCall`; so ``new_messages``."""
    new_messages: Sequence[Message] = ()
    agent: AgentSpec
    """The agent with the overrides of run, turn and step."""
    run_context: RunContext[Any]
    """The context that is passed to the author's code."""
    request: ModelRequest
    edited: bool = False
    """Whether the step policy has edited the conversation."""
    resend: bool = False
    """Content that was withheld because a model's API refused it is sent once more."""
    is_summary: bool = False
    """Whether it asks for a summary, maybe one of several."""
    compaction_due: bool = False
    """The conversation is to be compacted before the next call; set by the view stage."""
    call_ids: CallIds = field(init=False)
    """The ids of the reply's calls."""

    def __post_init__(self) -> None:
        self.renew_call_ids()

    def renew_call_ids(self) -> CallIds:
        """Begin the ids of a reply anew, and return them."""
        said = Transcript(iter_pieces(self.prefix, self.new_messages))
        self.call_ids = CallIds(said, self.input.scope, self.input.op, edited=self.edited)
        return self.call_ids


def share_attempt(call: Attempt) -> dict[str, Any]:
    """Return the fields for a call with more of them: both then record and report together."""
    return {
        "owner": call.owner,
        "attempt": call.attempt,
        "asked_at": call.asked_at,
        "scheduled": call.scheduled,
        "auth": call.auth,
        "recording": call.recording,
        "feed": call.feed,
    }


@dataclass(frozen=True, slots=True)
class BranchConversation:
    """A conversation that branches off a transcript: ``messages`` after ``head``, or alone if that is None."""

    head: str | None
    messages: Sequence[Message]


OutputT = TypeVar("OutputT", bound=ModelOutput | CompactOutput | CloseOutput | RemindOutput)


@dataclass(slots=True)
class Reply(Generic[OutputT]):
    """An output on its way to the journal. Its head is set by the transcript stage."""

    output: OutputT
    commit: Commit = field(default_factory=Commit, kw_only=True)
    """What the journal stage writes together with the outcome; made by the transcript stage."""


@dataclass(slots=True)
class ModelReply(Reply[ModelOutput]):
    """The reply to a model call."""

    message: Message | None
    """The model's message; None if the step waits for branches."""
    system: str | None = None
    """The system prompt that the model was given."""
    rewritten_messages: Sequence[Message] = ()
    """The rewritten conversation that replaces ``ConversationCall.prefix``: recorded as a chain of its own."""
    compaction_due: bool = False
    """The conversation is to be compacted before the next call."""
    branch_conversations: Sequence[BranchConversation | None] = ()
    """The conversation that each of ``output.branches`` continues; None for a branch without one."""
    step_events: Sequence[StepTaken | MessageInjected] = ()
    """Events of the step policy's changes and messages, without the common fields; set by the iteration stage."""
    new_withheld: Sequence[Withheld] = ()
    """Content that was withheld from the request for the first time; set by the transcript stage."""


@dataclass(slots=True)
class CompactReply(Reply[CompactOutput]):
    """The outcome of a compaction."""

    rewritten_messages: Sequence[Message] = ()
    """As in :class:`ModelReply`; empty where nothing could be shortened."""


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


NextTool = Callable[[ToolCall], Awaitable[ToolOutput]]
NextRequest = Callable[[RequestCall], Awaitable[Message]]

ActivityCall = StepCall | ToolCall | CollectCall
ActivityOutput = ModelOutput | CompactOutput | CloseOutput | RemindOutput | ToolOutput | CollectOutput


def parse_call(activity: str, plain: dict[str, Any], **attempt: Any) -> ActivityCall:
    """Parse the JSON input of an activity; one of a type without the engine's prefix runs a tool.

    Raises ``NewerStateError`` for what a newer engine has scheduled, and ``ValidationError``.
    """
    for part in (plain, *plain.values()) if activity == COLLECT_ACTIVITY else (plain,):
        check_schema_version(part, f"the input of activity {activity}")
    types = _CALLS.get(activity)
    if types is None and activity.startswith(ENGINE_ACTIVITY_PREFIX):
        raise NewerStateError(f"activity {activity} is not one of this engine's: a newer one scheduled it")
    if types is None:
        return ToolCall(ToolInput.model_validate(plain), **attempt)
    make, facts = types
    call: ActivityCall = make(input=facts.model_validate(plain), **attempt)
    return call


_CALLS: dict[str, tuple[Any, type[Data]]] = {
    MODEL_ACTIVITY: (ModelCall, ModelInput),
    COMPACT_ACTIVITY: (CompactCall, CompactInput),
    CLOSE_ACTIVITY: (CloseCall, CloseInput),
    REMIND_ACTIVITY: (RemindCall, RemindInput),
    COLLECT_ACTIVITY: (CollectCall, CollectInput),
}
