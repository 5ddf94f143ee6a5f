"""What the outside says and sees, plain JSON under Temporal's default converter: the start, messages, answers, status.

Any client in any language can send and read it. Whoever receives it parses it here; nothing else reads the raw
dictionaries.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .approvals import DecidedApproval, PendingApproval, StandingApproval
from .limits import Bounds, Count, LimitUse, RunLimits, Seconds
from .messages import CALL_ID_CHARS, NAME_CHARS, RUN_ID_CHARS, BlobRef, ContentPart, Data, FinishReason, Message, Usage
from .plain_json import JsonObject, parse_json
from .subagents import BackgroundStatus, Lineage

# ---
# On whose behalf a run acts, as it travels: a token that only workers with the key can read, or a reference.


AUTH_TOKEN_PREFIX = "perdure1"  # noqa: S105  # no secret
"""What a token begins with: ``perdure1:<key id>:<fingerprint of the key>:<base64>``."""
AUTH_TOKEN_CHARS = 16 * 1024
"""Of a token; every activity is told it."""
AUTH_REF_CHARS = 1000


def is_auth_token(given: Any) -> bool:
    """Whether ``given`` looks like a token of ours. It may not open."""
    return isinstance(given, str) and given.startswith(f"{AUTH_TOKEN_PREFIX}:") and given.count(":") == 3


def _require_sealed_token(given: Any) -> Any:
    """Temporal has what comes in the clear already. Refused all the same, so that nobody gets used to it."""
    if given is None or is_auth_token(given):
        return given
    raise PydanticCustomError(
        "auth_context_in_the_clear",
        "it is readable in Temporal's history, where no secret may be: send an auth_ref, which the worker resolves, "
        "or use perdure's client, which encrypts it",
    )


# A bound on the length stands at the text: at `str | None` pydantic raises TypeError for an explicit null.
AuthToken = Annotated[Annotated[str, Field(max_length=AUTH_TOKEN_CHARS)] | None, BeforeValidator(_require_sealed_token)]
AuthRef = Annotated[str, Field(min_length=1, max_length=AUTH_REF_CHARS)] | None


def check_single_auth(raw: Any) -> Any:
    """For a validator before the others: of the two, one."""
    if isinstance(raw, Mapping) and raw.get("auth_context") is not None and raw.get("auth_ref") is not None:
        raise PydanticCustomError("auth_context_and_ref", "there is auth_context or auth_ref, not both")
    return raw


# ---
# Search attributes and memo: what Temporal can be asked about runs, besides their ids and times.


AGENT_ATTRIBUTE = "PerdureAgent"
"""The agent's name. Clients give it to the runs that they start, parents to their children."""
STATUS_ATTRIBUTE = "PerdureStatus"
"""An :data:`IndexedStatus`."""
PENDING_ATTRIBUTE = "PerdurePendingApprovals"
"""How much waits for a person in the run: the length of ``Status.approvals``."""

SEARCH_ATTRIBUTES: dict[str, Literal["Keyword", "Int"]] = {
    AGENT_ATTRIBUTE: "Keyword",
    STATUS_ATTRIBUTE: "Keyword",
    PENDING_ATTRIBUTE: "Int",
}
"""Their types, as Temporal calls them."""

WAITING_MEMO = "PerdureWaiting"
"""Key of the memo for what waits for a person in the run: a list like ``Status.approvals``, without how often was
reminded. It is whole, or it is not there: the run itself always says it (the query ``status``)."""
WAITING_MEMO_BYTES = 40 * 1024
"""Of that list, as JSON: the whole memo stands in a row of visibility, which has 64 KiB in MySQL."""
WAITING_MEMO_CALLS = 50
"""In that list: with each that is decided on, what still waits is written once more."""

TURN_MEMO = "PerdureTurn"
"""Key of the memo for the ``task_id`` of a turn, empty before the first. Nothing here reads it. It is written by
workflow tasks that brought something and have no other command, so that they have one: a turn may have begun since."""

IndexedStatus = Literal["running", "waiting", "paused"]
"""Of an open run: at work, or between two turns; waiting for a person; paused until somebody resumes it. It stays as it
was last when the run ends: ``ExecutionStatus`` says that."""


