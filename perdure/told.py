"""What the events of a run tell, and the run itself has not heard yet.

An activity tells of a call that waits, or that the run has to pause, with what it records. The run hears of it as the
activity ends: a moment later, or after a crash some time later. Whoever acts on what he was told waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from .errors import PerdureError
from .types.approval import WaitsFor
from .types.approval_events import ApprovalDecided, ApprovalRequested
from .types.events import (
    Event,
    ModelStarted,
    QuestionAnswered,
    QuestionAsked,
    RunEvent,
    ToolCompleted,
    TurnEvent,
    read_event,
)
from .types.interface import Status
from .updates import attempts

if TYPE_CHECKING:
    from .run import Run

_BACK = 500
"""Numbers of events that are read: what the run has not heard of was told last."""


@dataclass(slots=True)
class Told:
    """What the last events of a run say."""

    waits: dict[str, WaitsFor] = field(default_factory=dict)
    """Calls that wait for a person, by id."""
    paused: str | None = None
    """When the run had to pause: ISO 8601, UTC."""


async def waiting(run: Run, *, approval: bool) -> Status:
    """The status of ``run``, with the calls that wait for approval, or for an answer: also those that it is told of
    while the store knows them already. Raises as ``run.status()``."""
    async for last in attempts():
        status = await run.status()
        there = any((one.kind == "approval") == approval for one in status.approvals)
        if there or last or not await _unheard(run, status, approval=approval):
            break
    return status


async def pause_heard(run: Run) -> None:
    """Wait until ``run`` knows of the pause that its events tell of. Raises as ``run.status()``."""
    async for _ in attempts():
        status = await run.status()
        if status.state != "running" or status.since is None:
            return
        told = await _told(run)
        if told.paused is None or datetime.fromisoformat(told.paused) < datetime.fromisoformat(status.since):
            return


async def _unheard(run: Run, status: Status, *, approval: bool) -> bool:
    """Whether the store tells of a call that ``status`` does not show yet."""
    if status.doing not in ("model", "tools"):
        return False
    told = await _told(run)
    known = {call.call_id for call in status.calls}
    waits = (call_id for call_id, kind in told.waits.items() if (kind == "approval") == approval)
    # The model's activity tells of calls that the run has not heard of at all; that of a call, of its own.
    return any((call_id in known) == (status.doing == "tools") for call_id in waits)


async def _told(run: Run) -> Told:
    """Nothing where the store cannot say: what the run itself says counts then."""
    if not run.has_store:
        return Told()
    try:
        store = await run.store()
        behind = max(await store.changed(run.id, 0, 0.0) - _BACK, 0)
        rows = await store.events(run.id, after=behind, limit=_BACK, children=False)
    except PerdureError:
        return Told()
    read = (read_event(run.id, row.seq, row.task_id, row.type, row.body, row.spans) for row in rows)
    return _read(event for event in read if event is not None)


def _read(events: Iterable[Event]) -> Told:
    """What stands at the end of ``events``."""
    told = Told()
    for event in events:
        match event:
            case ApprovalRequested(call_id=call_id):
                told.waits[call_id] = "approval"
            case QuestionAsked(call_id=call_id, kind=kind):
                told.waits[call_id] = kind
            case ApprovalDecided(call_id=call_id) | QuestionAnswered(call_id=call_id) | ToolCompleted(call_id=call_id):
                told.waits.pop(call_id, None)
            case RunEvent(state="paused", at=at):
                told.paused = at
            case ModelStarted() | RunEvent() | TurnEvent():  # all calls before it have their results
                told = Told()
            case _:
                pass
    return told
