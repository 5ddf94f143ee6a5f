"""What crosses Temporal between the workflow and its activities: the one input and one output of each.

Plain JSON, as in :mod:`.interface`, so that anybody can read a history.
"""

from __future__ import annotations

import math
import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from .approvals import ApprovalOutcome, Reminder, RevokedApproval
from .interface import FinishProtocol, LastingOverrides, Mode, OnLimit, parse_output
from .limits import DEFAULT_ITERATIONS, Bounds, LimitUse
from .messages import BlobRef, ContentPart, Data, FilePart, FinishReason, Usage
from .subagents import BranchOutcome, BranchRequest, Lineage
from .tool_calls import Call, Clearance, ExternalCallPhase, Question, ToolAnswer

MODEL_ACTIVITY = "perdure.model"
TOOL_ACTIVITY_PREFIX = "tool."
"""Prefix of a tool call's activity type; the tool's name follows."""
INLINE_BYTES = 32 * 1024
"""Text up to this size stands in history; anything larger is a blob in the store and a reference in history."""
REMOTE_BYTES = 256 * 1024
"""A remote tool's arguments, and its result: both travel whole."""
OUTPUT_BYTES = 512 * 1024
"""All arguments, or all inline results, of one reply in history together; Temporal takes 2 MB at most."""


class NewMessage(Data):
    """A user message that joins the conversation."""

    kind: Literal["message"] = "message"
    content: str | BlobRef | tuple[ContentPart, ...]
    id: str | None = None
    by: str | None = None
    store_id: str | None = None
    """The store that holds ``content``, as its sender said."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is the JSON of a value of the agent's input type."""
    auth_context: str | None = None
    """On whose behalf the run acts from here on, as ``UserMessage`` has it; so ``auth_ref``. In the inbox alone."""
    auth_ref: str | None = None


class NewResult(Data):
    """A tool result: by its journal key, or as text where there is no journal entry (a refused call)."""

    kind: Literal["result"] = "result"
    call_id: str
    name: str
    key: str | None = None
    text: str | None = None
    blob: BlobRef | None = None
    """Where the text is, if it is too large for history: a subagent's answer."""
    is_error: bool = False
    decided: ApprovalOutcome | None = Field(default=None, exclude_if=operator.not_)
    """Of a call that was denied, or that nobody approved in time: who, and when. Of a callback: who approved it."""
    answered_by: str | None = None
    """Of a callback: who gave the result; empty where nobody said. ``blob`` is then what a client has named."""


NewItem = Annotated[NewMessage | NewResult, Field(discriminator="kind")]


class CallFacts(Data):
    """What every activity is told of the run that it works for."""

    agent: str
    context_id: str
    task_id: str
    scope: str
    """Journal scope: the first execution's run id of the root conversation, or the key of its parent's call."""
    op: int
    """Number of the operation in its scope; never reused."""
    iteration: int
    store_id: str | None = None
    context: dict[str, Any] | None = None
    auth_context: str | None = None
    """On whose behalf the run acts, encrypted; or ``auth_ref``, which the worker resolves."""
    auth_ref: str | None = None
    lineage: Lineage | None = Field(default=None, exclude_if=operator.not_)
    """Of a run that a call of another agent has begun: among whose events its own are."""
    is_child: bool = Field(default=False, exclude_if=operator.not_)
    """``lineage`` is confirmed by Temporal."""


class RunEnding(Data):
    """How a run ended: what the last, unpaid model activity records."""

    status: Literal["completed", "failed", "cancelled", "waiting", "paused"]
    """``waiting``: only the turn has ended; the session waits for the next message. ``paused``: nothing has ended; the
    run waits for somebody to raise ``limit``."""
    turn: Literal["completed", "failed", "cancelled"] | None = None
    """How the present turn ended, if otherwise: it may have had its answer before."""
    error_type: str | None = None
    error: str | None = None
    response: dict[str, Any] | None = None
    """A ``Response`` without messages: of a run that failed or was cancelled, what it took."""
    limit: LimitUse | None = None
    """The limit that it ended or paused at."""


