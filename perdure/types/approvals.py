"""Approvals as stored and sent: the terms of a request, the decision, and their status."""

import hashlib
import json
import operator
import unicodedata
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .messages import CALL_ID_CHARS, NAME_CHARS, Data
from .plain_json import JsonObject, is_none

OnExpiry = Literal["deny", "approve"]
DecisionState = Literal["approved", "denied", "expired"]
MAX_STANDING_APPROVALS = 100
"""Most standing approvals that a conversation keeps."""
PendingKind = Literal["approval", "question", "callback"]
COMMENT_CHARS = 2000
"""Most characters of the comment of a decision."""
CHANGED_ARGUMENTS_BYTES = 64 * 1024
"""Most bytes, as JSON, of arguments that a decision changes."""


def hash_arguments(call_id: str, name: str, arguments: Mapping[str, Any] | None) -> str:
    """Hash (hexadecimal) that binds an approval to this call of this tool with these arguments."""
    plain = json.dumps([call_id, name, dict(arguments or {})], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def hash_name(name: str | None) -> str | None:
    """Hash of a person's name, ignoring case, character width and surrounding blanks. None for an empty name."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name or "").casefold()).strip()
    return hashlib.sha256(plain.encode(errors="replace")).hexdigest()[:16] if plain else None


NameHash = Annotated[str, Field(max_length=64)]
MAX_SENDERS = 4096
"""Most people whose input a run takes in one turn, including that of the runs above it. All are remembered: none of
them may approve a call that they asked for if the approval is separate."""
MAX_SHOWN_REQUESTERS = 16
"""Most requesters that a pending call names: lists of calls say with them whose own a call is."""
ANYBODY = "*"
"""In the place of hashes of names: more than ``MAX_SENDERS`` people, so that nobody may approve such a call."""


def is_requester(name: str | None, requesters: Collection[str]) -> bool:
    """Whether the person ``name`` is, or may be, one of ``requesters``, hashes of names or the mark of too many."""
    return hash_name(name) in requesters or "*" in requesters


class ApprovalTerms(Data):
    """The terms on which a call waits for approval."""

    hash: str
    """:func:`hash_arguments` of the call."""
    expires: float | None = None
    """Seconds; None means no expiry."""
    on_expiry: OnExpiry = "deny"
    separate: bool = Field(default=False, exclude_if=operator.not_)
    """The people whose input led to the call may not approve it."""
    remind: float | None = Field(default=None, exclude_if=operator.not_)
    """Seconds between two reminders; None for no reminders."""


class WaitPeriod(Data):
    """Since when a call waits, and until when."""

    since: str
    """ISO 8601, UTC."""
    until: float | None = None
    """Seconds since 1970."""
    next: float | None = Field(default=None, exclude_if=operator.not_)
    """When the next reminder is due, in seconds since 1970."""
    reminded: int = Field(default=0, exclude_if=operator.not_)
    """Reminders so far."""
    due: bool = Field(default=False, exclude_if=operator.not_)
    """A reminder is due now."""


class Reminder(Data):
    """A pending call, and the number of its reminder."""

    call_id: str
    name: str
    number: int
    """From 1."""
    expires_in: float | None = None
    """Seconds until it expires; None means no expiry."""


class ApprovalOutcome(Data):
    """How a request for approval ended."""

    state: DecisionState
    by: str | None = None
    """The approver; None if the request expired."""
    at: str
    """ISO 8601, UTC."""
    comment: str | None = None
    arguments: dict[str, Any] | None = None
    """The arguments that replace those of the model."""
    hash: str
    """:func:`hash_arguments` of the call that was decided on; with ``arguments``, of these."""
    always: bool = Field(default=False, exclude_if=operator.not_)
    """Later calls of the tool are approved, too."""
    standing: str | None = Field(default=None, exclude_if=operator.not_)
    """If a standing approval approved the call: when ``by`` gave it (ISO 8601, UTC)."""


class StandingApproval(Data):
    """An approval of all calls of a tool in a conversation (``always``)."""

    tool: str
    by: str
    at: str
    """When it was given: ISO 8601, UTC."""

    def __str__(self) -> str:
        return f"{self.tool}, approved by {self.by} at {self.at}"


class Revocation(Data):
    """The argument of the update ``revoke_approval``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str = Field(min_length=1, max_length=500)
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """Who revokes it, as given by the sender."""


class RevokedApproval(Data):
    """The standing approvals of ``tool`` were revoked."""

    tool: str
    by: str | None = None
    at: str
    """ISO 8601, UTC."""
    approved_by: tuple[str, ...] = ()
    """The approvers whose standing approvals were revoked."""


class ApprovalDecision(Data):
    """The argument of the update ``decide_approval``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str = Field(min_length=1, max_length=CALL_ID_CHARS)
    decision: Literal["approve", "deny"]
    by: str | None = Field(default=None, max_length=NAME_CHARS)
    """The approver, as given by the sender."""
    comment: str | None = Field(default=None, max_length=COMMENT_CHARS)
    arguments: JsonObject | None = None
    """With ``"approve"``: arguments that replace those of the model."""
    always: bool = False
    """With ``"approve"``: also approves the pending calls of this tool, and all later ones of the conversation."""
    hash: str | None = Field(default=None, max_length=100)
    """The ``hash`` of the request that was read, from ``status``. ``"approve"`` requires it, ``"deny"`` may omit it."""


class Consent(Data):
    """The sign-in that a call needs at an MCP server. Only perdure's own code for MCP sets it."""

    server: str
    """URL of the server."""
    scopes: tuple[str, ...] = ()
    """The scopes to ask for; empty for those that the server names."""
    tenant: str = ""
    """Whose grant it is: the tenant, "" for the runs without one."""
    user: str = ""
    """The user of a grant for one user, "" for the grant that the tenant's runs share."""


class WaitingCall(Data):
    """A call that waits for a decision or an answer."""

    kind: PendingKind = "approval"
    """``question``: its tool asks something. ``callback``: a client runs the call and sends the result."""
    call_id: str
    tool: str
    arguments: dict[str, Any] | None = None
    """None if they are too large for history: the transcript has them."""
    summary: str = ""
    """The call or its question in one line, for people: by the template of its tool, or its name and first
    arguments."""
    hash: str
    """Identifies the call and its arguments: a decision that gives it cannot be taken for another call."""
    since: str | None = None
    """ISO 8601, UTC; ``expires`` too."""
    expires: str | None = None
    on_expiry: OnExpiry = "deny"
    separate: bool = False
    requesters: tuple[NameHash, ...] = Field(default=(), exclude_if=operator.not_)
    """With ``separate``: ``hash_name`` of the first people whose input led to the call, at most
    ``MAX_SHOWN_REQUESTERS``."""
    reminded: int = Field(default=0, exclude_if=operator.not_)
    """Reminders so far."""
    question: str | None = None
    """The question of its tool."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None accepts any value."""
    consent: Consent | None = Field(default=None, exclude_if=is_none)
    """Its question is answered by a sign-in at an MCP server."""


class DecidedApproval(Data):
    """A past decision, or an answer."""

    call_id: str
    tool: str
    state: DecisionState | Literal["answered"]
    by: str | None = None
    at: str
    comment: str | None = None
    changed: bool = False
    """The call was made with other arguments than the model's."""
    hash: str = Field(default="", exclude_if=operator.not_)
    """As in :class:`ApprovalOutcome`."""
    always: bool = Field(default=False, exclude_if=operator.not_)
    standing: str | None = Field(default=None, exclude_if=operator.not_)
    """If a standing approval approved the call: when ``by`` gave it."""

    def __str__(self) -> str:
        if self.state == "answered":
            return f"answered{f' by {self.by}' if self.by else ''} at {self.at}"
        if self.state == "expired" or self.by is None:
            return f"{self.state}: no decision by {self.at}"
        text = f"{self.state} by {self.by} at {self.at}"
        return f"{text}, as every call of {self.tool} since {self.standing}" if self.standing else text
