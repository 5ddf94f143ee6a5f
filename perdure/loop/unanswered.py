"""Messages that a turn ends without having answered, because a limit forbids another model call."""

from __future__ import annotations

from ..types.state import RunState, Turn
from ..types.wire import NewMessage
from .finish import REMINDER_ID

KEPT = 20
"""Messages that are named: the last ones."""
_SAID = 3
"""Those of them that an error names."""


def leave_unanswered(state: RunState) -> None:
    """The turn ends with what waits in the inbox: it is recorded, and given to the model of the next turn, if any."""
    turn = state.turn
    assert turn is not None, "a turn that ends"
    # What an interrupt has put aside comes first; a second ending of the turn has counted it already.
    waiting = state.inbox if turn.unanswered else [*state.carry, *state.inbox]
    left = [new.id or "" for new in waiting if isinstance(new, NewMessage) and new.id != REMINDER_ID]
    turn.unanswered = [*turn.unanswered, *left][-KEPT:]


def left_unanswered(turn: Turn | None) -> str:
    """What an error says of them; nothing where there are none."""
    if turn is None or not turn.unanswered:
        return ""
    ids = ", ".join([one for one in turn.unanswered if one][-_SAID:])
    what = "The message" if len(turn.unanswered) == 1 else f"{len(turn.unanswered)} messages"
    return f". {what} that came meanwhile got no answer{f': {ids}' if ids else ''}"
