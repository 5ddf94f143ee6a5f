"""The inputs and outputs of the activities: one of each per activity.

Plain JSON, as in :mod:`.interface`, so that a history is readable.
"""

import math
import operator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .approvals import ApprovalOutcome, Reminder, RevokedApproval
from .client_tools import ClientTools
from .interface import FinishProtocol, LastingOverrides, Mode, OnLimit, OperatorPause, parse_output
from .limits import DEFAULT_ITERATIONS, Bounds, LimitUse
from .messages import NO_USAGE, BlobRef, ContentPart, Data, FilePart, FinishReason, Usage
from .plain_json import is_none
from .schema_version import schema_version_field
from .subagents import BranchOutcome, BranchRequest, Lineage
from .tool_calls import Call, Clearance, ExternalCallPhase, Question, ToolAnswer

MODEL_ACTIVITY = "perdure.model"
"""Calls the model with what is new, and records its reply."""
COMPACT_ACTIVITY = "perdure.compact"
"""Rewrites the conversation up to the head to a shorter one."""
CLOSE_ACTIVITY = "perdure.close"
"""Records new items, and how the run or its turn ended."""
REMIND_ACTIVITY = "perdure.remind"
"""Reports calls that still wait for a person."""
COLLECT_ACTIVITY = "perdure.collect"
"""Reads what an activity had recorded that ended without a result."""
NOTHING_RECORDED = "nothing recorded"
"""Detail of the failure or cancellation of an activity whose own code knows that the journal has nothing of it."""
ENGINE_ACTIVITY_PREFIX = "perdure."
TOOL_ACTIVITY_PREFIX = "tool."
"""Prefix of a tool call's activity type; the tool's name follows."""
REMOTE_BYTES = 256 * 1024
"""Most bytes of a remote tool's arguments, and of its result: both are sent as a whole."""
OUTPUT_BYTES = 512 * 1024
"""Most bytes in history of all arguments, or all inline results, of one reply; Temporal accepts 2 MB."""


class NewMessage(Data):
    """A user message that joins the conversation."""

    kind: Literal["message"] = "message"
    content: str | BlobRef | tuple[ContentPart, ...]
    id: str | None = None
    by: str | None = None
    store_id: str | None = None
    """Id of the store that holds ``content``, as given by its sender."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is the JSON of a value of the agent's input type."""
    auth_context: str | None = None
    """Identity on whose behalf the run acts from here on, as in ``UserMessage``; so ``auth_ref``. Only in the inbox."""
    auth_ref: str | None = None
    on_behalf_of: str | None = Field(default=None, exclude_if=is_none)
    """As in ``UserMessage``."""


class NewResult(Data):
    """A tool result: its journal key, or its text if it has no journal entry (a refused call)."""

    kind: Literal["result"] = "result"
    call_id: str
    name: str
    key: str | None = None
    text: str | None = None
    blob: BlobRef | None = None
    """Reference to the text, if it is too large for history: a subagent's answer."""
    is_error: bool = False
    decided: ApprovalOutcome | None = Field(default=None, exclude_if=operator.not_)
    """For a call that was denied or whose request expired: who decided, and when. For a callback: who approved it."""
    answered_by: str | None = None
    """For a callback: who gave the result; empty if unknown. ``blob`` is then given by the client."""


NewItem = Annotated[NewMessage | NewResult, Field(discriminator="kind")]


class CallFacts(Data):
    """Input of every activity: facts about its run."""

    agent: str
    context_id: str
    task_id: str
    scope: str
    """Journal scope: the first execution's run id of the root conversation, or the key of its parent's call."""
    op: int
    """Number of the operation in its scope; never reused."""
    iteration: int
    schema_version: int = schema_version_field()
    store_id: str | None = None
    context: dict[str, Any] | None = None
    auth_context: str | None = None
    """Identity on whose behalf the run acts, encrypted; or ``auth_ref``, which the worker resolves."""
    auth_ref: str | None = None
    caller: str | None = Field(default=None, exclude_if=is_none)
    """Who has sent the message that the run works on."""
    tenant: str | None = Field(default=None, exclude_if=is_none)
    """The tenant and the user whose run it is."""
    user: str | None = Field(default=None, exclude_if=is_none)
    lineage: Lineage | None = Field(default=None, exclude_if=operator.not_)
    """For a run that a call of another agent has started: the path by which its events are placed."""
    is_child: bool = Field(default=False, exclude_if=operator.not_)
    """``lineage`` is confirmed by Temporal."""


