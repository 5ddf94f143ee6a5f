"""What Temporal is told of a run, so that one query finds all that waits, and nobody need ask the run what it is."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ..types.indexing import AGENT, PENDING, STATUS, WAITING_BYTES, WAITING_CALLS, IndexedStatus
from ..types.state import RunState
from .approvals import waiting
from .asking import asks, waits
from .decide import Next, Wait
from .sizes import size

Value = str | int


def to_index(state: RunState, step: Next | None, shown: Mapping[str, object]) -> dict[str, Value]:
    """The search attributes to be changed while ``step`` is under way, where ``shown`` is what visibility has.

    A run that never waits, for a person or for a message, is not worth an event; from its first wait on it is kept up
    to date, but for whether a session is in a turn. Only attributes that the namespace is known to have.
    """
    pending = sum(map(waits, state.calls))
    idle = isinstance(step, Wait) and step.until != "child"
    if not pending and not idle and PENDING not in shown and STATUS not in shown:
        return {}
    status: IndexedStatus = "waiting" if pending else "running"
    wanted: dict[str, Value] = {
        AGENT: state.agent,
        STATUS: "paused" if step == Wait("resumed") else status,
        PENDING: pending,
    }
    return {name: value for name, value in wanted.items() if name in (state.indexed or ()) and shown.get(name) != value}


def waiting_now(state: RunState) -> tuple[Hashable, ...] | None:
    """Names what waits, for who only has to know whether it is something else by now: :func:`to_note` costs more.

    None while a wait has only just begun, and the state does not say yet since when.
    """
    found: list[Hashable] = []
    for one in filter(waits, state.calls):
        wait = one.waiting if asks(one) else one.expects
        if wait is None:
            return None
        found.append((one.op, asks(one), len(one.answers), wait.since))
    return tuple(found)


def to_note(state: RunState) -> list[dict[str, Any]] | None:
    """What waits, as the memo is to have it; None where nothing does, or it does not fit: then the run is asked."""
    found = waiting(state)
    if not found or len(found) > WAITING_CALLS:
        return None
    noted = [one.model_dump(mode="json", exclude={"reminded"}, exclude_none=True) for one in found]
    return noted if size(noted) <= WAITING_BYTES else None
