"""The transcript of a run, folded from its events into blocks: messages, replies, calls, and what happened besides.

A page folds a window of the events (``event_window.py``), so its size does not grow with the conversation; a live page
folds each further event and gets the blocks that it changes. Large texts stay references, as events have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from ..types.events import (
    ApprovalDecided,
    ApprovalReminded,
    ApprovalRequested,
    ApprovalRevoked,
    BranchCompleted,
    BranchStarted,
    ConversationCompacted,
    ErrorEvent,
    Event,
    LimitReached,
    MessageInjected,
    MessageWithheld,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    QuestionAnswered,
    QuestionAsked,
    RunEvent,
    StepTaken,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
    TurnEvent,
)
from ..types.interface import FINISH_TOOL
from ..types.messages import BlobRef, FilePart, Usage
from ..types.run_states import ENDED_STATES
from .texts import format_count, format_duration, parse_time

MAX_PROGRESS = 20
"""Reports of a tool that a page shows: the last ones."""


@dataclass
class Block:
    """A piece of the transcript. ``key`` names it on the page; ``seq`` is the number of its first event."""

    key: str
    seq: int
    at: str
    kind: str = ""


@dataclass
class MessageBlock(Block):
    """A user's message."""

    by: str | None = None
    text: str = ""
    blob: BlobRef | None = None
    files: Sequence[FilePart] = ()
    kind: str = "message"


@dataclass
class ReplyBlock(Block):
    """A reply of a model, possibly as far as it is written."""

    iteration: int = 0
    model: str = ""
    state: Literal["waiting", "writing", "done", "retracted", "unanswered"] = "waiting"
    """``unanswered``: its turn has ended without it."""
    text: str = ""
    thinking: str = ""
    blob: BlobRef | None = None
    writes_call: str = ""
    """The tool whose arguments are being written."""
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    finish_reason: str = ""
    attempt: int = 1
    started: str = ""
    ended: str = ""
    head: str | None = None
    answer: Mapping[str, Any] | None = None
    """The turn's typed answer, which the reply gives."""
    kind: str = "reply"


@dataclass
class Decision:
    """How an approval or a question of a call ended."""

    state: str
    by: str | None
    at: str
    comment: str | None = None
    arguments: Mapping[str, Any] | None = None
    standing: str | None = None
    always: bool = False


@dataclass
class CallBlock(Block):
    """A tool call, from the reply that has it to its result."""

    call_id: str = ""
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    state: Literal["proposed", "approval", "question", "callback", "running", "done", "error"] = "proposed"
    summary: str = ""
    """The call in one line, if it has waited for a person."""
    hash: str = ""
    question: str = ""
    form: Mapping[str, Any] | None = None
    needs_sign_in: bool = False
    """Whether a sign-in at an MCP server answers it."""
    asked: str = ""
    """When it began to wait for a person or a client."""
    decision: Decision | None = None
    started: str = ""
    ended: str = ""
    progress: list[str] = field(default_factory=list)
    content: str = ""
    blob: BlobRef | None = None
    files: Sequence[FilePart] = ()
    child: str | None = None
    background: bool = False
    answered_by: str | None = None
    attempt: int = 1
    iteration: int = 0
    failed_attempts: str = ""
    """How many attempts have failed, the last error, and when the next one is."""
    kind: str = "call"

    def add_attempt(self, event: ErrorEvent) -> None:
        """Fold an attempt that has failed."""
        first = "An attempt" if event.attempt <= 1 else f"{event.attempt} attempts"
        self.failed_attempts = f"{first} failed: {event.error_type}: {event.error}{_describe_retry(event)}"


@dataclass
class NoteBlock(Block):
    """What happened besides: turns, limits, pauses, errors, changes by policies."""

    title: str = ""
    text: str = ""
    tone: Literal["plain", "good", "warn", "bad"] = "plain"
    link: str | None = None
    """Id of the run that it is about."""
    last_at: str = ""
    """Of attempts that have failed: when the last one did, and the time of the next one, if there is one."""
    next_at: str = ""
    kind: str = "note"