class ModelInput(CallFacts):
    """Input of ``perdure.model``."""

    head: str | None = None
    new: tuple[NewItem, ...] = ()
    purpose: Literal["call", "force_finish", "close", "compact", "remind"] = "call"
    """``force_finish`` asks for the answer now, without tools; ``close`` only records what is new; ``compact`` writes
    the conversation up to ``head`` anew, shorter; ``remind`` tells of calls that still wait for somebody."""
    tighter: int | None = None
    """How often a window was halved, or how often the same step was compacted before; left out where it is 0."""
    behind: str | None = None
    """The head that an earlier try of the same step had, before it was compacted: by it those who follow know what is
    new already. Empty for none: that of a conversation which is opened again is the store's to say."""
    closing: RunEnding | None = None
    reminders: tuple[Reminder, ...] | None = None
    """With ``remind``."""
    pinned: BlobRef | None = None
    """The list of the tools of its toolsets that the run has taken."""
    overrides: dict[str, Any] | None = None
    """An ``Override``: the run's and the turn's together."""
    mode: Mode | None = None
    """None is "run": left out, as it is with most calls."""
    resume: bool | None = None
    """``head`` is not known yet: the conversation's last one in the store, if there is any."""
    resend: bool = Field(default=False, exclude_if=operator.not_)
    """What was withheld, because a model's API refused it, is sent once more."""
    used: Usage = Usage()
    """Tokens of the turn before this call, and ``cost_usd`` their cost: the store is told what a turn took."""
    cost_usd: float | None = None
    limit: LimitUse | None = None
    """With ``force_finish``: the limit that is the reason."""
    calls_left: int | None = None
    """Tool calls that limits still allow, where the run knows of such limits: inline tools heed it."""
    rejected: int | None = None
    """Answers of the turn that were not of the output type, where there were any: of so many more the run fails."""
    branches: tuple[BranchOutcome, ...] = Field(default=(), exclude_if=operator.not_)
    """What the branches came to that the step policy asked for when this step was tried before."""
    cost_limited: bool = Field(default=False, exclude_if=operator.not_)
    """Of a subagent: its parent has a limit of cost, so every reply must have one."""
    revoked: tuple[RevokedApproval, ...] = Field(default=(), exclude_if=operator.not_)
    """Standing approvals that were taken back and nobody was told of yet."""


class ReplyFailure(Data):
    """The run fails with what a paid and recorded reply came to."""

    type: str
    """Class name of the error; ``message`` is its text."""
    message: str


class FinalAnswer(Data):
    """The reply is the answer."""

    content: str
    called: bool = False
    """The finish protocol's own sign was given (a tag, or the finish tool)."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is JSON, of the agent's output type."""
    blob: BlobRef | None = None
    """Where ``content`` is, if it is too large for history and is not the reply's text."""

    @property
    def output(self) -> Any:
        """The answer as a value: plain JSON of the output type, or the text."""
        return parse_output(self.content) if self.typed else self.content


def is_large_text(text: str) -> bool:
    """Whether ``text`` has more than ``INLINE_BYTES`` as UTF-8: then a blob has it, and history a reference."""
    return len(text) * 4 > INLINE_BYTES and len(text.encode()) > INLINE_BYTES


class AgentLimits(Data):
    """The agent's limits, as its code has them now."""

    max_iterations: int = DEFAULT_ITERATIONS
    on_limit: OnLimit = "finish"
    protocol: FinishProtocol = "text"
    run: Bounds | None = Field(default=None, exclude_if=operator.not_)
    """What the run may use, all its turns together; left out where there is no limit."""
    turn: Bounds | None = Field(default=None, exclude_if=operator.not_)
    """What a turn may use, besides ``max_iterations``."""

    def count_calls_left(self, known: int | None) -> float:
        """Count the tool calls that may begin: ``known``, or before the run knows its limits all that they allow."""
        bounds = [one.tool_calls for one in (self.run, self.turn) if one is not None and one.tool_calls is not None]
        return min(bounds, default=math.inf) if known is None else known