WORKFLOW_TYPE = "AgentWorkflow"
READ_ERROR_TYPE = "Read"
"""Type of the error with which the update ``read`` is refused: its details are ``{"answer", "asker"}``."""
Mode = Literal["run", "session"]
RunPhase = Literal["model", "compacting", "tools", "branches", "approval", "answer", "message", "closing", "nothing"]
OnLimit = Literal["finish", "return", "error", "pause"]
FinishProtocol = Literal["text", "tag", "tool"]
MAX_SENDERS = 4096
"""People who may write to a run in one turn, those who wrote to the runs above it included. All are remembered: none
of them may approve what they asked for where the approval is separate."""
FINISH_TOOL = "__finish__"
"""The tool that ends a task under ``finish="tool"``: its arguments are the answer."""


class StrictInput(Data):
    """Input from outside: an unknown field is a mistake that somebody should hear of."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Override(StrictInput):
    """What one call, or one turn, changes of its agent. What is left out stays as the agent has it."""

    model: str | tuple[str, ...] | None = None
    """``"<provider>:<model>"``, or a chain of them."""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the agent's tools that are offered; the others are not."""
    settings: JsonObject | None = None
    """Merged over the agent's; None takes a setting away."""
    provider_options: JsonObject | None = None
    """Merged over the agent's."""
    finish: FinishProtocol | None = None
    max_iterations: Count | None = None
    on_limit: OnLimit | None = None
    limits: RunLimits | None = None
    """Put in the place of the agent's, one by one."""

    @field_validator("model", mode="before")
    @classmethod
    def _check_model(cls, model: Any) -> Any:
        listed = model if isinstance(model, list | tuple) else (model or "",)
        if not all(isinstance(one, str) for one in listed):
            raise ValueError("it is the name of a model, or a list of names")
        return model


class UserMessage(StrictInput):
    """A message from a user. ``content`` is text, where it is kept in the store, or parts: texts and files.

    None asks for a turn without a message: the model is called on the conversation as it stands. ``input`` stands in
    the place of ``content`` for an agent with an input type: ``{"input": {"question": "…"}}``.
    """

    content: str | BlobRef | tuple[ContentPart, ...] | None
    input: JsonObject | None = None
    """Of the agent's input type, as plain JSON."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is the JSON of such an input: where it is kept in the store, or as a run carries it."""
    id: str | None = Field(default=None, max_length=NAME_CHARS)
    """The sender's id: the same id counts once."""
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who sent it, as the sender says."""
    task_id: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    """Id of the turn, if this message opens one; it gets one without."""
    override: Override | None = None
    """What the turn changes of the agent, from its next model call on."""
    store_id: str | None = Field(default=None, max_length=100)
    """The store that holds ``content``, where it is kept in one."""
    auth_context: AuthToken = None
    """On whose behalf the run acts from this message on: encrypted by perdure's client."""
    auth_ref: AuthRef = None
    """The same as a reference, for any client: the worker resolves it."""

    @model_validator(mode="before")
    @classmethod
    def _check_content_or_input(cls, raw: Any) -> Any:
        raw = check_single_auth(raw)
        if not isinstance(raw, Mapping) or raw.get("input") is None:
            return raw
        if raw.get("content") is not None:
            raise PydanticCustomError("content_and_input", "a message has content or input, not both")
        return {**raw, "content": None}


NameHash = Annotated[str, Field(max_length=64)]


class Parent(Data):
    """Whose call a subagent answers, as its parent says. Fields of a newer engine are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    context_id: str = Field(min_length=1, max_length=RUN_ID_CHARS)
    call_id: str = Field(max_length=CALL_ID_CHARS)
    scope: str = Field(min_length=1, max_length=NAME_CHARS)
    """The journal scope of the child: the key of the call."""
    depth: int = Field(ge=1)
    """1 for the child of a run that somebody started."""
    limits: Bounds | None = None
    """What is left for it of the budgets of its parent."""
    largest: Bounds | None = None
    """Tokens and cost of the largest model call above it: as much is kept free for its own first."""
    background: bool = Field(default=False, exclude_if=operator.not_)
    """Nobody awaits it: it tells its parent when it has ended."""
    lineage: Lineage
    """The way down to it."""
    asked_by: tuple[NameHash, ...] = Field(default=(), max_length=MAX_SENDERS, exclude_if=operator.not_)
    """``hash_name`` of who wrote to the runs above it in their present turns: they asked for what it does too."""


class Start(StrictInput):
    """The workflow's input: ``{"agent": "support", "message": "hi"}``."""

    agent: str = Field(min_length=1, max_length=NAME_CHARS)
    message: str | UserMessage | None = None
    """Without one the run waits for the first."""
    mode: Mode = "run"
    context: JsonObject | None = None
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
    auth_context: AuthToken = None
    """On whose behalf the run acts: encrypted by perdure's client."""
    auth_ref: AuthRef = None
    """The same as a reference, for any client: the worker resolves it."""
    parent: Parent | None = None
    """Of a subagent."""

    @model_validator(mode="before")
    @classmethod
    def _check_start_auth(cls, raw: Any) -> Any:
        return check_single_auth(raw)


