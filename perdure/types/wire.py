"""What crosses Temporal: the start, the messages, and the one input and one output of each activity.

All of it is plain JSON under Temporal's default converter, so any client in any language can read a history and
start or steer a run. Whoever receives it parses it here; nothing else reads the raw dictionaries.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .duration import Seconds
from .messages import BlobRef, Data, FinishReason, Message, Usage

WORKFLOW = "AgentWorkflow"
MODEL_ACTIVITY = "perdure.model"
TOOL_ACTIVITY = "tool."
"""Prefix of a tool call's activity type; the tool's name follows."""
INLINE_BYTES = 32 * 1024
"""Text up to this size stands in history; anything larger is a blob in the store and a reference in history."""
OUTPUT_BYTES = 512 * 1024
"""All arguments, or all inline results, of one reply in history together; Temporal takes 2 MB at most."""

Mode = Literal["run", "session"]
OnLimit = Literal["finish", "return", "error"]
FinishProtocol = Literal["text", "tag"]


class Strict(Data):
    """Input from outside: an unknown field is a mistake that somebody should hear of."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Override(Strict):
    """What one call, or one turn, changes of its agent. What is left out stays as the agent has it."""

    model: str | None = None
    """``"<provider>:<model>"``."""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the agent's tools that are offered; the others are not."""
    settings: dict[str, Any] | None = None
    """Merged over the agent's; None takes a setting away."""
    provider_options: dict[str, Any] | None = None
    """Merged over the agent's."""
    finish: FinishProtocol | None = None
    max_iterations: int | None = Field(default=None, ge=1)
    on_limit: OnLimit | None = None


class UserMessage(Strict):
    """A message from a user. ``content`` is text, or where it is kept in the store.

    None asks for a turn without a message: the model is called on the conversation as it stands.
    """

    content: str | BlobRef | None
    id: str | None = Field(default=None, max_length=200)
    """The sender's id: the same id counts once."""
    by: str | None = Field(default=None, max_length=200)
    """Who sent it, as the sender says."""
    task_id: str | None = Field(default=None, min_length=1, max_length=200)
    """Id of the turn, if this message opens one; it gets one without."""
    override: Override | None = None
    """What the turn changes of the agent, from its next model call on."""
    store_id: str | None = Field(default=None, max_length=100)
    """The store that holds ``content``, where it is kept in one."""


class Start(Strict):
    """The workflow's input: ``{"agent": "support", "message": "hi"}``."""

    agent: str = Field(min_length=1, max_length=200)
    message: str | UserMessage | None = None
    """Without one the run waits for the first."""
    mode: Mode = "run"
    context: dict[str, Any] | None = None
    """The author's own data of the run."""
    history: str | None = Field(default=None, max_length=100)
    """Head of the transcript to go on from."""
    resume: bool = False
    """Go on from where the conversation of this id ended, if there is one in the store."""
    idle_timeout: Seconds | None = None
    """A session that waits this long for a message closes; seconds, or text like ``"1h"``."""
    override: Override | None = None
    """What the whole run changes of its agent."""
    store_id: str | None = Field(default=None, max_length=100)
    """The store that holds ``history`` and blobs of the message."""
    max_history_events: int | None = Field(default=None, gt=10)
    """Continue as new past this many events; Temporal's own suggestion always counts."""


# --- what a model call is given that is new since its head -------------------------------------------------------


class NewMessage(Data):
    """A user message that joins the conversation."""

    kind: Literal["message"] = "message"
    content: str | BlobRef
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


# --- activities ------------------------------------------------------------------------------------------------


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
    purpose: Literal["call", "force_finish", "close"] = "call"
    """``force_finish`` asks for the answer now, without tools; ``close`` only records what is new."""
    closing: Closing | None = None
    overrides: dict[str, Any] | None = None
    """An ``Override``: the run's and the turn's together."""
    mode: Mode = "run"
    resume: bool = False
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


class ModelOutput(Data):
    """Output of ``perdure.model``: the new head and everything that control needs."""

    head: str | None = None
    """None only where the run ended before anything was said."""
    store_id: str | None = None
    """Set by the transcript stage, like ``head``."""
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
    status: Literal["done", "unknown", "cancelled"] = "done"


# --- results and views -----------------------------------------------------------------------------------------


class Response(Data):
    """What a run came to. ``messages`` is empty until a client that has the store loads it."""

    content: str = ""
    """The answer."""
    blob: BlobRef | None = None
    """Where the answer is, if it is too large for history; clients with the store fill ``content`` from it."""
    output: Any = None
    """The typed output; the content for ``output=str``."""
    iterations: int = 0
    """Model calls of the turn."""
    usage: Usage = Usage()
    """Tokens of the turn."""
    calls: int = 0
    """Model calls that were paid for."""
    cost_usd: float | None = None
    """Cost of the turn; None where a price is not known."""
    finish_reason: FinishReason | Literal["limit", "interrupted"] = "stop"
    """Why the turn ended: as the provider says of its last reply, or a limit, or an interrupt."""
    finish_called: bool = False
    """Whether the model gave the finish protocol's own sign (the tag)."""
    context_id: str = ""
    """Id of the conversation."""
    task_id: str = ""
    """Id of the turn."""
    head: str | None = None
    """Where the conversation ends now: the hash of its last node in the store."""
    store_id: str | None = None
    """Id of the store that has it."""
    messages: tuple[Message, ...] = ()
    """The conversation up to ``head``."""


class TurnStatus(Data):
    """How a turn stands: answer of the ``turn`` query."""

    task_id: str
    state: Literal["running", "completed", "failed", "cancelled", "unknown"]
    """``unknown``: it was too long ago, and the store knows more; or there never was such a turn."""
    response: Response | None = None
    """Of a turn that has ended well, without messages."""
    error_type: str | None = None
    """Class name of what a turn failed with; ``error`` is its message."""
    error: str | None = None


class ChildStatus(Data):
    """A tool call in flight."""

    call_id: str
    name: str
    kind: str


class Status(Data):
    """What a run is at: answer of the ``status`` query."""

    state: Literal["running", "waiting", "paused", "completed", "failed", "cancelled"]
    """``waiting`` for a message, ``paused`` until an operator resumes it; or how the run ended."""
    doing: Literal["model", "tools", "message", "closing", "nothing"] = "nothing"
    """What it is at, or waits for."""
    since: str | None = None
    """When that began: ISO 8601, UTC."""
    reason: str | None = None
    """Why it is paused or stuck."""
    agent: str
    context_id: str
    task_id: str | None = None
    mode: Mode = "run"
    iteration: int = 0
    turn: int = 0
    head: str | None = None
    store_id: str | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None
    calls: tuple[ChildStatus, ...] = ()
    queued: int = 0
    """Injected messages that the model has not seen yet."""
    refused: tuple[str, ...] = ()
    """What was signalled but could not be understood, last ten."""