class CompactionResult(Data):
    """What a rewrite of the conversation came to. Tokens are counted by a provider or estimated."""

    replaces: str
    """The head before; it stays in the store."""
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int


class ModelOutput(Data):
    """Output of ``perdure.model``: the new head and everything that control needs."""

    head: str | None = None
    """None only where the run ended before anything was said."""
    store_id: str | None = None
    """Set by the transcript stage, like ``head``."""
    compact: bool | None = None
    """The conversation is to be compacted before the next call; left out where it is not."""
    compacted: CompactionResult | None = None
    """Of ``purpose="compact"``; left out where there was nothing to make shorter."""
    text: str = ""
    """The reply's text; empty where it is longer than ``INLINE_BYTES`` (``blob``)."""
    blob: BlobRef | None = None
    calls: tuple[Call, ...] = ()
    finish: FinalAnswer | None = None
    rejected: bool = Field(default=False, exclude_if=operator.not_)
    """The reply was to be the answer, and will not do."""
    reminder: str | None = None
    """What the model is told of a reply that will not do, where no call has that as its result."""
    failed: ReplyFailure | None = None
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    cost_usd: float | None = None
    model: str = ""
    pinned: BlobRef | None = None
    """The list of tools that the run has taken with this call; left out where it had one, or has no toolsets."""
    unasked: bool = Field(default=False, exclude_if=operator.not_)
    """No model was asked: a hook or a step has answered in its place."""
    overrides: LastingOverrides | None = None
    """What the step policy changes from now on."""
    branches: tuple[BranchRequest, ...] = Field(default=(), exclude_if=operator.not_)
    """The step policy waits for them: no model was asked, nothing is recorded, and the same step is tried again."""
    limits: AgentLimits = AgentLimits()
    indexed: tuple[str, ...] | None = None
    """Search attributes that the namespace has, of those in :mod:`.indexing`: said with the first reply of a turn and
    with one that asks for approval, by the worker that hands it over. No part of the recorded outcome."""
    noted: bool = Field(default=False, exclude_if=operator.not_)
    """Said together with ``indexed``: what waits is to be kept in the memo too."""

    @property
    def answer_blob(self) -> BlobRef | None:
        """Where the answer is, if it is too large for history: of the finish tool apart from the reply's text."""
        if self.finish is not None and (self.finish.blob is not None or self.limits.protocol == "tool"):
            return self.finish.blob
        return self.blob


class ToolInput(CallFacts):
    """Input of a tool activity."""

    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    head: str | None = None
    """The node whose assistant message asks for the call."""
    definition: str = ""
    idempotent: bool = False
    toolset: str | None = None
    """Of which toolset the tool is; left out where it is the agent's own."""
    retries: int | None = None
    """See ``AsActivity.retries``; the journal counts, because Temporal's attempts may end before the tool begins."""
    approval: ApprovalOutcome | None = Field(default=None, exclude_if=operator.not_)
    """Who approved the call, where it was asked for: for these arguments and no others."""
    answers: tuple[ToolAnswer, ...] = Field(default=(), exclude_if=operator.not_)
    """What the call was answered so far (``ctx.ask``), in order."""
    side: ExternalCallPhase | None = Field(default=None, exclude_if=operator.not_)
    """Of a call that is run elsewhere: what is to be done here, before it or after it."""


class ToolOutput(Data):
    """Output of a tool activity."""

    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    files: tuple[FilePart, ...] = Field(default=(), exclude_if=operator.not_)
    """Images and files, in the store. Left out where there are none: the same outcome is the same bytes as before."""
    status: Literal["done", "unknown", "cancelled", "aborted", "asking", "cleared"] = "done"
    """``aborted``: the tool, or a hook of it, ended the run; ``content`` is the error's text. ``asking``: the call is
    run again when somebody has answered ``question``. ``cleared``: it may be handed over to whoever runs it."""
    question: Question | None = None
    cleared: Clearance | None = Field(default=None, exclude_if=operator.not_)
