"""Overrides of a run and its turns, the status of turns, and messages that a turn leaves unanswered."""

from __future__ import annotations

from ..types.interface import LastingOverrides, TurnStatus
from ..types.messages import NAME_CHARS
from ..types.state import RunState, TurnState
from ..types.wire import NewMessage
from .finish import REMINDER_ID, build_response
from .payload_limits import PAST_TURNS, PAST_TURNS_BYTES, select_latest_rows
from .requests import OverrideFields, merge_caller_overrides, merge_overrides


def get_effective_overrides(state: RunState) -> OverrideFields | None:
    """Return the overrides of the run with the turn's over them; None if there are none."""
    return merge_overrides(state.overrides or {}, (state.turn.overrides if state.turn else None) or {}) or None


def get_caller_overrides(state: RunState) -> OverrideFields | None:
    """Return what callers have asked for, the turn's over the run's; None for nothing."""
    return merge_caller_overrides(state.caller_overrides, state.turn.caller_overrides if state.turn else None)


def keep_overrides(state: RunState, kept: LastingOverrides) -> None:
    """Merge the overrides that the step policy keeps into those of the run and the turn."""
    turn = state.turn
    if kept.run:
        state.overrides = merge_overrides(state.overrides or {}, kept.run)
        if turn is not None and turn.overrides:  # the turn's overrides take precedence, and the step came later
            turn.overrides = merge_overrides(turn.overrides, kept.run)
    if kept.turn and turn is not None:
        turn.overrides = merge_overrides(turn.overrides or {}, kept.turn)


# ---
# Status of turns: the present one, and those that have ended.


def build_turn_status(state: RunState, task_id: str | None = None) -> TurnStatus:
    """Build the status of the turn ``task_id``, ``unknown`` if there is none; without an id that of the present turn
    (between two turns: the last one)."""
    turn = state.turn
    if turn is not None and task_id in (None, turn.task_id):
        if is_turn_running(state, turn.task_id):
            return TurnStatus(task_id=turn.task_id, state="running")
        return _build_current_turn_status(state, turn)
    for past in state.past_turns:
        if past.task_id == task_id:
            return past
    return TurnStatus(task_id=(task_id or "")[:NAME_CHARS], state="unknown")  # a client may have sent any text


def is_turn_running(state: RunState, task_id: str) -> bool:
    """Whether ``task_id`` is the present turn, and has not ended."""
    turn = state.turn
    if turn is None or turn.task_id != task_id:
        return False
    if is_turn_answered(state):
        return bool(state.unsent)  # items that close its transcript are still to be recorded
    # A client that has seen a failure, and resumes the run, would find it open until that is recorded.
    return (turn.failure is None and not state.cancelled) or not state.recorded


def _build_current_turn_status(state: RunState, turn: TurnState) -> TurnStatus:
    task_id = turn.task_id
    if turn.failure is not None:
        return TurnStatus(task_id=task_id, state="failed", error_type=turn.failure.type, error=turn.failure.message)
    if not is_turn_answered(state):
        return TurnStatus(task_id=task_id, state="cancelled" if state.cancelled else "running")
    return TurnStatus(task_id=task_id, state="completed", response=build_response(state))


def is_turn_answered(state: RunState) -> bool:
    """Whether the present turn has its answer, and no message in the inbox extends it."""
    return state.turn is not None and state.turn.answer is not None and not state.inbox


def remember_turn(state: RunState) -> None:
    """Add the status of the present turn to the past turns, before the next one opens. Keeps the latest that fit."""
    if state.turn is None:
        return
    past = [*state.past_turns, _build_current_turn_status(state, state.turn)]
    state.past_turns = select_latest_rows(past[-PAST_TURNS:], PAST_TURNS_BYTES)


# ---
# Messages that a turn ends without having answered, because a limit forbids another model call.


MAX_UNANSWERED_IDS = 20
"""Ids of unanswered messages that are kept: the last ones."""
_MAX_NAMED_IDS = 3
"""Ids of them that an error names."""


def record_unanswered_messages(state: RunState) -> None:
    """Record the ids of the messages that the turn ends without answering. The messages themselves are recorded with
    the ending, and given to the model in the next turn, if there is one."""
    turn = state.turn
    assert turn is not None, "a turn that ends"
    # Messages that an interrupt put into ``unsent`` come first; a second ending of the turn has counted them already.
    items = state.inbox if turn.unanswered else [*state.unsent, *state.inbox]
    ids = [item.id or "" for item in items if isinstance(item, NewMessage) and item.id != REMINDER_ID]
    turn.unanswered = [*turn.unanswered, *ids][-MAX_UNANSWERED_IDS:]


def describe_unanswered_messages(turn: TurnState | None) -> str:
    """Describe the unanswered messages for an error text; empty if there are none."""
    if turn is None or not turn.unanswered:
        return ""
    ids = ", ".join([message_id for message_id in turn.unanswered if message_id][-_MAX_NAMED_IDS:])
    messages = "The message" if len(turn.unanswered) == 1 else f"{len(turn.unanswered)} messages"
    return f". {messages} that came meanwhile got no answer{f': {ids}' if ids else ''}"
