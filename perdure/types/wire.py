"""What crosses Temporal between the workflow and its activities: the one input and one output of each.

Plain JSON, as in :mod:`.interface`, so that anybody can read a history.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from .interface import FinishProtocol, Mode, OnLimit
from .messages import BlobRef, ContentPart, Data, FilePart, FinishReason, Usage

MODEL_ACTIVITY = "perdure.model"
TOOL_ACTIVITY = "tool."
"""Prefix of a tool call's activity type; the tool's name follows."""
INLINE_BYTES = 32 * 1024
"""Text up to this size stands in history; anything larger is a blob in the store and a reference in history."""
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


class NewResult(Data):
    """A tool result: by its journal key, or as text where there is no journal entry (a refused call)."""

    kind: Literal["result"] = "result"
    call_id: str
    name: str
    key: str | None = None
    text: str | None = None
    is_error: bool = False


New = Annotated[NewMessage | NewResult, Field(discriminator="kind")]


class CallFacts(Data):
    """What every activity is told of the run that it works for."""

    agent: str
    context_id: str
    task_id: str
    scope: str
    """Journal scope: the first execution's run id of the root conversation, or the parent's key."""
    op: int
    """Number of the operation in its scope; never reused."""
    iteration: int
    store_id: str | None = None
    context: dict[str, Any] | None = None


class Closing(Data):
    """How a run ended: what the last, unpaid model activity records."""

    status: Literal["completed", "failed", "cancelled", "waiting"]
    """``waiting``: only the turn has ended; the session waits for the next message."""
    turn: Literal["completed", "failed", "cancelled"] | None = None
    """How the present turn ended, if otherwise: it may have had its answer before."""
    error_type: str | None = None
    error: str | None = None
    response: dict[str, Any] | None = None
    """A ``Response`` without messages: of a run that failed or was cancelled, what it took."""


class ModelInput(CallFacts):
    """Input of ``perdure.model``."""

    head: str | None = None
    new: tuple[New, ...] = ()
    purpose: Literal["call", "force_finish", "close", "compact"] = "call"
    """``force_finish`` asks for the answer now, without tools; ``close`` only records what is new; ``compact`` writes
    the conversation up to ``head`` anew, shorter."""
    tighter: int | None = None
    """How often a window was halved, or how often the same step was compacted before; left out where it is 0."""
    closing: Closing | None = None
    overrides: dict[str, Any] | None = None
    """An ``Override``: the run's and the turn's together."""
    mode: Mode | None = None
    """None is "run": left out, as it is with most calls."""
    resume: bool | None = None
    """``head`` is not known yet: the conversation's last one in the store, if there is any."""
    used: Usage = Usage()
    """Tokens of the turn before this call, and ``cost_usd`` their cost: the store is told what a turn took."""
    cost_usd: float | None = None


class Refused(Data):
    """The call does not run; the model is told why."""

    kind: Literal["refused"] = "refused"
    text: str


class AsActivity(Data):
    """The call is a Temporal activity of its own."""

    kind: Literal["activity"] = "activity"
    timeout: float
    """Seconds that one attempt may take."""
    idempotent: bool = False
    retries: int | None = None
    """How often it may run again after a lost worker or ``Retry``; None is without bound."""
    task_queue: str | None = None
    inline: bool = False
    """The tool may run inside the model activity; it did not, for want of time."""


class Inline(Data):
    """The call ran inside the model activity; its outcome is in the journal."""

    kind: Literal["inline"] = "inline"
    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    aborted: str | None = None
    """The call ended the run: the error's text, as of ``ToolOutput.status``."""


class AsSubagent(Data):
    """The call is a child workflow of another agent."""

    kind: Literal["subagent"] = "subagent"
    agent: str
    message: str


Disposition = Annotated[Refused | AsActivity | Inline | AsSubagent, Field(discriminator="kind")]


class Call(Data):
    """A tool call of the reply, with what is to become of it, from the code that showed the model the schema."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None: too large for history; it is read from the transcript node."""
    definition: str = ""
    """Hash of the tool's definition that the model saw."""
    disposition: Disposition


class Finish(Data):
    """The reply is the answer."""

    content: str
    called: bool = False
    """The finish protocol's own sign was given (a tag, or the finish tool)."""


class AgentLimits(Data):
    """The agent's limits, as its code has them now."""

    max_iterations: int = 50
    on_limit: OnLimit = "finish"
    protocol: FinishProtocol = "text"


class Compacted(Data):
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
    compacted: Compacted | None = None
    """Of ``purpose="compact"``; left out where there was nothing to make shorter."""
    text: str = ""
    """The reply's text; empty where it is longer than ``INLINE_BYTES`` (``blob``)."""
    blob: BlobRef | None = None
    calls: tuple[Call, ...] = ()
    finish: Finish | None = None
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    cost_usd: float | None = None
    model: str = ""
    limits: AgentLimits = AgentLimits()


class ToolInput(CallFacts):
    """Input of a tool activity."""

    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    head: str | None = None
    """The node whose assistant message asks for the call."""
    definition: str = ""
    idempotent: bool = False
    retries: int | None = None
    """See ``AsActivity.retries``; the journal counts, because Temporal's attempts may end before the tool begins."""


class ToolOutput(Data):
    """Output of a tool activity."""

    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    files: tuple[FilePart, ...] = Field(default=(), exclude_if=operator.not_)
    """Images and files, in the store. Left out where there are none: the same outcome is the same bytes as before."""
    status: Literal["done", "unknown", "cancelled", "aborted"] = "done"
    """``aborted``: the tool, or a hook of it, ended the run; ``content`` is the error's text."""
