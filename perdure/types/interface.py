"""The workflow's public interface as plain JSON under Temporal's default converter: start, messages, responses, status.

Any client in any language can send and read it. The receiver parses it here; no other code reads the raw dictionaries.
"""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeVar

from ..errors import InvalidInputError
from .approvals import MAX_SENDERS, DecidedApproval, NameHash, StandingApproval, WaitingCall
from .client_tools import ClientTools
from .limits import Bounds, Count, LimitUse, RunLimits, Seconds
from .messages import (
    CALL_ID_CHARS,
    NAME_CHARS,
    NO_USAGE,
    RUN_ID_CHARS,
    BlobRef,
    ContentPart,
    Data,
    FinishReason,
    Message,
    Usage,
    clean_text,
)
from .plain_json import JsonObject, is_none, parse_json
from .run_states import RunState
from .schema_version import schema_version_field
from .subagents import BackgroundStatus, Lineage

# ---
# The identity on whose behalf a run acts: a token that only workers with the key can read, or a reference.


AUTH_TOKEN_PREFIX = "perdure1"  # noqa: S105  # no secret
"""Prefix of a token: ``perdure1:<key id>:<fingerprint of the key>:<base64>``."""
AUTH_TOKEN_CHARS = 16 * 1024
"""Most characters of a token; it is part of every activity's input."""
AUTH_REF_CHARS = 1000


def is_auth_token(value: Any) -> bool:
    """Whether ``value`` has the form of an encrypted token. Does not check the key."""
    return isinstance(value, str) and value.startswith(f"{AUTH_TOKEN_PREFIX}:") and value.count(":") == 3


def _require_sealed_token(value: Any) -> Any:
    """Refuse a readable ``auth_context``. Temporal has recorded it already; the refusal keeps clients from sending
    more."""
    if value is None or is_auth_token(value):
        return value
    raise PydanticCustomError(
        "auth_context_in_the_clear",
        "it must not be readable in Temporal's history: send an auth_ref, which the worker resolves, or use perdure's "
        "client, which encrypts it",
    )


# A bound on the length stands at the text: at `str | None` pydantic raises TypeError for an explicit null.
AuthToken = Annotated[Annotated[str, Field(max_length=AUTH_TOKEN_CHARS)] | None, BeforeValidator(_require_sealed_token)]
AuthRef = Annotated[str, Field(min_length=1, max_length=AUTH_REF_CHARS)] | None


def _check_single_auth(raw: Any) -> Any:
    """Refuse input that has both. Runs before the other validators."""
    if isinstance(raw, Mapping) and raw.get("auth_context") is not None and raw.get("auth_ref") is not None:
        raise PydanticCustomError("auth_context_and_ref", "give auth_context or auth_ref, not both")
    return raw


# ---
# The tenant and the user whose run it is: labels for lists, quotas and audit. They authorise nothing.


def _require_storable_text(text: str) -> str:
    if text != clean_text(text):
        raise PydanticCustomError("unstorable_label", "it must be text without NUL and lone surrogates")
    return text


RunLabel = Annotated[str, Field(min_length=1, max_length=NAME_CHARS), AfterValidator(_require_storable_text)] | None
"""A tenant or a user: 1 to 200 characters, which name the same tenant only if they are the same characters."""


LABELS = ("tenant", "user")
"""Names of a run's labels, in its ``Start``, in messages to it, and in its memo."""


def check_run_labels(context_id: str, own: Mapping[str, str | None], **given: str | None) -> None:
    """Raise ``InvalidInputError`` for a ``tenant`` or ``user`` that is given, and is not the run's ``own``.

    The error does not say what the run's own are: its reader may be of another tenant.
    """
    for name, value in given.items():
        if value is not None and value != own.get(name):
            raise InvalidInputError(
                f"{name}: run {context_id!r:.200} was not begun for {name} {value!r}",
                hint=f"What begins a conversation decides: leave {name} out, or use another id.",
            )


# ---
# Search attributes and memo: what Temporal stores about runs, besides their ids and times.


AGENT_ATTRIBUTE = "PerdureAgent"
"""The agent's name. Clients set it for the runs that they start, parents for their children."""
STATUS_ATTRIBUTE = "PerdureStatus"
"""An :data:`IndexedStatus`."""
PENDING_ATTRIBUTE = "PerdurePendingApprovals"
"""Number of pending decisions and answers of the run: the length of ``Status.approvals``."""
TENANT_ATTRIBUTE, USER_ATTRIBUTE = "PerdureTenant", "PerdureUser"
"""``Start.tenant`` and ``Start.user``, of a run that has them: set as the agent's name is, else by the run itself."""

