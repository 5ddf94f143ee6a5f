"""What there is to say of approvals: that a call waits, and what was decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ports import NewEvent
from ..types.approval import Decided
from ..types.approval_events import ApprovalDecided, ApprovalReminded, ApprovalRequested, ApprovalRevoked
from ..types.wire import ModelInput, ModelOutput


def requested(output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The calls of a reply that wait for somebody. ``said`` is what every event has."""
    for call in output.calls:
        if call.approval is not None:
            asks: dict[str, Any] = {"expires_in": call.approval.expires, "on_expiry": call.approval.on_expiry}
            what: dict[str, Any] = {
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "hash": call.approval.hash,
            }
            event = ApprovalRequested(**said, **what, **asks)
            yield NewEvent(event)


def asked_again(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The calls of which somebody is reminded."""
    for one in task.reminders or ():
        event = ApprovalReminded(**said, **one.model_dump())
        yield NewEvent(event, key=f"reminded/{task.scope}/{task.op}/{one.call_id}")


def taken_back(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Standing approvals that somebody took back."""
    for one in task.revoked:
        event = ApprovalRevoked(**said, name=one.tool, by=one.by, revoked_at=one.at, approved_by=one.approved_by)
        yield NewEvent(event, key=f"revoked/{task.scope}/{one.tool}/{one.at}")


def decided(how: Decided, call_id: str, name: str, key: str, said: dict[str, Any]) -> NewEvent:
    """What came of the wait; ``key`` names the call."""
    event = ApprovalDecided(
        **said,
        call_id=call_id,
        name=name,
        decision=how.state,
        by=how.by,
        decided_at=how.at,
        comment=how.comment,
        arguments=how.arguments,
        always=how.always,
        standing=how.standing,
    )
    return NewEvent(event, key=f"decided/{key}")