class RunEnding(Data):
    """How a run ended: recorded by the last, unpaid model activity."""

    status: Literal["completed", "failed", "cancelled", "waiting", "paused"]
    """``waiting``: only the turn has ended; the session waits for the next message. ``paused``: nothing has ended; the
    run waits until ``limit`` is raised."""
    turn: Literal["completed", "failed", "cancelled"] | None = None
    """How the present turn ended, if differently: its answer may have come before."""
    error_type: str | None = None
    error: str | None = None
    response: dict[str, Any] | None = None
    """A ``Response`` without messages; for a run that failed or was cancelled, its usage."""
    limit: LimitUse | None = None
    """The limit at which it ended or paused."""
    pause: OperatorPause | None = Field(default=None, exclude_if=is_none)
    """The client's request for which it is ``paused``; with ``waiting`` that by which it was resumed: nothing has
    ended."""
    stays_paused: OperatorPause | None = Field(default=None, exclude_if=is_none)
    """With ``waiting``: the client's request for which the session stays paused, although its turn has ended."""


class ConversationFacts(CallFacts):
    """Input of an activity that adds to the conversation."""

    head: str | None = None
    resume: bool | None = None
    """``head`` is not known yet: the conversation's last one in the store, if there is one."""


class RequestFacts(ConversationFacts):
    """Input of an activity that sends a request of the agent to a model."""

    pinned: BlobRef | None = None
    """The pinned list of the tools of its toolsets."""
    overrides: dict[str, Any] | None = None
    """An ``Override``: the run's and the turn's together."""
    caller_overrides: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    """A ``CallerOverride``, likewise: the agent says what of it counts."""
    is_external: bool = Field(default=False, exclude_if=operator.not_)
    """A caller of a service has sent a message of the turn: an internal agent refuses it."""
    client_tools: ClientTools | None = Field(default=None, exclude_if=is_none)
    """Tools that the turn's client has declared."""
    cost_limited: bool = Field(default=False, exclude_if=operator.not_)
    """For a subagent: its parent has a limit of cost, so every reply must have a cost."""


class ModelInput(RequestFacts):
    """Input of ``perdure.model``."""

    activity: ClassVar[str] = MODEL_ACTIVITY

    new: tuple[NewItem, ...] = ()
    window_halvings: int | None = None
    """How often a window was halved; left out if 0."""
    refused_head: str | None = None
    """The head of an earlier try of the same step before it was compacted: followers use it to recognise what they
    already have. Empty for none: the store has the head of a conversation that is opened again."""
    mode: Mode | None = None
    """None means "run": left out, as in most calls."""
    resend: bool = Field(default=False, exclude_if=operator.not_)
    """Content that was withheld because a model's API refused it is sent once more."""
    used: Usage = NO_USAGE
    """Tokens of the turn before this call, and ``cost_usd`` their cost: the store records what a turn used."""
    cost_usd: float | None = None
    limit: LimitUse | None = None
    """The limit for which the model has to answer now, without tools."""
    calls_left: int | None = None
    """Tool calls that limits still allow, if the run has such limits: inline tools respect it."""
    rejected: int | None = None
    """Answers of the turn that did not fit the output type, if any: at the allowed number the run fails."""
    cut: int | None = Field(default=None, exclude_if=operator.not_)
    """Replies before this one, in a row, that the output limit cut: at the allowed number the run fails."""
    branches: tuple[BranchOutcome, ...] = Field(default=(), exclude_if=operator.not_)
    """Outcomes of the branches that the step policy requested when this step was tried before."""
    revoked: tuple[RevokedApproval, ...] = Field(default=(), exclude_if=operator.not_)
    """Revoked standing approvals that no event has reported yet."""

    @property
    def is_forced(self) -> bool:
        """Whether the model has to answer now: the loop runs no call of its reply."""
        return self.limit is not None


class CompactInput(RequestFacts):
    """Input of ``perdure.compact``."""

    activity: ClassVar[str] = COMPACT_ACTIVITY

    rewrites: int | None = None
    """How often the same step was compacted before; left out if 0. Each time less is kept."""
    warned: bool = Field(default=False, exclude_if=operator.not_)
    """An earlier summary of the run had a ``warning``."""


