"""A tool call of a reply, as the workflow is told of it: what is to become of it stands with it."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from .approvals import ApprovalTerms
from .messages import CALL_ID_CHARS, NAME_CHARS, BlobRef, Data
from .plain_json import Json, JsonObject
from .subagents import CollectCall, TellCall

# ---
# Calls that are run elsewhere, by other workers or by a client: what perdure's worker does before and after them.


class ExternalCallHooks(Data):
    """Which hooks the worker runs around a call that is run elsewhere."""

    before: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see it before it is handed over."""
    after: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see its result."""
    errors: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks are told where it fails."""


class Clearance(Data):
    """The call may be handed over."""

    arguments: dict[str, Any] | None = None
    """What it is made with, where hooks have changed that."""
    around: ExternalCallHooks = ExternalCallHooks()
    """What there is behind it, as the worker has that now."""


class BeforeExternalCall(Data):
    """The worker looks at a call before it is handed over: rules, arguments, hooks."""

    kind: Literal["before"] = "before"
    client: bool = Field(default=False, exclude_if=operator.not_)
    """A client is to run it, and is asked in this form and time (``CallbackCall``)."""
    form: dict[str, Any] | None = None
    expires: float | None = None


class AfterExternalCall(Data):
    """Hooks see what it came to."""

    kind: Literal["after"] = "after"
    arguments: dict[str, Any] | None = None
    """What the call was made with, where hooks had changed that."""
    text: str | None = None
    blob: BlobRef | None = None
    """Where the text is that a client has put into the store."""
    is_error: bool = False
    error_type: str | None = None
    """Class of what it failed with, in whatever language."""
    answered_by: str | None = None
    """Of a callback: who gave the result; empty where nobody said."""


ExternalCallPhase = Annotated[BeforeExternalCall | AfterExternalCall, Field(discriminator="kind")]


# ---
# Questions as they travel: what a tool asks of a person, or hands over to a client, and what somebody answers.


QUESTION_CHARS = 4000
"""Of what a tool asks."""
FORM_BYTES = 16 * 1024
"""Of the JSON Schema of an answer."""
ANSWER_BYTES = 64 * 1024
"""Of an answer to a tool's question, as JSON: every later run of the call is given it."""
ALL_ANSWERS_BYTES = 256 * 1024
"""Of all answers that one call was given."""
MAX_QUESTIONS = 100
"""That one call may ask."""
ANSWER_ERROR_CHARS = 2000
"""Of what somebody says who does not answer."""


class Question(Data):
    """What a tool asks (``ctx.ask``)."""

    text: str
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""
    expires: float | None = None
    """Seconds; None waits for as long as it takes."""


class ToolAnswer(Data):
    """What somebody has answered a tool."""

    value: Any = None
    """Plain JSON."""
    error: str | None = None
    """Why there is no answer."""
    by: str | None = None
    at: str = ""
    """ISO 8601, UTC."""


class CallbackCall(Data):
    """The call is handed to a client, which answers it."""

    kind: Literal["callback"] = "callback"
    form: dict[str, Any] | None = None
    """JSON Schema of the result; None takes anything."""
    expires: float | None = None
    """Seconds, from when nothing stands between the call and its answer any more."""
    on_expiry: str | None = None
    """What the model is told then."""
    around: ExternalCallHooks = ExternalCallHooks()


