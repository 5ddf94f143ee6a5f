"""What is told of a call that waits for a person: part of the union in :mod:`.events`."""

from __future__ import annotations

from typing import Any, Literal

from .approval import DecisionState, OnExpiry
from .event import Event as _Event


class ApprovalRequested(_Event):
    """A call waits for somebody to approve it."""

    type: Literal["approval.requested"] = "approval.requested"
    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are too large for history."""
    hash: str = ""
    """Names the call with these arguments: an approval is sent with it."""
    expires_in: float | None = None
    """Seconds until ``on_expiry`` decides; None waits for as long as it takes."""
    on_expiry: OnExpiry = "deny"


class ApprovalReminded(_Event):
    """The call still waits, and whoever is to approve it is reminded."""

    type: Literal["approval.reminded"] = "approval.reminded"
    call_id: str
    name: str
    number: int
    """Of the reminder, from 1."""
    expires_in: float | None = None
    """Seconds that are left; None waits for as long as it takes."""


class ApprovalRevoked(_Event):
    """Calls of a tool wait for approval again (``run.revoke``). Said with the model call or the ending that follows."""

    type: Literal["approval.revoked"] = "approval.revoked"
    name: str
    """Of the tool."""
    by: str | None = None
    revoked_at: str = ""
    """ISO 8601, UTC."""
    approved_by: tuple[str, ...] = ()
    """Whose approvals of all its calls had stood."""


class ApprovalDecided(_Event):
    """What was decided on a call. Of one that was approved it is said as the tool begins; of another, with its result,
    when all calls of the reply have theirs."""

    type: Literal["approval.decided"] = "approval.decided"
    call_id: str
    name: str
    decision: DecisionState
    by: str | None = None
    """None where nobody decided in time."""
    decided_at: str = ""
    """ISO 8601, UTC."""
    comment: str | None = None
    arguments: dict[str, Any] | None = None
    """What the tool is called with, where that was changed."""
    always: bool = False
    """Later calls of the tool are approved with it."""
    standing: str | None = None
    """When ``by`` had said so, where nobody was asked about this call: ISO 8601, UTC."""
