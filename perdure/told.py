"""What the events of a run tell, and the run itself has not heard yet.

An activity tells of a call that waits, or that the run has to pause, with what it records. The run hears of it as the
activity ends: a moment later, or after a crash some time later. Whoever acts on what he was told waits for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from .errors import PerdureError
from .ports import EventRow
from .types.approval import WaitsFor
from .types.approval_events import ApprovalDecided, ApprovalRequested
from .types.events import (
    Event,
    ModelStarted,
    QuestionAnswered,
    QuestionAsked,
    RunEvent,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
    read_event,
)
from .types.interface import Status

if TYPE_CHECKING:
    from .reading import Reading
    from .run import Run

EARLY = 30.0
"""Seconds for which an update that comes too early is repeated: a worker may have died before it told the run."""
_FIRST, _LONGEST = 0.02, 1.0
"""Seconds between two attempts: at first, and in the end."""
_BACK = 500
"""Numbers of events that are read: what the run has not heard of was told last."""


@dataclass(slots=True)
class Told:
    """What the last events of a run say."""

    waits: dict[str, WaitsFor] = field(default_factory=dict)
    """Calls that wait for a person, by id."""
    begins: dict[str, str] = field(default_factory=dict)
    """Runs that calls, by id, are to begin."""
    paused: str | None = None
    """When the run had to pause: ISO 8601, UTC."""


def delays() -> Iterator[float]:
    """Seconds before each further look, or attempt, until what is waited for is given up."""
    delay, until = _FIRST, time.monotonic() + EARLY
    while time.monotonic() < until:
        yield delay
        delay = min(delay * 1.5, _LONGEST)


async def again(left: Iterator[float]) -> bool:
    """Wait for the next of what is ``left`` of :func:`delays`; false where there is none."""
    if (delay := next(left, None)) is None:
        return False
    await asyncio.sleep(delay)
    return True


async def waiting(run: Run, *, approval: bool) -> Status:
    """The status of ``run``, with the calls that wait for approval, or for an answer: also those of which the store
    knows before the run itself. Raises as ``run.status()``."""
    left = delays()
    while True:
        status = await run.status()
        there = any((one.kind == "approval") == approval for one in status.approvals)
        if there or not await _unheard(run, status, approval=approval) or not await again(left):
            return status


async def pause_heard(run: Run) -> None:
    """Wait until ``run`` knows of the pause that its events tell of, where there is a worker to ask."""
    left = delays()
    while True:
        if (paused := (await _told(run)).paused) is None:
            return
        try:
            status = await run.status()
        except PerdureError:
            return  # what it is told now, it hears when it has a worker again: after the pause
        if status.state != "running" or status.since is None:
            return
        if datetime.fromisoformat(paused) < datetime.fromisoformat(status.since) or not await again(left):
            return


async def to_begin(run: Reading) -> bool:
    """Whether the run above ``run`` tells of it: it is begun as soon as that has heard of the call."""
    above = run.id.rpartition("/")[0]
    told = await _told(run, above) if above else Told()
    return run.id in [child for call_id, child in told.begins.items() if call_id not in told.waits]


async def _unheard(run: Run, status: Status, *, approval: bool) -> bool:
    """Whether the store tells of a call that ``status`` does not show yet."""
    if status.doing == "nothing" and status.state in ("running", "waiting"):  # no worker answers for the run
        return any((kind == "approval") == approval for kind in (await _told(run)).waits.values())
    if status.doing not in (("model",) if approval else ("model", "tools")):
        return False  # of approvals the model's activity tells alone
    known = {call.call_id for call in status.calls}
    past = {one.call_id for one in status.decided if approval or one.state != "approved"}
    kinds = (await _told(run)).waits
    waits = (call_id for call_id, kind in kinds.items() if (kind == "approval") == approval and call_id not in past)
    # The model's activity tells of calls that the run has not heard of at all; that of a call, of its own.
    return any((call_id in known) == (status.doing == "tools") for call_id in waits)


async def _told(run: Reading, of: str | None = None) -> Told:
    """By ``run``, or another one (``of``). Nothing where the store cannot say: what the run itself says counts then."""
    of = of or run.id
    if not run.has_store:
        return Told()
    rows: list[EventRow] = []
    try:
        store = await run.store()
        behind = max(await store.changed(of, 0, 0.0) - _BACK, 0)
        while page := await store.events(of, after=behind, limit=_BACK, children=False):
            rows += page
            behind = page[-1].seq
    except PerdureError:
        return Told()
    read = (read_event(of, row.seq, row.task_id, row.type, row.body, row.spans) for row in rows)
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
                told.begins.pop(call_id, None)
            case ToolStarted(call_id=call_id, child_context_id=str(child)):
                told.begins[call_id] = child
            case RunEvent(state="paused", at=at):
                told.paused = at
            case ModelStarted() | RunEvent() | TurnEvent():  # all calls before it have their results
                told = Told()
            case _:
                pass
    return told
