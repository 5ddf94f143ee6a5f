"""Tool calls of a reply, each with its disposition: how the workflow runs it."""

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from .approvals import ApprovalTerms, Consent
from .messages import CALL_ID_CHARS, NAME_CHARS, BlobRef, Data
from .plain_json import Json, JsonObject, is_none
from .subagents import CollectCall, TellCall

# ---
# External calls, run by other workers or by a client: what perdure's worker does before and after them.


class ExternalCallHooks(Data):
    """The kinds of hooks that the worker runs around an external call."""

    before: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see the call before it is handed over."""
    after: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see its result."""
    errors: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see its errors."""


class Clearance(Data):
    """The call may be handed over."""

    arguments: dict[str, Any] | None = None
    """Its arguments, if hooks have changed them."""
    around: ExternalCallHooks = ExternalCallHooks.model_construct()
    """The hooks of the worker that checked the call."""


class BeforeExternalCall(Data):
    """The worker checks a call before it is handed over: rules, arguments, hooks."""

    kind: Literal["before"] = "before"
    client: bool = Field(default=False, exclude_if=operator.not_)
    """A client runs it, with this form and time (``CallbackCall``)."""
    declared: bool = Field(default=False, exclude_if=operator.not_)
    """As in ``CallbackCall``."""
    form: dict[str, Any] | None = None
    expires: float | None = None


class AfterExternalCall(Data):
    """Hooks see the result of a call."""

    kind: Literal["after"] = "after"
    arguments: dict[str, Any] | None = None
    """The arguments of the call, if hooks had changed them."""
    text: str | None = None
    blob: BlobRef | None = None
    """Reference to a text that a client has put into the store."""
    is_error: bool = False
    error_type: str | None = None
    """Class of the error that it failed with, in any language."""
    answered_by: str | None = None
    """For a callback: who gave the result; empty if unknown."""


ExternalCallPhase = Annotated[BeforeExternalCall | AfterExternalCall, Field(discriminator="kind")]


# ---
# Questions as stored and sent: what a tool asks or hands over to a client, and the answers.


QUESTION_CHARS = 4000
"""Most characters of a question."""
FORM_BYTES = 16 * 1024
"""Most bytes of the JSON Schema of an answer."""
ANSWER_BYTES = 64 * 1024
"""Most bytes of an answer to a tool's question, as JSON: every later run of the call gets it."""
ALL_ANSWERS_BYTES = 256 * 1024
"""Most bytes of all answers to one call."""
MAX_QUESTIONS = 100
"""Most questions of one call."""
ANSWER_ERROR_CHARS = 2000
"""Most characters of the error of a declined question."""


class Question(Data):
    """A tool's question (``ctx.ask``)."""

    text: str
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None accepts any value."""
    expires: float | None = None
    """Seconds; None means no expiry."""
    consent: Consent | None = Field(default=None, exclude_if=is_none)
    """The call waits until somebody has signed in at an MCP server."""


class ToolAnswer(Data):
    """An answer to a tool's question."""

    value: Any = None
    """Plain JSON."""
    error: str | None = None
    """Why there is no answer."""
    by: str | None = None
    at: str = ""
    """ISO 8601, UTC."""


class CallbackCall(Data):
    """A client runs the call and sends the result."""

    kind: Literal["callback"] = "callback"
    form: dict[str, Any] | None = None
    """JSON Schema of the result; None accepts any value."""
    expires: float | None = None
    """Seconds, from the moment that the call only waits for its answer."""
    on_expiry: str | None = None
    """The model's result after expiry."""
    declared: bool = Field(default=False, exclude_if=operator.not_)
    """The turn's client has declared the tool: the worker does not know it, and approval rules do not apply."""
    around: ExternalCallHooks = ExternalCallHooks.model_construct()


