"""What Temporal's visibility is told of a run, so that one query finds all that waits."""

from __future__ import annotations

from collections.abc import Mapping

from ..types.indexing import AGENT, PENDING, STATUS, IndexedStatus
from ..types.state import RunState
from .asking import waits
from .decide import Next, Wait

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