def parse_output(content: str) -> Any:
    """The output whose JSON ``content`` is; what is not plain JSON, for instance a text that a hook gave, as it is."""
    try:
        return parse_json(content)
    except ValueError:
        return content


class Response(Data):
    """What a run came to. ``messages`` is empty until a client that has the store loads it."""

    content: str = ""
    """The answer."""
    blob: BlobRef | None = None
    """Where the answer is, if it is too large for history; clients with the store fill ``content`` from it."""
    output: Any = None
    """The typed output: plain JSON, or an instance where the client has the agent; the content for ``output=str``. None
    where the turn ended without one (interrupted, refused, at a limit)."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is the JSON of ``output``."""
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
    """Whether the model gave the finish protocol's own sign (the tag, or the finish tool). A text that a step policy
    gave in the place of the finish tool counts as that."""
    context_id: str = ""
    """Id of the conversation."""
    task_id: str = ""
    """Id of the turn."""
    head: str | None = None
    """Where the conversation ends now: the hash of its last node in the store."""
    store_id: str | None = None
    """Id of the store that has it."""
    unanswered: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Ids of messages that were recorded and have no answer, because a limit was used up when they came: the last 20,
    empty for one that was sent without an id."""
    tool_calls: int | None = Field(default=None, exclude_if=lambda count: count is None)
    """Of a subagent: tool calls that were begun, for the limits of its parent."""
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
    """A tool call in flight, or a branch of a step (``kind`` is ``branch``, ``name`` the agent)."""

    call_id: str
    name: str
    kind: str
    context_id: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Id of the subagent's run; of a call that waits for one in background, too."""


class Status(Data):
    """What a run is at: answer of the ``status`` query."""

    state: Literal["running", "waiting", "paused", "completed", "failed", "cancelled"]
    """``waiting`` for a message or a person, ``paused`` until an operator resumes it; or how the run ended."""
    doing: RunPhase = "nothing"
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
    limits: tuple[LimitUse, ...] = ()
    """What the run and its turn may use, and have used."""
    at_limit: LimitUse | None = None
    """The one that it is paused at, until somebody raises it."""
    calls: tuple[ChildStatus, ...] = ()
    background: tuple[BackgroundStatus, ...] = ()
    """Subagents in background, also those that have ended."""
    approvals: tuple[PendingApproval, ...] = ()
    """Calls that wait for somebody to approve or to answer them; also while others run."""
    decided: tuple[DecidedApproval, ...] = ()
    """Approvals that were decided and calls that were answered, the latest last."""
    standing: tuple[StandingApproval, ...] = ()
    """Approvals of all calls of a tool, the latest last."""
    queued: int = 0
    """Injected messages that the model has not seen yet."""
    unanswered: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Those that the turn has ended without answering, as ``Response`` has them."""
    refused: tuple[str, ...] = ()
    """What was signalled but could not be understood, last ten."""


# ---
# What a step policy decides, as far as the loop and the next activities are told of it.


OverrideDuration = Literal["turn", "run"]
OVERRIDE_DURATIONS: tuple[OverrideDuration, ...] = ("turn", "run")


class StepOverride(Override):
    """An ``Override`` with what only the author's own code may change: nobody outside can give an agent a tool."""

    add_tools: tuple[str, ...] | None = None
    """Tools that are offered too: the agent's own that an override took away, or tools that the worker was given."""
    remove_tools: tuple[str, ...] | None = None
    """Tools that are not offered."""


class LastingOverrides(Data):
    """What is to hold from now on, each a ``StepOverride``: for the rest of the turn, and of the run."""

    turn: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