class CallAnswer(Data):
    """The argument of the update ``answer_call``: one of ``value``, ``error`` and ``blob``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str = Field(min_length=1, max_length=CALL_ID_CHARS)
    value: Json = None
    """Plain JSON; null is an answer too."""
    error: str | None = Field(default=None, max_length=ANSWER_ERROR_CHARS)
    """Why there is no answer."""
    blob: BlobRef | None = None
    """Reference to a long text that perdure's client has put into the store ``store_id``."""
    store_id: str | None = Field(default=None, max_length=100)
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who answers, as given by the sender."""
    hash: str | None = Field(default=None, max_length=100)
    """The ``hash`` of the request that was read, from ``status``: the answer is refused if the call asks something else
    now. Without a hash, the answer is for the call's first question, so that a repeated answer is not taken for the
    next question."""

    @model_validator(mode="before")
    @classmethod
    def _check_one_answer(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        if ("value" in raw) + (raw.get("error") is not None) + (raw.get("blob") is not None) != 1:
            raise PydanticCustomError("one_answer", "an answer has either a value or an error")
        return raw


class RefusedCall(Data):
    """The call does not run; the model gets the reason."""

    kind: Literal["refused"] = "refused"
    text: str


class AnsweredCall(Data):
    """The call has its result: it is recorded after the reply, in the same node."""

    kind: Literal["answered"] = "answered"
    text: str
    is_error: bool = False


class ActivityCall(Data):
    """The call is a Temporal activity of its own."""

    kind: Literal["activity"] = "activity"
    timeout: float
    """Seconds that one attempt may take."""
    idempotent: bool = False
    retries: int | None = None
    """How often it may run again after a lost worker or ``Retry``; None means no limit."""
    task_queue: str | None = None
    inline: bool = False
    """The tool may run inside the model activity, but did not, for lack of time."""
    toolset: str | None = None
    """Name of the tool's toolset."""


class InlineCall(Data):
    """The call ran inside the model activity; its outcome is in the journal."""

    kind: Literal["inline"] = "inline"
    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    aborted: str | None = None
    """The call ended the run: the text of the error, as with ``ToolOutput.status``."""


class RemoteCall(Data):
    """The call is an activity of a worker without perdure: plain JSON arguments, a plain JSON result."""

    kind: Literal["remote"] = "remote"
    task_queue: str
    timeout: float
    """Seconds that one attempt may take."""
    idempotent: bool = False
    retries: int | None = None
    """How often it may run again if its outcome is unknown; None means no limit."""
    around: ExternalCallHooks = ExternalCallHooks.model_construct()


class SubagentCall(Data):
    """The call is a child workflow of another agent."""

    kind: Literal["subagent"] = "subagent"
    agent: str
    message: str = ""
    """The message; empty if it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``message`` is the JSON of a value of the agent's input type."""
    background: int | None = Field(default=None, exclude_if=operator.not_)
    """It runs in background, with at most this many at a time; None if the call waits for it."""


Disposition = Annotated[
    RefusedCall
    | AnsweredCall
    | ActivityCall
    | RemoteCall
    | InlineCall
    | SubagentCall
    | CollectCall
    | TellCall
    | CallbackCall,
    Field(discriminator="kind"),
]


class Call(Data):
    """A tool call of the reply with its disposition, from the code that gave the model the schema."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None if too large for history: the transcript node has them."""
    definition: str = ""
    """Hash of the tool's definition that the model saw."""
    disposition: Disposition
    approval: ApprovalTerms | None = Field(default=None, exclude_if=operator.not_)
    """It runs when it is approved."""
    summary: str = Field(default="", exclude_if=operator.not_)
    """One line that names the call to those who decide on it; empty for a call that does not wait."""
    amount: float | None = Field(default=None, exclude_if=is_none)
    """The number by which an inbox sorts it."""


# ---
# The pinned tools of an agent's toolsets: recorded once per run, and the same for every model call.


class PinnedTool(Data):
    """A tool of a toolset."""

    toolset: str
    tool: str
    """Its name in the toolset; the model calls it by ``name``."""
    name: str
    description: str
    parameters: JsonObject
    timeout: float
    idempotent: bool = Field(default=False, exclude_if=operator.not_)
    inline: bool = Field(default=False, exclude_if=operator.not_)
    retries: int | None = Field(default=None, exclude_if=is_none)
    task_queue: str | None = Field(default=None, exclude_if=is_none)
    provisional: bool = Field(default=False, exclude_if=operator.not_)
    """It stands in for the toolset's tools, which the run takes as soon as they can be listed."""
    summary: str | None = Field(default=None, exclude_if=is_none)
    """Template of the line that names a call to people."""

    @property
    def definition(self) -> str:
        """Hash (hexadecimal) of what the model sees and of how a call runs."""
        hashed = self.model_dump(mode="json", exclude={"timeout", "summary"})
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


_pinned_tools_adapter = TypeAdapter(tuple[PinnedTool, ...], config=ConfigDict(defer_build=True))


def encode_pinned_tools(tools: Sequence[PinnedTool]) -> bytes:
    """Encode the list for the store. Schemas keep their order: models fill in fields in that order."""
    plain = [tool.model_dump(mode="json") for tool in tools]
    return json.dumps(plain, separators=(",", ":")).encode()


def decode_pinned_tools(body: str | bytes) -> tuple[PinnedTool, ...]:
    """Decode a list from :func:`encode_pinned_tools`. Raises ``ValidationError``."""
    return _pinned_tools_adapter.validate_json(body)
