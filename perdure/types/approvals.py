"""Approvals as they travel: what a call asks for, what somebody decided, and what can be told of both."""

from __future__ import annotations

import hashlib
import json
import operator
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from .messages import CALL_ID_CHARS, NAME_CHARS, Data
from .plain_json import JsonObject

OnExpiry = Literal["deny", "approve"]
DecisionState = Literal["approved", "denied", "expired"]
MAX_STANDING_APPROVALS = 100
"""How many standing approvals a conversation keeps."""
PendingKind = Literal["approval", "question", "callback"]
COMMENT_CHARS = 2000
"""Of what somebody says with a decision."""
CHANGED_ARGUMENTS_BYTES = 64 * 1024
"""Of arguments that a decision changes, as JSON."""


def hash_arguments(call_id: str, name: str, arguments: Mapping[str, Any] | None) -> str:
    """What an approval is bound to: this call of this tool with these arguments (hexadecimal)."""
    plain = json.dumps([call_id, name, dict(arguments or {})], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def hash_name(name: str | None) -> str | None:
    """By what two names are told to be one person's: case, width and blanks around do not matter. None for no name."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name or "").casefold()).strip()
    return hashlib.sha256(plain.encode(errors="replace")).hexdigest()[:16] if plain else None


class ApprovalTerms(Data):
    """A call that waits for somebody's approval: on what terms."""

    hash: str
    """:func:`hash_arguments` of what is asked."""
    expires: float | None = None
    """Seconds; None waits for as long as it takes."""
    on_expiry: OnExpiry = "deny"
    separate: bool = Field(default=False, exclude_if=operator.not_)
    """Who asked for the call may not approve it."""
    remind: float | None = Field(default=None, exclude_if=operator.not_)
    """Seconds between two reminders."""


class WaitState(Data):
    """Since when a call waits, and until when."""

    since: str
    """ISO 8601, UTC."""
    until: float | None = None
    """Seconds since 1970."""
    next: float | None = Field(default=None, exclude_if=operator.not_)
    """When the next reminder is due: seconds since 1970."""
    reminded: int = Field(default=0, exclude_if=operator.not_)
    """Reminders so far."""
    due: bool = Field(default=False, exclude_if=operator.not_)
    """Another one is due now."""


class Reminder(Data):
    """A call that still waits, and the number of its reminder."""

    call_id: str
    name: str
    number: int
    """From 1."""
    expires_in: float | None = None
    """Seconds that are left; None waits for as long as it takes."""


class ApprovalOutcome(Data):
    """What became of an approval."""

    state: DecisionState
    by: str | None = None
    """Who decided; None where nobody did in time."""
    at: str
    """ISO 8601, UTC."""
    comment: str | None = None
    arguments: dict[str, Any] | None = None
    """What the call is made with instead of what the model said."""
    hash: str
    """:func:`hash_arguments` of what was decided on: with ``arguments``, of these."""
    always: bool = Field(default=False, exclude_if=operator.not_)
    """Later calls of the tool are approved with it."""
    standing: str | None = Field(default=None, exclude_if=operator.not_)
    """When ``by`` had said so, where nobody was asked about this call: ISO 8601, UTC."""


class StandingApproval(Data):
    """Somebody has approved all calls of a tool in a conversation (``always``)."""

    tool: str
    by: str
    at: str
    """When: ISO 8601, UTC."""

    def __str__(self) -> str:
        return f"{self.tool}, approved by {self.by} at {self.at}"


class Revocation(Data):
    """The argument of the update ``revoke_approval``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str = Field(min_length=1, max_length=500)
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who takes it back, as the sender says."""


class RevokedApproval(Data):
    """Somebody took back that all calls of ``tool`` are approved."""

    tool: str
    by: str | None = None
    at: str
    """ISO 8601, UTC."""
    approved_by: tuple[str, ...] = ()
    """Whose approvals had stood."""


class ApprovalDecision(Data):
    """The argument of the update ``decide_approval``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str = Field(min_length=1, max_length=CALL_ID_CHARS)
    decision: Literal["approve", "deny"]
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who decides, as the sender says."""
    comment: str | None = Field(default=None, max_length=COMMENT_CHARS)
    arguments: JsonObject | None = None
    """With ``"approve"``: what the tool is called with instead."""
    always: bool = False
    """With ``"approve"``: so are the calls of this tool that wait beside it, and all later ones of the conversation."""
    hash: str | None = Field(default=None, max_length=100)
    """The ``hash`` of what was looked at, as ``status`` has it. ``"approve"`` needs it, ``"deny"`` may leave it out."""


class PendingApproval(Data):
    """A call that waits for somebody to decide, or to answer."""

    kind: PendingKind = "approval"
    """``question``: its tool asks something. ``callback``: a client is to run it, and answers with the result."""
    call_id: str
    name: str
    """The tool's."""
    arguments: dict[str, Any] | None = None
    """None where they are too large for history: the transcript has them."""
    hash: str
    """Names the call and its arguments; a decision that gives it cannot be taken for another call."""
    since: str | None = None
    """ISO 8601, UTC; ``expires`` too."""
    expires: str | None = None
    on_expiry: OnExpiry = "deny"
    separate: bool = False
    reminded: int = Field(default=0, exclude_if=operator.not_)
    """Reminders so far."""
    question: str | None = None
    """What its tool asks."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""


class DecidedApproval(Data):
    """A decision of the past, or an answer."""

    call_id: str
    name: str
    state: DecisionState | Literal["answered"]
    by: str | None = None
    at: str
    comment: str | None = None
    changed: bool = False
    """The call was made with other arguments than the model's."""
    hash: str = Field(default="", exclude_if=operator.not_)
    """As :class:`ApprovalOutcome` has it."""
    always: bool = Field(default=False, exclude_if=operator.not_)
    standing: str | None = Field(default=None, exclude_if=operator.not_)
    """When ``by`` had approved all calls of the tool, where nobody was asked about this one."""

    def __str__(self) -> str:
        if self.state == "answered":
            return f"answered{f' by {self.by}' if self.by else ''} at {self.at}"
        if self.state == "expired" or self.by is None:
            return f"{self.state}: nobody had decided by {self.at}"
        said = f"{self.state} by {self.by} at {self.at}"
        return f"{said}, as every call of {self.name} since {self.standing}" if self.standing else said
