"""The port of stages: ``Stage``, and the calls and replies that pass through the stages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from ..types.events import MessageInjected, StepTaken
from ..types.messages import BlobRef, Message
from ..types.subagents import BranchOutcome
from ..types.wire import ModelInput, ModelOutput, ToolInput, ToolOutput
from .model import ModelRequest, StreamEvent
from .store import Blob, Commit, MemoryWrite, NewEvent


def _ignore_stream_event(event: StreamEvent) -> None:
    """Ignore it: there is no follower."""


def _ignore_progress(message: str, data: Any) -> None:
    """Ignore it: there is no follower."""


def _ignore_model_start(model: str) -> None:
    """Ignore it: there is no follower."""


def _ignore_messages(messages: Sequence[Message]) -> None:
    """Ignore it: there is no follower."""


@dataclass(slots=True)
class ModelCall:
    """A model call on its way through the stages. Stages fill in what the inner ones need."""

    input: ModelInput
    owner: str = ""
    """Names this attempt: workflow run, activity and attempt number."""
    attempt: int = 1
    asked_at: str = ""
    """When its first attempt was scheduled (``RunRow.asked_at``), by the server's clock."""
    scheduled: float = field(default_factory=monotonic)
    """The same on this process's monotonic clock, independent of this machine's wall clock."""
    head: str | None = None
    """The transcript's last node; set by the transcript stage."""
    prefix: Sequence[Message] = ()
    """The transcript up to the head; set by the transcript stage."""
    new_messages: Sequence[Message] = ()
    """New messages since the head; set by the transcript stage."""
    branches: Sequence[BranchOutcome] = ()
    """Outcomes of the step's branches, none of it in a blob; set by the transcript stage."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of the files in ``prefix`` and ``new_messages``, by the hash of their blobs; set by the transcript
    stage."""
    base_agent: Any = None
    """The ``Agent`` as defined, with the tools of its toolsets; set by the iteration stage."""
    pinned: BlobRef | None = None
    """The recorded list of these tools, if the run takes it with this call; its blob is in ``blobs``."""
    agent: Any = None
    """The ``Agent`` with the overrides of run and turn; set by the iteration stage."""
    run_context: Any = None
    """The ``RunContext`` that is passed to the author's code; set by the iteration stage."""
    request: ModelRequest | None = None
    """The request to the model; set by the iteration stage, and changed by hooks."""
    report_model: Callable[[str], None] = _ignore_model_start
    """Called with the model (``"<provider>:<model>"``) right before it is called; set by the events stage."""
    emit: Callable[[StreamEvent], None] = _ignore_stream_event
    """Called with every stream event of the model; set by the events stage."""
    report_messages: Callable[[Sequence[Message]], None] = _ignore_messages
    """Called with the users' messages as hooks have left them, before the model is called; set by the events stage."""
    memory_writes: list[MemoryWrite] = field(default_factory=list)
    """Memory writes of the author's code during the call; committed with its outcome."""
    blobs: list[Blob] = field(default_factory=list)
    """Files that the author's code put into new messages; committed with the outcome."""
    call_ids: Any = None
    """``CallIds`` of the reply; set when the model is called."""
    step_events: Sequence[StepTaken | MessageInjected] = ()
    """Events of the step policy's changes and messages, without the common fields; set by the iteration stage, recorded
    with the outcome."""
    pending_events: list[NewEvent] = field(default_factory=list)
    """Events of this attempt that are not recorded yet; the next write of events includes them."""
    auth: Any = field(default=None, repr=False)
    """The ``AuthContext`` of the call; set by the prepare stage, except for an ending."""


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
    """The rewritten conversation that replaces ``ModelCall.prefix``: it is recorded as a chain of its own."""
    compaction_due: bool = False
    """The conversation is to be compacted before the next call; set by the compaction stage."""
    branch_conversations: Sequence[BranchConversation | None] = ()
    """The conversation that each of ``output.branches`` continues; None for a branch without one."""
    commit: Commit = field(default_factory=Commit)
    """What the journal stage writes together with the outcome; made by the transcript stage."""


@dataclass(slots=True)
class ToolCall:
    """A tool call on its way through the stages."""

    input: ToolInput
    key: str
    """Journal key; also the tool's idempotency key, unless the call ran before and asked a question."""
    owner: str
    """Names this attempt: workflow run, activity and attempt number."""
    attempt: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """From the input, or set by the transcript stage where they are too large for history."""
    memory_writes: list[MemoryWrite] = field(default_factory=list)
    """Memory writes of the tool; committed with its outcome, unless that is an error."""
    hook_writes: list[MemoryWrite] = field(default_factory=list)
    """Memory writes of hooks; committed with the outcome, whatever it is."""
    before_hook_writes: Sequence[MemoryWrite] | None = None
    """Memory writes of the hooks before the call, once they have allowed it: they do not run again with it; set by the
    hook stage."""
    changed_by: Any = None
    """The hook that has changed the arguments; set by the hook stage."""
    check_arguments: Callable[[], Awaitable[ToolOutput | None]] | None = None
    """Returns the result of a call that may not run with the ``arguments`` as hooks changed them; set by the iteration
    stage."""
    error: Exception | None = None
    """The tool's exception, if that is its outcome."""
    blobs: list[Blob] = field(default_factory=list)
    """The files that the tool returned; committed with its outcome."""
    report_progress: Callable[[str, Any], None] = _ignore_progress
    """Called with the tool's progress (``ctx.progress``): a text, and plain data; from any thread. Set by the events
    stage."""
    asked_at: str = ""
    """When the first attempt of its activity was scheduled (``RunRow.asked_at``)."""
    pending_events: list[NewEvent] = field(default_factory=list)
    """As in :class:`ModelCall`."""
    first_key: str = ""
    """The journal key of the call's first run, if this is a later one; set by the prepare stage."""
    auth: Any = field(default=None, repr=False)
    """The ``AuthContext`` of the call; set by the prepare stage, or by the model call that it is part of."""


NextModel = Callable[[ModelCall], Awaitable[ModelReply]]
NextTool = Callable[[ToolCall], Awaitable[ToolOutput]]


class Stage(Protocol):
    """Middleware around a call. ``next`` runs the inner stages and the call; a stage may return a result without
    calling it."""

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Run around a model call."""
        ...

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Run around a tool call, also an inline one."""
        ...