class CallAnswer(Data):
    """The argument of the update ``answer_call``: one of ``value``, ``error`` and ``blob``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str = Field(min_length=1, max_length=CALL_ID_CHARS)
    value: Json = None
    """Plain JSON; null is an answer too."""
    error: str | None = Field(default=None, max_length=ANSWER_ERROR_CHARS)
    """Why there is no answer."""
    blob: BlobRef | None = None
    """Where a long text is that perdure's client has put into the store ``store_id``."""
    store_id: str | None = Field(default=None, max_length=100)
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who answers, as the sender says."""
    hash: str | None = Field(default=None, max_length=100)
    """The ``hash`` of what was looked at, as ``status`` has it: refused if the call asks something else now. Without
    one, what the call asks first is answered: so whoever repeats himself does not answer the next question."""

    @model_validator(mode="before")
    @classmethod
    def _check_one_answer(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping):
            given = ["value" in raw, raw.get("error") is not None, raw.get("blob") is not None]
            if sum(given) != 1:
                raise PydanticCustomError("one_answer", "an answer has either a value or an error")
        return raw


class RefusedCall(Data):
    """The call does not run; the model is told why."""

    kind: Literal["refused"] = "refused"
    text: str


class AnsweredCall(Data):
    """The call has its result: it is recorded behind the reply, in the same node."""

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
    """How often it may run again after a lost worker or ``Retry``; None is without bound."""
    task_queue: str | None = None
    inline: bool = False
    """The tool may run inside the model activity; it did not, for want of time."""
    toolset: str | None = None
    """The toolset that the tool is of."""


class InlineCall(Data):
    """The call ran inside the model activity; its outcome is in the journal."""

    kind: Literal["inline"] = "inline"
    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    aborted: str | None = None
    """The call ended the run: the error's text, as of ``ToolOutput.status``."""


class RemoteCall(Data):
    """The call is an activity of a worker that knows nothing of perdure: plain JSON arguments, a plain JSON result."""

    kind: Literal["remote"] = "remote"
    task_queue: str
    timeout: float
    """Seconds that one attempt may take."""
    idempotent: bool = False
    retries: int | None = None
    """How often it may run again where its outcome is not known; None is without bound."""
    around: ExternalCallHooks = ExternalCallHooks()


class SubagentCall(Data):
    """The call is a child workflow of another agent."""

    kind: Literal["subagent"] = "subagent"
    agent: str
    message: str = ""
    """What it is asked; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``message`` is the JSON of a value of the agent's input type."""
    background: int | None = Field(default=None, exclude_if=operator.not_)
    """It runs in background, where at most so many do at once; None where the call waits for it."""


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
    """A tool call of the reply, with what is to become of it, from the code that showed the model the schema."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None: too large for history; it is read from the transcript node."""
    definition: str = ""
    """Hash of the tool's definition that the model saw."""
    disposition: Disposition
    approval: ApprovalTerms | None = Field(default=None, exclude_if=operator.not_)
    """It runs when somebody has approved it."""


# ---
# The tools of an agent's toolsets as a run took them: recorded once, and the same for every model call.


def _is_none(value: object) -> bool:
    return value is None


class PinnedTool(Data):
    """A tool of a toolset."""

    toolset: str
    tool: str
    """Its name in the toolset; ``name`` is the one that the model calls."""
    name: str
    description: str
    parameters: JsonObject
    timeout: float
    idempotent: bool = Field(default=False, exclude_if=operator.not_)
    inline: bool = Field(default=False, exclude_if=operator.not_)
    retries: int | None = Field(default=None, exclude_if=_is_none)
    task_queue: str | None = Field(default=None, exclude_if=_is_none)

    @property
    def definition(self) -> str:
        """Hash (hexadecimal) of what the model sees and of how a call acts."""
        seen = self.model_dump(mode="json", exclude={"timeout"})
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]


_pinned_tools_adapter = TypeAdapter(tuple[PinnedTool, ...])


def encode_pinned_tools(tools: Sequence[PinnedTool]) -> bytes:
    """The list as it is kept in the store. Schemas keep their order: it is the order that models fill in."""
    plain = [tool.model_dump(mode="json") for tool in tools]
    return json.dumps(plain, separators=(",", ":")).encode()


def decode_pinned_tools(body: str | bytes) -> tuple[PinnedTool, ...]:
    """The list that :func:`encode_pinned_tools` wrote. Raises ``ValidationError``."""
    return _pinned_tools_adapter.validate_json(body)