class CloseInput(ConversationFacts):
    """Input of ``perdure.close``."""

    activity: ClassVar[str] = CLOSE_ACTIVITY

    new: tuple[NewItem, ...] = ()
    closing: RunEnding | None = None
    revoked: tuple[RevokedApproval, ...] = Field(default=(), exclude_if=operator.not_)
    """As in :class:`ModelInput`."""


class RemindInput(CallFacts):
    """Input of ``perdure.remind``."""

    activity: ClassVar[str] = REMIND_ACTIVITY

    head: str | None = None
    reminders: tuple[Reminder, ...] = ()


class TurnFailure(Data):
    """Why the turn failed; of a model call's output: the run fails because of a paid and recorded reply."""

    type: str
    """Class name of the error; ``message`` is its text."""
    message: str


class FinalAnswer(Data):
    """The reply is the answer."""

    content: str
    called: bool = False
    """The model used the finish protocol (a tag, or the finish tool)."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is JSON, of the agent's output type."""
    blob: BlobRef | None = None
    """Reference to ``content``, if it is too large for history and is not the reply's text."""

    @property
    def output(self) -> Any:
        """The answer as a value: plain JSON of the output type, or the text."""
        return parse_output(self.content) if self.typed else self.content


class AgentLimits(Data):
    """The agent's limits, as defined by its present code."""

    max_iterations: int = DEFAULT_ITERATIONS
    on_limit: OnLimit = "finish"
    protocol: FinishProtocol = "text"
    run: Bounds | None = Field(default=None, exclude_if=operator.not_)
    """Limits of the run with all its turns; left out without limits."""
    turn: Bounds | None = Field(default=None, exclude_if=operator.not_)
    """Limits of a turn besides ``max_iterations``."""

    def count_calls_left(self, known: int | None) -> float:
        """Count the tool calls that may begin: ``known``, or before the run knows its limits all that they allow."""
        bounds = [one.tool_calls for one in (self.run, self.turn) if one is not None and one.tool_calls is not None]
        return min(bounds, default=math.inf) if known is None else known


class CompactionResult(Data):
    """The result of a rewrite of the conversation. Tokens are counted by a provider or estimated."""

    replaces: str
    """The head before; it stays in the store."""
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    warning: str | None = Field(default=None, exclude_if=is_none)
    """The conversation remains so long that the next summary is due soon: reported once in a run."""


class ConversationOutput(Data):
    """Output of an activity that adds to the conversation."""

    head: str | None = None
    """None only if the run ended before its first message."""
    store_id: str | None = None
    """Set by the transcript stage, like ``head``."""
    tenant: str | None = Field(default=None, exclude_if=is_none)
    """The tenant of that conversation, and its ``user``, if the run was started without them."""
    user: str | None = Field(default=None, exclude_if=is_none)
    schema_version: int = schema_version_field()


class CloseOutput(ConversationOutput):
    """Output of ``perdure.close``."""


class CompactOutput(ConversationOutput):
    """Output of ``perdure.compact``."""

    compacted: CompactionResult | None = None
    """Left out if nothing could be shortened."""
    pinned: BlobRef | None = None
    """As in :class:`ModelOutput`."""
    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    model: str = ""


class RemindOutput(Data):
    """Output of ``perdure.remind``."""

    schema_version: int = schema_version_field()