SEARCH_ATTRIBUTES: dict[str, Literal["Keyword", "Int"]] = {
    AGENT_ATTRIBUTE: "Keyword",
    STATUS_ATTRIBUTE: "Keyword",
    PENDING_ATTRIBUTE: "Int",
    TENANT_ATTRIBUTE: "Keyword",
    USER_ATTRIBUTE: "Keyword",
}
"""Their types, in Temporal's terms."""

RUN_MEMO = ("agent", *LABELS)
"""Keys of the memo with those fields of a run's ``Start``, so that a list of runs needs no store."""


def build_run_memo(start: Mapping[str, Any]) -> dict[str, Any]:
    """Build the memo of a run from its input."""
    return {name: start[name] for name in RUN_MEMO if start.get(name) is not None}


WAITING_MEMO = "PerdureWaiting"
"""Key of the memo with the run's pending calls: a list like ``Status.approvals``, without the number of reminders. It
is complete or absent; the query ``status`` always has the list."""
WAITING_MEMO_BYTES = 40 * 1024
"""Most bytes of that list as JSON: the whole memo is stored in a row of visibility, which has 64 KiB in MySQL."""
WAITING_MEMO_CALLS = 50
"""Most calls in that list: after each decision, the remaining calls are written again."""

FIRST_MESSAGE_MEMO = "PerdureFirstMessage"
"""Key of the memo with a hash of the message that perdure's client has started the run with: another start under the
same id is compared with it."""

STORE_MEMO = "PerdureStore"
"""Key of the memo with the id of the store of the client that has started the run: a client of another store says so in
lists, unless its own has the run."""

TURN_MEMO = "PerdureTurn"
"""Key of the memo for the ``task_id`` of a turn, empty before the first. perdure does not read it. Workflow tasks that
handled an event and have no other command write it, so that they have a command: a turn may have started since."""

IndexedStatus = Literal["running", "waiting", "paused"]
"""Status of an open run: at work or between two turns; waiting for a decision or an answer; paused until an operator
resumes it. It stays unchanged when the run ends: ``ExecutionStatus`` has the end."""


WORKFLOW_TYPE = "AgentWorkflow"
WEBHOOK_WORKFLOW_TYPE = "PerdureWebhook"
BULK_WORKFLOW_TYPE = "PerdureBulkAction"
"""Of the delivery of one event to one webhook."""
READ_ERROR_TYPE = "Read"
"""Type of the error by which the update ``read`` is refused: its details are ``{"answer", "asker"}``."""
Mode = Literal["run", "session"]
RunPhase = Literal["model", "compacting", "tools", "branches", "approval", "answer", "message", "closing", "nothing"]
OnLimit = Literal["finish", "return", "error", "pause"]
FinishProtocol = Literal["text", "tag", "tool"]
Versioning = Literal["auto_upgrade", "pinned"]
FINISH_TOOL = "__finish__"
"""The tool that ends a turn under ``finish="tool"``: its arguments are the answer."""


class StrictInput(Data):
    """Input from a client: an unknown field is an error, so that the sender learns of a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Override(StrictInput):
    """Changes of the agent for one run or one turn. Fields that are left out stay as defined."""

    model: str | tuple[str, ...] | None = None
    """``"<provider>:<model>"``, or a chain of models."""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the agent's tools that are offered; the others are not."""
    settings: JsonObject | None = None
    """Merged over the agent's settings; None removes a setting."""
    provider_options: JsonObject | None = None
    """Merged over the agent's options."""
    finish: FinishProtocol | None = None
    max_iterations: Count | None = None
    on_limit: OnLimit | None = None
    limits: RunLimits | None = None
    """Replace the agent's limits one by one."""

    @field_validator("model", mode="before")
    @classmethod
    def _check_model(cls, model: Any) -> Any:
        names = model if isinstance(model, list | tuple) else (model or "",)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("it must be the name of a model, or a list of names")
        return model


CALLER_CLAIMS = ("context", "auth_context", "auth_ref", "user")
"""What a sender says of itself, and a service cannot check."""


