"""The state of a conversation: one object, carried whole through continue-as-new.

It holds references and counters, never the conversation itself. ``schema_version`` says how to read it; an
engine reads every older version (:func:`read_state`) and refuses a newer one.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import InvalidInputError
from .messages import BlobRef, FinishReason, Usage
from .wire import AgentLimits, Call, Mode, New

SCHEMA_VERSION = 1
SEEN_IDS = 1000
"""How many message ids are remembered to tell a repeated one."""


class Part(BaseModel):
    """Mutable piece of the state."""

    model_config = ConfigDict(extra="ignore")


class PendingCall(Part):
    """A tool call of the last reply, until all of them have results."""

    call: Call
    op: int
    """Its operation number, given when the reply is applied."""
    result: New | None = None


class Answer(Part):
    """The answer of the turn, kept until the turn is recorded as ended."""

    content: str = ""
    blob: BlobRef | None = None
    finish_reason: FinishReason | Literal["limit"] = "stop"
    called: bool = False


class Failure(Part):
    """Why the turn failed: class name of the error, and its message."""

    type: str
    message: str


class Pause(Part):
    """Why the run waits for an operator, and since when (ISO 8601)."""

    reason: str
    since: str


class Turn(Part):
    """One turn: from a user's message to the answer."""

    task_id: str
    iteration: int = 0
    """Model calls of this turn so far."""
    at_limit: bool = False
    """No iterations are left; the turn ends when its last calls have results."""
    last_text: str = ""
    last_blob: BlobRef | None = None
    answer: Answer | None = None
    failure: Failure | None = None


class RunState(Part):
    """Everything that a conversation is, besides its transcript."""

    schema_version: int = SCHEMA_VERSION
    context_id: str
    agent: str
    mode: Mode = "run"
    scope: str
    context: dict[str, Any] | None = None
    overrides: dict[str, Any] | None = None
    max_history_events: int | None = None
    store_id: str | None = None
    head: str | None = None
    op: int = 0
    """Operations so far; the next one's number."""
    turns: int = 0
    turn: Turn | None = None
    inbox: list[New] = []
    """Messages that no model call was given yet."""
    carry: list[New] = []
    """What the next model call must be given besides the inbox: results, reminders."""
    calls: list[PendingCall] = []
    seen: list[str] = []
    refused: list[str] = []
    limits: AgentLimits = AgentLimits()
    usage: Usage = Usage()
    cost_usd: float | None = None
    iterations: int = 0
    """Model calls of all turns."""
    recorded: bool = False
    """The ending is in the store."""
    pause: Pause | None = None
    closed: bool = False
    cancelled: bool = False


class NewerStateError(InvalidInputError):
    """A newer engine wrote the state. This worker cannot go on with the run; one of the newer engine can."""


def read_state(raw: Any) -> RunState:
    """The state that an earlier execution, maybe of an older engine, carried over.

    Raises ``NewerStateError`` for one of a newer engine, and ``InvalidInputError`` for what is no state.
    """
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        raise InvalidInputError(
            "state: not the state of a run",
            hint='Only perdure hands a state on. Start a run with {"agent": "<name>", "message": "<text>"}.',
        )
    if version > SCHEMA_VERSION:
        raise NewerStateError(
            f"the run's state has schema version {version}, this engine reads up to {SCHEMA_VERSION}",
            hint="Run workers of the newer perdure on this task queue.",
        )
    try:
        return RunState.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(("state", *(str(place) for place in first["loc"])))
        raise InvalidInputError(f"{where}: {first['msg']}") from None
