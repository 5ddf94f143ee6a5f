"""Calls on their way through the stages, and the stages themselves."""

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
    """Nobody follows."""


def _ignore_progress(message: str, data: Any) -> None:
    """Nobody follows."""


def _ignore_model_start(model: str) -> None:
    """Nobody follows."""


def _ignore_messages(messages: Sequence[Message]) -> None:
    """Nobody follows."""


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
    """The same on this process's monotonic clock, whatever the time is on this machine."""
    head: str | None = None
    """The transcript's last node; set by the transcript stage."""
    prefix: Sequence[Message] = ()
    """The transcript up to the head; set by the transcript stage."""
    new_messages: Sequence[Message] = ()
    """What is new since the head; set by the transcript stage."""
    branches: Sequence[BranchOutcome] = ()
    """What branches of the step came to, none of it in a blob; set by the transcript stage."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of the files in both, by the hash of their blobs; set by the transcript stage."""
    base_agent: Any = None
    """The ``Agent`` as it is defined, with the tools of its toolsets; set by the iteration stage."""
    pinned: BlobRef | None = None
    """The list of these tools, where the run takes it with this call; its blob is in ``blobs``."""
    agent: Any = None
    """The ``Agent``, with what run and turn change of it; set by the iteration stage."""
    run_context: Any = None
    """The ``RunContext`` that the author's code is given; set by the iteration stage."""
    request: ModelRequest | None = None
    """What the model is asked; set by the iteration stage, and changed by hooks."""
    report_model: Callable[[str], None] = _ignore_model_start
    """Told which model (``"<provider>:<model>"``) is asked, right before; set by the events stage."""
    emit: Callable[[StreamEvent], None] = _ignore_stream_event
    """Told of everything that the model streams, as it comes; set by the events stage."""
    report_messages: Callable[[Sequence[Message]], None] = _ignore_messages
    """Told of the users' messages as hooks have left them, before the model is asked; set by the events stage."""
    memory_writes: list[MemoryWrite] = field(default_factory=list)
    """What the author's code wrote into memory during the call; committed with its outcome."""
    blobs: list[Blob] = field(default_factory=list)
    """Files that the author's code put into ``fresh``; committed with the outcome."""
    call_ids: Any = None
    """``CallIds`` of the reply; set as the model is asked."""
    step_events: Sequence[StepTaken | MessageInjected] = ()
    """What the step policy has changed and said, without what every event has; set by the iteration stage, recorded
    with the outcome."""
    pending_events: list[NewEvent] = field(default_factory=list)
    """What is to be said of this attempt and is not recorded yet; whoever writes the next events takes them along."""
    auth: Any = field(default=None, repr=False)
    """On whose behalf it is made, an ``AuthContext``; set by the prepare stage, not for an ending."""


@dataclass(frozen=True, slots=True)
class BranchConversation:
    """A conversation that parts from a transcript: ``messages`` behind ``head``, or alone where that is None."""

    head: str | None
    messages: Sequence[Message]


@dataclass(slots=True)
class ModelReply:
    """A reply on its way back out. ``output.head`` is set by the transcript stage."""

    output: ModelOutput
    message: Message | None
    """What the model said; None when nothing was called (``close``)."""
    system: str | None = None
    """The system prompt that the model was given."""
    rewritten_messages: Sequence[Message] = ()
    """The conversation written anew, in the place of ``ModelCall.prefix``: it is recorded as a chain of its own."""
    compaction_due: bool = False
    """The conversation is to be compacted before the next call; set by the compaction stage."""
    branch_conversations: Sequence[BranchConversation | None] = ()
    """What each of ``output.branches`` goes on from; None for a branch that sees no conversation."""
    commit: Commit = field(default_factory=Commit)
    """What the journal stage writes together with the outcome; made by the transcript stage."""


@dataclass(slots=True)
class ToolCall:
    """A tool call on its way through the stages."""

    input: ToolInput
    key: str
    """Journal key; also the tool's idempotency key, unless it was run before and asked something."""
    owner: str
    """Names this attempt: workflow run, activity and attempt number."""
    attempt: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """From the input, or set by the transcript stage where they are too large for history."""
    memory_writes: list[MemoryWrite] = field(default_factory=list)
    """What the tool wrote into memory; committed with its outcome, unless that is an error."""
    hook_writes: list[MemoryWrite] = field(default_factory=list)
    """What hooks wrote into memory; committed with the outcome, whatever it is."""
    before_hook_writes: Sequence[MemoryWrite] | None = None
    """What the hooks before the call wrote, once they have let it run: they do not run again with it; set by the hook
    stage."""
    changed_by: Any = None
    """The hook that has changed the arguments; set by the hook stage."""
    check_arguments: Callable[[], Awaitable[ToolOutput | None]] | None = None
    """The result of a call that may not run with what hooks made of ``arguments``; set by the iteration stage."""
    error: Exception | None = None
    """What the tool raised, where that is its outcome."""
    blobs: list[Blob] = field(default_factory=list)
    """The files that the tool gave; committed with its outcome."""
    report_progress: Callable[[str, Any], None] = _ignore_progress
    """Told of what the tool says of itself (``ctx.progress``): a text, and plain data; from any thread. Set by the
    events stage."""
    asked_at: str = ""
    """When the first attempt of its activity was scheduled (``RunRow.asked_at``)."""
    pending_events: list[NewEvent] = field(default_factory=list)
    """As in :class:`ModelCall`."""
    first_key: str = ""
    """The journal key of the call's first run, where this is a later one; set by the prepare stage."""
    auth: Any = field(default=None, repr=False)
    """On whose behalf it is made, an ``AuthContext``; set by the prepare stage, or by the model call it is part of."""


NextModel = Callable[[ModelCall], Awaitable[ModelReply]]
NextTool = Callable[[ToolCall], Awaitable[ToolOutput]]


class Stage(Protocol):
    """Middleware around the bare call. ``next`` is the rest of the way in; not calling it answers in its place."""

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call."""
        ...

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call, also an inline one."""
        ...