class CallerOverride(StrictInput):
    """Changes that somebody asks for who may not change the agent: of these the run takes what the agent names
    (``Agent(caller_overrides=…)``). Limits only lower those that the run has. There are no ``provider_options``."""

    model: str | None = Field(default=None, min_length=1)
    """``"<provider>:<model>"``."""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the agent's tools that are offered; the others are not."""
    settings: JsonObject | None = None
    """Merged over the agent's settings."""
    max_iterations: Count | None = None
    limits: RunLimits | None = None


class CallerRequest(StrictInput):
    """Says that a start or a message comes from a caller of a service, and what it asks for: what only programs may
    do is refused."""

    override: CallerOverride | None = Field(default=None, exclude_if=is_none)


class UserMessage(StrictInput):
    """A message from a user. ``content`` is text, a reference to text in the store, or parts: texts and files.

    None starts a turn without a message: the model is called on the conversation as it is. For an agent with an input
    type, ``input`` replaces ``content``: ``{"input": {"question": "…"}}``.
    """

    content: str | BlobRef | tuple[ContentPart, ...] | None
    input: JsonObject | None = None
    """A value of the agent's input type, as plain JSON."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is the JSON of such an input: if it is in the store, or inside a run."""
    id: str | None = Field(default=None, max_length=NAME_CHARS)
    """The sender's id: a message with the same id counts once."""
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """The sender: over HTTP the authenticated caller, else as given by the sender."""
    on_behalf_of: str | None = Field(default=None, max_length=NAME_CHARS, exclude_if=is_none)
    """In the message of a run to its subagent: the caller for whom it works, empty if that is not known. None: the
    sender is the caller."""
    caller_request: CallerRequest | None = Field(default=None, exclude_if=is_none)
    """Set by a service for a message of its caller; for the turn, from its next model call on."""
    task_id: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    """Id of the turn, if this message opens one; generated by default."""
    override: Override | None = None
    """Changes of the agent for the turn, from its next model call on."""
    client_tools: ClientTools | None = Field(default=None, exclude_if=is_none)
    """Tools that the client runs, for the turn from its next model call on: they replace those of earlier messages of
    the turn. An empty list removes them; None leaves them as they are."""
    store_id: str | None = Field(default=None, max_length=100)
    """Id of the store that holds ``content`` or ``client_tools``, if they are in a store."""
    auth_context: AuthToken = None
    """Identity on whose behalf the run acts from this message on: encrypted by perdure's client."""
    auth_ref: AuthRef = None
    """The same as a reference, for any client: the worker resolves it."""
    tenant: RunLabel = None
    """The tenant for which the conversation was begun, and its ``user``: the message to another's is refused."""
    user: RunLabel = None
    asked_by: tuple[NameHash, ...] = Field(default=(), max_length=MAX_SENDERS, exclude_if=operator.not_)
    """``hash_name`` of further people whose input led to the message: of a run that writes to its subagent."""

    @model_validator(mode="before")
    @classmethod
    def _check_content_or_input(cls, raw: Any) -> Any:
        raw = _check_single_auth(raw)
        if not isinstance(raw, Mapping) or raw.get("input") is None:
            return raw
        if raw.get("content") is not None:
            raise PydanticCustomError("content_and_input", "a message has content or input, not both")
        return {**raw, "content": None}


class Parent(Data):
    """The call that a subagent's run answers, as given by its parent. Fields of a newer engine are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    context_id: str = Field(min_length=1, max_length=RUN_ID_CHARS)
    call_id: str = Field(max_length=CALL_ID_CHARS)
    scope: str = Field(min_length=1, max_length=NAME_CHARS)
    """The journal scope of the child: the key of the call."""
    depth: int = Field(ge=1)
    """1 for the child of a run that a client started."""
    limits: Bounds | None = None
    """What remains for it of its parent's limits."""
    largest: Bounds | None = None
    """Tokens and cost of the largest model call above it: the same amount is reserved for its own first call."""
    background: bool = Field(default=False, exclude_if=operator.not_)
    """The parent does not wait for it: the run notifies its parent when it has ended."""
    lineage: Lineage
    """The path from the run at the top to it."""
    schema_version: int = schema_version_field()
    asked_by: tuple[NameHash, ...] = Field(default=(), max_length=MAX_SENDERS, exclude_if=operator.not_)
    """``hash_name`` of the people whose input the runs above it took in their present turns: its calls count as theirs,
    too."""


