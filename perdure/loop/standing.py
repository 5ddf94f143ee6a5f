"""Standing approvals: somebody has approved every call of a tool in this conversation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ..errors import InvalidInputError
from ..types.approval import (
    STANDING,
    ApprovalDecision,
    Decided,
    Revocation,
    Revoked,
    StandingApproval,
    name_hash,
)
from ..types.messages import clean
from ..types.state import PendingCall, RunState
from .asking import askers

HINT = 'Send {"tool": "<name>", "by": "<name>"}.'


def check_always(state: RunState, decision: ApprovalDecision, pending: PendingCall) -> None:
    """Raise ``InvalidInputError`` for a standing approval that cannot be kept."""
    if not decision.always:
        return
    if decision.arguments is not None and decision.arguments != pending.call.arguments:
        raise InvalidInputError(
            "always: it cannot go with changed arguments, which are those of one call",
            hint="Approve this call with them, or every call as it is made.",
        )
    if name_hash(decision.by) is None:
        raise InvalidInputError("always: a standing approval has a name", hint="Say who you are: by.")
    others = _without(state, pending.call.name, decision.by)
    if len(others) >= STANDING:
        raise InvalidInputError(
            f"always: the run has {STANDING} standing approvals, and keeps no more",
            hint="Revoke one that is not needed, or approve this call alone.",
        )


def stand(state: RunState, tool: str, by: str, at: str) -> None:
    """Keep that ``by`` approves every call of ``tool``."""
    state.standing = [*_without(state, tool, by), StandingApproval(tool=tool, by=by, at=at)]


def by_standing(state: RunState, pending: PendingCall, now: datetime) -> Decided | None:
    """What standing approvals decide on a call that waits; None where somebody has to be asked."""
    terms = pending.call.approval
    assert terms is not None, "it asks"
    asked = askers(state) if terms.separate else []
    for one in state.standing:
        if one.tool == pending.call.name and name_hash(one.by) not in asked:
            return Decided(state="approved", by=one.by, at=now.isoformat(), hash=terms.hash, standing=one.at)
    return None


def withdraw(state: RunState, tool: str) -> list[StandingApproval]:
    """Nobody approves every call of ``tool`` any more; what had stood."""
    gone = [one for one in state.standing if one.tool == tool]
    state.standing = [one for one in state.standing if one.tool != tool]
    return gone


def check_revocation(state: RunState | None, raw: Any) -> Revocation:
    """Which standing approvals are to go. Raises ``InvalidInputError``, also where there are none of that tool."""
    try:
        given = Revocation.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the revocation"
        raise InvalidInputError(f"{where}: {first['msg']}", hint=HINT) from None
    if state is not None and not any(one.tool == given.tool for one in state.standing):
        there = "; ".join(map(str, state.standing))
        raise InvalidInputError(
            f"no approval of all calls of {given.tool!r:.120} stands in this run",
            hint=f"There stands: {there}." if there else "None stands.",
        )
    return given


def revoke(state: RunState, raw: Any, now: datetime) -> list[StandingApproval]:
    """Take the standing approvals of a tool back; which they were. Raises as :func:`check_revocation`."""
    given = check_revocation(state, raw)
    gone = withdraw(state, given.tool)
    names = tuple(dict.fromkeys(one.by for one in gone))
    by = clean(given.by) if given.by else None
    revoked = Revoked(tool=given.tool, by=by, at=now.isoformat(), approved_by=names)
    state.revoked = [*state.revoked, revoked][-STANDING:]
    return gone


def told_revoked(state: RunState, told: Sequence[Revoked]) -> None:
    """``told`` are said; what was taken back meanwhile is not."""
    state.revoked = [one for one in state.revoked if one not in told]


def _without(state: RunState, tool: str, by: str | None) -> list[StandingApproval]:
    return [one for one in state.standing if (one.tool, name_hash(one.by)) != (tool, name_hash(by))]
