"""What people decided and answered in a run, as its events say: for good, also when Temporal has forgotten the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..types.approval import DecidedApproval
from ..types.events import ApprovalDecided, Event, QuestionAnswered, ToolCompleted
from .follow import follow

if TYPE_CHECKING:
    from ..reading import Reading


async def decisions(run: Reading, known: Sequence[DecidedApproval] = ()) -> list[DecidedApproval]:
    """Those of ``run`` in their order, ``known`` last: what the run itself says, which may be more than is told yet.

    Raises as :func:`perdure.following.follow`.
    """
    async with aclosing(follow(run, wait=False, children=False)) as events:
        told = [one async for event in events if (one := decision(event)) is not None]
    return joined(told, known)


def joined(told: Sequence[DecidedApproval], known: Sequence[DecidedApproval]) -> list[DecidedApproval]:
    """What events have ``told`` and a run has ``known``, each once: a run knows its last ones, without a gap."""
    last = Counter(map(_key, known))  # a model may give an id again
    before = []
    for one in reversed(told):
        if last[_key(one)] > 0:
            last[_key(one)] -= 1
        else:
            before.append(one)
    return [*reversed(before), *known]


def _key(one: DecidedApproval) -> tuple[str, str, str | None]:
    return one.call_id, one.state, one.by


def decision(event: Event) -> DecidedApproval | None:
    """What ``event`` says that somebody decided or answered; None for any other."""
    if isinstance(event, ApprovalDecided):
        return DecidedApproval(
            call_id=event.call_id,
            name=event.name,
            state=event.decision,
            by=event.by,
            at=event.decided_at,
            comment=event.comment,
            changed=event.arguments is not None,
            always=event.always,
            standing=event.standing,
        )
    if isinstance(event, QuestionAnswered):
        said: dict[str, Any] = {"by": event.by, "at": event.answered_at, "comment": event.error}
    elif isinstance(event, ToolCompleted) and event.answered_by:  # of a callback
        said = {"by": event.answered_by, "at": event.at, "comment": event.content if event.is_error else None}
    else:
        return None
    return DecidedApproval(call_id=event.call_id, name=event.name, state="answered", **said)