class ModelOutput(ConversationOutput):
    """Output of ``perdure.model``: the new head and everything that the loop needs."""

    compact: bool | None = None
    """The conversation must be compacted before the next call; left out otherwise."""
    text: str = ""
    """The reply's text; empty if it is longer than ``INLINE_BYTES`` (``blob``)."""
    blob: BlobRef | None = None
    calls: tuple[Call, ...] = ()
    finish: FinalAnswer | None = None
    rejected: bool = Field(default=False, exclude_if=operator.not_)
    """The reply should be the answer, but is not valid."""
    cut: bool = Field(default=False, exclude_if=operator.not_)
    """The output limit cut the reply within a call, or before it had an answer or a call."""
    reminder: str | None = None
    """Message to the model about an invalid or cut reply, if no call has it as its result."""
    failed: TurnFailure | None = None
    finish_reason: FinishReason = "stop"
    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    model: str = ""
    pinned: BlobRef | None = None
    """The pinned list of tools that the run took with this call; left out if it had one, or has no toolsets."""
    is_synthetic: bool = Field(default=False, exclude_if=operator.not_)
    """No model was called: a hook or a step answered in its place."""
    overrides: LastingOverrides | None = None
    """Changes of the step policy from now on."""
    branches: tuple[BranchRequest, ...] = Field(default=(), exclude_if=operator.not_)
    """The step policy waits for them: no model was called, nothing is recorded, and the same step is tried again."""
    limits: AgentLimits = AgentLimits.model_construct()
    search_attributes: tuple[str, ...] | None = None
    """Search attributes of the namespace (:data:`.interface.SEARCH_ATTRIBUTES`): reported with the first reply of a
    turn and with one that asks for approval, by the worker that returns it. Not part of the recorded outcome."""
    memo_is_written: bool = Field(default=False, exclude_if=operator.not_)
    """Reported with ``search_attributes``: the pending calls are to be kept in the memo, too."""

    @property
    def answer_blob(self) -> BlobRef | None:
        """Reference to the answer, if it is too large for history: with the finish tool it is separate from the reply's
        text."""
        if self.finish is not None and (self.finish.blob is not None or self.limits.protocol == "tool"):
            return self.finish.blob
        return self.blob


class ToolInput(CallFacts):
    """Input of a tool activity."""

    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    head: str | None = None
    """The node whose assistant message has the call."""
    definition: str = ""
    idempotent: bool = False
    toolset: str | None = None
    """The tool's toolset; left out for the agent's own tools."""
    retries: int | None = None
    """See ``ActivityCall.retries``; the journal counts, because Temporal's attempts may end before the tool starts."""
    approval: ApprovalOutcome | None = Field(default=None, exclude_if=operator.not_)
    """The approval of the call, if it needed one: for these arguments and no others."""
    answers: tuple[ToolAnswer, ...] = Field(default=(), exclude_if=operator.not_)
    """The answers to the call so far (``ctx.ask``), in order."""
    side: ExternalCallPhase | None = Field(default=None, exclude_if=operator.not_)
    """For an external call: what to do before it or after it."""

    @property
    def activity(self) -> str:
        """The type of the activity that runs the call."""
        return f"{TOOL_ACTIVITY_PREFIX}{self.name}"


class ToolOutput(Data):
    """Output of a tool activity."""

    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    files: tuple[FilePart, ...] = Field(default=(), exclude_if=operator.not_)
    """Images and files, in the store. Left out if there are none: an equal outcome must have equal bytes."""
    status: Literal["done", "unknown", "cancelled", "aborted", "asking", "cleared"] = "done"
    """``aborted``: the tool, or a hook of it, ended the run; ``content`` is the error's text. ``asking``: the call runs
    again when ``question`` is answered. ``cleared``: it may be handed over to the external worker or client."""
    question: Question | None = None
    cleared: Clearance | None = Field(default=None, exclude_if=operator.not_)
    schema_version: int = schema_version_field()


class CollectInput(Data):
    """Input of ``perdure.collect``: the input of the activity that ended without a result."""

    model: ModelInput | None = None
    compact: CompactInput | None = None
    close: CloseInput | None = None
    tool: ToolInput | None = None
    closing: bool = Field(default=False, exclude_if=operator.not_)
    """The run stops: tool calls without an outcome are closed. Otherwise they may still run, as calls of their own."""
    schema_version: int = schema_version_field()

    @property
    def facts(self) -> ModelInput | CompactInput | CloseInput | ToolInput:
        """The input, whichever it is."""
        facts = self.model or self.compact or self.close or self.tool
        assert facts is not None, "what is collected has an input"
        return facts


class CollectOutput(Data):
    """Output of ``perdure.collect``: what the journal has of that activity; none if it has nothing."""

    model: ModelOutput | None = None
    compact: CompactOutput | None = None
    close: CloseOutput | None = None
    tool: ToolOutput | None = None
    schema_version: int = schema_version_field()


def get_collected_field(activity: str) -> str:
    """Return the field of ``CollectInput`` and ``CollectOutput`` for an activity of this type."""
    return activity.removeprefix(ENGINE_ACTIVITY_PREFIX) if activity.startswith(ENGINE_ACTIVITY_PREFIX) else "tool"