class Start(StrictInput):
    """The workflow's input: ``{"agent": "support", "message": "hi"}``."""

    agent: str = Field(min_length=1, max_length=NAME_CHARS)
    message: str | UserMessage | None = None
    """Without a message, the run waits for the first."""
    mode: Mode = "run"
    context: JsonObject | None = None
    """The run's own data, for the author's code."""
    history: str | None = Field(default=None, max_length=100)
    """Head of the transcript from which the run continues."""
    resume: bool = False
    """Continue the conversation of this id, if the store has one."""
    idle_timeout: Seconds | None = None
    """A session closes if it waits this long for a message; seconds, or text like ``"1h"``."""
    override: Override | None = None
    """Changes of the agent for the whole run."""
    caller_request: CallerRequest | None = Field(default=None, exclude_if=is_none)
    """Set by a service for a run that its caller starts."""
    store_id: str | None = Field(default=None, max_length=100)
    """Id of the store that holds ``history`` and blobs of the message."""
    max_history_events: int | None = Field(default=None, gt=10)
    """Continue as new after this many events; Temporal's own suggestion always applies."""
    auth_context: AuthToken = None
    """Identity on whose behalf the run acts: encrypted by perdure's client."""
    auth_ref: AuthRef = None
    """The same as a reference, for any client: the worker resolves it."""
    parent: Parent | None = None
    """For a subagent's run."""
    tenant: RunLabel = None
    """The tenant and the user whose run it is, for lists, quotas and audit. They authorise nothing."""
    user: RunLabel = None
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who gave the run its override, context or history, which count in every turn."""

    _check_auth = model_validator(mode="before")(_check_single_auth)


def parse_output(content: str) -> Any:
    """Parse the output from its JSON; a text that is not plain JSON, for instance from a hook, is returned
    unchanged."""
    try:
        return parse_json(content)
    except ValueError:
        return content


OutputT = TypeVar("OutputT", default=Any, covariant=True)
"""The type of an agent's output."""


class Response(Data, Generic[OutputT]):
    """The result of a turn. ``messages`` is empty until a client that has the store loads it."""

    content: str = ""
    """The answer."""
    blob: BlobRef | None = None
    """Reference to the answer, if it is too large for history; clients with the store fill ``content`` from it."""
    output: OutputT = cast(OutputT, None)
    """The typed output: plain JSON, or an instance if the client has the agent; the content for ``output=str``. None if
    the turn ended without one (interrupted, refused, at a limit), which the type does not say."""
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is the JSON of ``output``."""
    iterations: int = 0
    """Model calls of the turn."""
    usage: Usage = NO_USAGE
    """Tokens of the turn."""
    calls: int = 0
    """Paid model calls."""
    cost_usd: float | None = None
    """Cost of the turn; None if a price is unknown."""
    finish_reason: FinishReason | Literal["limit", "interrupted"] = "stop"
    """Why the turn ended: the provider's reason of its last reply, or a limit, or an interrupt."""
    finish_called: bool = False
    """Whether the model used the finish protocol (the tag, or the finish tool). A step policy's answer in place of the
    finish tool counts."""
    context_id: str = ""
    """Id of the conversation."""
    task_id: str = ""
    """Id of the turn."""
    head: str | None = None
    """Head of the conversation: the hash of its last node in the store."""
    store_id: str | None = None
    """Id of the store that has it."""
    unanswered: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Ids of messages that were recorded and have no answer, because a limit was used up when they arrived: the last
    20, empty for a message that was sent without an id."""
    tool_calls: int | None = Field(default=None, exclude_if=is_none)
    """For a subagent: tool calls that were started, for its parent's limits."""
    asked_by: tuple[NameHash, ...] = Field(default=(), max_length=MAX_SENDERS, exclude_if=operator.not_)
    """For a subagent: ``hash_name`` of the people whose input led to its answer."""
    messages: tuple[Message, ...] = ()
    """The conversation up to ``head``."""


class TurnStatus(Data):
    """State of a turn: answer of the ``turn`` query."""

    task_id: str
    state: Literal["running", "completed", "failed", "cancelled", "unknown"]
    """``unknown``: it ended too long ago, and the store has it; or there never was such a turn."""
    response: Response | None = None
    """For a completed turn, without messages."""
    error_type: str | None = None
    """Class name of the error of a failed turn; ``error`` is its message."""
    error: str | None = None


class ChildStatus(Data):
    """A tool call without a result, or a branch of a step (``kind`` is ``branch``, ``tool`` the agent)."""

    call_id: str
    tool: str
    kind: str
    state: Literal["running", "waiting"] = "running"
    """``waiting`` for a decision or an answer: ``Status.approvals`` says for which."""
    context_id: str | None = Field(default=None, exclude_if=is_none)
    """Id of the subagent's run; also for a call that waits for a subagent in background."""