class Transcript:
    """The blocks of a run, in the order in which they began."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self._reply: ReplyBlock | None = None
        self._attempts: dict[str, NoteBlock] = {}
        """By activity: the attempts that have failed since something else became of it."""
        self._error = ""
        """The last error that a note has: the end of a turn and of its run, which have the same, do not repeat it."""
        self.last_seq = 0
        self.ended = ""
        """When the run has ended; empty while it is open, and again once a message has opened it."""

    def add_all(self, events: Iterable[Event]) -> Transcript:
        """Fold ``events``, and return the transcript."""
        for event in events:
            self.add(event)
        return self

    def add(self, event: Event) -> list[Block]:
        """Fold an event of the run itself; return the blocks that it changes."""
        self.last_seq = max(self.last_seq, event.seq)
        match event:
            case MessageInjected():
                return [self._put(_build_message(event))]
            case ModelStarted() | ModelDelta() | ModelCompleted() | ModelRetracted():
                return self._add_reply(event)
            case ToolStarted() | ToolProgress() | ToolCompleted() | ApprovalRequested() | ApprovalDecided():
                return self._add_call(event)
            case QuestionAsked() | QuestionAnswered():
                return self._add_call(event)
            case ErrorEvent(call_id=str(call_id)) if (block := self.blocks.get(f"c-{call_id}")) is not None:
                assert isinstance(block, CallBlock), "keys of calls"
                block.add_attempt(event)
                return [block]
            case ErrorEvent():
                return [self._add_attempt(event)]
            case _:
                changed = self._end_reply(event) if isinstance(event, RunEvent | TurnEvent) else []
                note = _build_note(event, self._error)
                if isinstance(event, TurnEvent | RunEvent):
                    self._error = f"{event.error_type}: {event.error}" if event.error_type else ""
                return changed if note is None else [*changed, self._put(note)]

    def _end_reply(self, event: RunEvent | TurnEvent) -> list[Block]:
        """Note the end of the run or of its turn: the reply that was awaited does not come."""
        is_end = event.state in ENDED_STATES
        if isinstance(event, RunEvent):
            self.ended = event.at if is_end else ""
        reply = self._reply
        if not is_end or reply is None:
            return []
        reply.state, reply.ended = "unanswered", event.at
        self._reply = None
        return [reply]

    def _add_attempt(self, event: ErrorEvent) -> NoteBlock:
        """Fold the attempts of an activity into one note: each is like the one before."""
        note = self._attempts.get(event.activity)
        if note is None or event.attempt <= 1:
            note = self._attempts[event.activity] = NoteBlock(f"n-{event.seq}", event.seq, event.at)
            self._put(note)
        name = _ACTIVITY_NAMES.get(event.activity, event.activity.removeprefix("tool."))
        first = "The attempt" if event.attempt <= 1 else f"{event.attempt} attempts"
        note.title, note.tone = f"{first} of {name} failed", "bad" if event.final else "warn"
        note.text = self._error = f"{event.error_type}: {event.error}"
        note.last_at = event.at if event.attempt > 1 else ""
        note.next_at = ""
        if event.retry_in and not event.final and (at := parse_time(event.at)) is not None:
            note.next_at = (at + timedelta(seconds=min(event.retry_in, _MAX_RETRY_SECONDS))).isoformat()
        return note

    def _put(self, block: Block) -> Block:
        return self.blocks.setdefault(block.key, block)

    # --- replies

    @property
    def open_reply(self) -> ReplyBlock | None:
        """The reply that is being written."""
        return self._reply

    def _add_reply(self, event: ModelStarted | ModelDelta | ModelCompleted | ModelRetracted) -> list[Block]:
        reply = self._reply
        if reply is None or (reply.iteration != event.iteration and not isinstance(event, ModelRetracted)):
            key = f"r-{event.task_id or ''}-{event.iteration}"
            if key in self.blocks:  # a further attempt, or a turn that a message has extended
                key = f"{key}-{event.seq}"
            reply = ReplyBlock(key, event.seq, event.at, iteration=event.iteration, started=event.at)
            self._reply = reply
            self._put(reply)
        match event:
            case ModelStarted():
                reply.model, reply.attempt, self.ended = event.model, event.attempt, ""
                reply.text = reply.thinking = reply.writes_call = ""
                reply.state = "waiting"
            case ModelDelta():
                _extend(reply, event)
            case ModelRetracted():
                reply.state, reply.ended, reply.finish_reason = "retracted", event.at, event.reason
                self._reply = None
            case ModelCompleted():
                return self._complete_reply(reply, event)
        return [reply]

    def _complete_reply(self, reply: ReplyBlock, event: ModelCompleted) -> list[Block]:
        reply.state, reply.ended, reply.model = "done", event.at, _name_model(reply.model, event.model)
        reply.text, reply.blob, reply.thinking = event.text, event.blob, ""
        reply.usage, reply.cost_usd, reply.finish_reason = event.usage, event.cost_usd, event.finish_reason
        reply.head, reply.writes_call = event.head, ""
        self._reply = None
        self._attempts.pop("perdure.model", None)
        changed: list[Block] = [reply]
        for call in event.calls:
            if call.name == FINISH_TOOL:
                reply.answer = call.arguments
                continue
            block = self._find_call(call.id, call.name, event)
            block.arguments = block.arguments or call.arguments
            block.iteration = event.iteration
            changed.append(block)
        return changed

    # --- calls

    def _find_call(self, call_id: str, name: str, event: Event) -> CallBlock:
        block = self.blocks.get(f"c-{call_id}")
        if not isinstance(block, CallBlock):
            block = CallBlock(f"c-{call_id}", event.seq, event.at, call_id=call_id, name=name)
            self.blocks[block.key] = block
        return block

    def _add_call(
        self,
        event: ToolStarted
        | ToolProgress
        | ToolCompleted
        | ApprovalRequested
        | ApprovalDecided
        | QuestionAsked
        | QuestionAnswered,
    ) -> list[Block]:
        block = self._find_call(event.call_id, event.name, event)
        match event:
            case ToolStarted():
                block.state, block.started, block.attempt = "running", event.at, event.attempt
                block.arguments = event.arguments or block.arguments
                block.child, block.background = event.child_context_id, event.background
            case ToolProgress():
                block.progress = [*block.progress[1 - MAX_PROGRESS :], event.message]
            case ToolCompleted():
                block.state, block.ended = "error" if event.is_error else "done", event.at
                block.content, block.blob, block.files = event.content, event.blob, event.files
                block.answered_by = event.answered_by
            case ApprovalRequested():
                block.state, block.asked, block.hash = "approval", event.at, event.hash
                block.summary = event.summary
                block.arguments = event.arguments or block.arguments
            case ApprovalDecided():
                block.decision = Decision(
                    event.decision, event.by, event.decided_at or event.at, event.comment, event.arguments,
                    event.standing, event.always,
                )  # fmt: skip
                block.state = "running" if event.decision == "approved" else "error"
                block.ended = event.at if event.decision != "approved" else block.ended
            case QuestionAsked():
                block.state, block.asked, block.hash = event.kind, event.at, event.hash
                block.summary = block.summary or (event.summary if event.kind == "callback" else "")
                block.question, block.form = event.question, event.form
                block.needs_sign_in = event.consent is not None
                block.arguments = block.arguments or event.arguments
            case QuestionAnswered():
                block.decision = Decision("answered", event.by, event.answered_at or event.at, event.error)
                block.state = "running"
        return [block]


def _build_message(event: MessageInjected) -> MessageBlock:
    return MessageBlock(
        f"m-{event.seq}", event.seq, event.at, by=event.by, text=event.content, blob=event.blob, files=event.files
    )


def _name_model(asked: str, answered: str) -> str:
    """Return the name of the model that answered, with the provider of the one that was asked: APIs leave it out."""
    provider, colon, _ = asked.partition(":")
    return f"{provider}:{answered}" if colon and answered and ":" not in answered else answered or asked


def _extend(reply: ReplyBlock, delta: ModelDelta) -> None:
    """Add a piece of a reply, unless it is known. One whose beginning is missing is left out: the whole reply comes."""
    reply.state = "writing"
    if delta.kind == "tool_call":
        reply.writes_call = delta.name or reply.writes_call
    elif delta.kind == "text":
        reply.text += _cut_known(reply.text, delta)
    else:
        reply.thinking += _cut_known(reply.thinking, delta)


def _cut_known(before: str, delta: ModelDelta) -> str:
    known = len(before) - delta.offset
    return delta.text[known:] if known >= 0 else ""


def _describe_retry(event: ErrorEvent) -> str:
    return f" · next attempt in {format_duration(event.retry_in)}" if event.retry_in and not event.final else ""


# ---
# Notes.


_TURN_TONES: Mapping[str, Literal["plain", "good", "bad", "warn"]] = {
    "completed": "good",
    "failed": "bad",
    "cancelled": "warn",
}
_RUN_TITLES = {
    "started": "Run started",
    "idle": "Waits for the next message",
    "held_up": "Held up",
    "recovered": "Recovered",
    "paused": "Paused",
    "resumed": "Resumed",
    "completed": "Run completed",
    "failed": "Run failed",
    "cancelled": "Run cancelled",
    "terminated": "Run terminated",
    "timed_out": "Run timed out",
}


_ACTIVITY_NAMES = {
    "perdure.model": "the model call",
    "perdure.compact": "the summary",
    "perdure.close": "recording the end",
    "perdure.remind": "a reminder",
    "perdure.collect": "collecting what a lost worker had done",
}
_MAX_RETRY_SECONDS = 10 * 365 * 86_400


def _build_note(event: Event, error: str = "") -> NoteBlock | None:
    """Build the note of an event; None for one that says nothing to a reader. ``error``: what stands above it."""
    note = NoteBlock(f"n-{event.seq}", event.seq, event.at)
    match event:
        case TurnEvent(state="started"):
            return None
        case TurnEvent():
            note.title, note.tone = f"Turn {event.state}", _TURN_TONES[event.state]
            parts = [f"{event.iterations} iteration{'' if event.iterations == 1 else 's'}"] if event.iterations else []
            total = event.usage.total_tokens
            parts += [f"{format_count(total)} tokens"] if total else []
            parts += [f"${event.cost_usd:.4f}"] if event.cost_usd else []
            own = f"{event.error_type}: {event.error}"
            parts += [own] if event.error_type and own != error else []
            note.text = " · ".join(parts)
        case RunEvent():
            note.title = _RUN_TITLES.get(event.state, event.state)
            bad = event.state in ("failed", "terminated", "timed_out")
            note.tone = "bad" if bad else "warn" if event.state in ("held_up", "paused", "cancelled") else "plain"
            by = f"by {event.by}" if event.by else ""
            own = f"{event.error_type}: {event.error}" if event.error_type else ""
            note.text = " · ".join(part for part in (by, event.reason or "", "" if own == error else own) if part)
        case LimitReached():
            note.title, note.tone = f"Limit reached: {event.kind} of the {event.scope}", "warn"
            used = "" if event.used is None else f"{event.used:,.4g} of "
            note.text = f"{used}{event.limit:,.4g}"
        case _:
            return _build_rare_note(event, note)
    return note


def _build_rare_note(event: Event, note: NoteBlock) -> NoteBlock | None:
    match event:
        case ConversationCompacted():
            note.title = "Conversation summarised"
            note.text = (
                f"{event.messages_before} messages became {event.messages_after}, about "
                f"{format_count(event.tokens_before)} tokens {format_count(event.tokens_after)}"
            )
        case StepTaken():
            note.title, note.text = "The step policy changed the next model call", ", ".join(_describe_step(event))
        case MessageWithheld():
            note.title, note.tone = f"Withheld from the model: {event.what}", "warn"
            note.text = event.reason
        case BranchStarted():
            note.title, note.link = f"Branch: {event.agent} was called", event.child_context_id
            note.text = event.message
        case BranchCompleted():
            note.title, note.link = f"Branch: {event.agent} has answered", event.child_context_id
            note.text = f"{event.error_type}: {event.error}" if event.error_type else event.content
            note.tone = "bad" if event.error_type else "plain"
        case ApprovalRevoked():
            note.title, note.tone = f"Standing approval of {event.name} revoked", "warn"
            note.text = f"by {event.by}" if event.by else ""
        case ApprovalReminded():
            note.title = f"Reminder {event.number}: {event.name} waits for approval"
        case _:
            return None
    return note


def _describe_step(event: StepTaken) -> list[str]:
    parts = [f"model {event.model}"] if event.model else []
    parts += [f"settings {', '.join(event.settings)}"] if event.settings else []
    parts += ["instructions"] if event.instructions else []
    parts += [f"added {', '.join(event.tools_added)}"] if event.tools_added else []
    parts += [f"removed {', '.join(event.tools_removed)}"] if event.tools_removed else []
    parts += ["results of calls"] if event.results else []
    parts += [f"{event.injected} messages"] if event.injected else []
    parts += ["the conversation"] if event.edited else []
    return [*parts, *(["it gave the answer itself"] if event.finished else [])]