PAUSE_REASON_CHARS = 1000


class PauseRequest(StrictInput):
    """Argument of the signal ``pause``; every field may be left out, and so may the whole."""

    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who pauses the run."""
    reason: str | None = Field(default=None, max_length=PAUSE_REASON_CHARS)


class OperatorPause(Data):
    """A pause that a client has asked for, or its end."""

    by: str | None = None
    """Who paused or resumed the run."""
    reason: str | None = None
    at: str
    """When it was asked for: ISO 8601, UTC."""

    def __str__(self) -> str:
        return f"paused by {self.by or 'a client'}{f': {self.reason}' if self.reason else ''}"


class HeldUp(Data):
    """A call that holds a run up: its attempts fail, one after the other, and it is tried again."""

    context_id: str
    """The run of the call: the run itself, or a subagent's."""
    agent: str
    call: str
    """The id of a tool call; else the type of the activity: ``perdure.model``."""
    source: str = ""
    """What fails: the model, ``"<provider>:<model>"``, the tool's name, or ``store``. Empty for code of authors that is
    not a tool."""
    error_type: str
    """Class name of the last attempt's error; ``error`` is its message."""
    error: str
    status: int | None = Field(default=None, exclude_if=is_none)
    """HTTP status of the provider's answer."""
    attempts: int
    """Failed attempts in a row."""
    since: str | None = None
    """When the first of them failed: ISO 8601, UTC."""
    last_at: str | None = None
    next_at: str | None = None
    """When the next attempt is due."""


class Status(Data):
    """State of a run: answer of the ``status`` query."""

    state: RunState
    """A client adds ``held_up``, which the run itself does not know."""
    held_up: tuple[HeldUp, ...] = Field(default=(), exclude_if=operator.not_)
    """What holds it up, the oldest first."""
    doing: RunPhase = "nothing"
    """What the run does, or waits for."""
    since: str | None = None
    """When that started: ISO 8601, UTC."""
    reason: str | None = None
    """Why it is paused or stuck."""
    pause: OperatorPause | None = Field(default=None, exclude_if=is_none)
    """The pause that a client has asked for. While ``state`` is not ``paused``, work is in flight, which ends first."""
    agent: str
    context_id: str
    task_id: str | None = None
    mode: Mode = "run"
    iteration: int = 0
    turn: int = 0
    head: str | None = None
    store_id: str | None = None
    usage: Usage = NO_USAGE
    cost_usd: float | None = None
    limits: tuple[LimitUse, ...] = ()
    """Limits of the run and its turn, and how much is used."""
    at_limit: LimitUse | None = None
    """The limit at which it is paused until the limit is raised."""
    calls: tuple[ChildStatus, ...] = ()
    background: tuple[BackgroundStatus, ...] = ()
    """Subagents in background, also those that have ended."""
    approvals: tuple[WaitingCall, ...] = ()
    """Calls that wait for a decision or an answer, also while other calls run."""
    decided: tuple[DecidedApproval, ...] = ()
    """Decided approvals and answered calls, the latest last."""
    standing: tuple[StandingApproval, ...] = ()
    """Standing approvals, the latest last."""
    queued: int = 0
    """Injected messages that no model call had yet."""
    unanswered: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Messages without an answer, as in ``Response``."""
    refused: tuple[str, ...] = ()
    """The last ten signals that could not be parsed."""
    version: str | None = Field(default=None, exclude_if=is_none)
    """The version of a Worker Deployment whose worker has run the last step, as ``NAME.BUILD_ID``, if it has one."""
    version_pinned: bool = Field(default=False, exclude_if=operator.not_)
    """Only workers of that version run the next step."""


# ---
# Decisions of a step policy that the loop and the next activities need.


OverrideDuration = Literal["turn", "run"]
OVERRIDE_DURATIONS: tuple[OverrideDuration, ...] = ("turn", "run")


class StepOverride(Override):
    """An ``Override`` with fields for the author's code only: a client cannot give an agent a tool."""

    add_tools: tuple[str, ...] | None = None
    """Additional tools: the agent's own that an override removed, or tools of the worker."""
    remove_tools: tuple[str, ...] | None = None
    """Tools that are not offered."""


class LastingOverrides(Data):
    """Changes from now on, each a ``StepOverride``: for the rest of the turn, and of the run."""

    turn: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
