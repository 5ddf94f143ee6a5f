"""What a run, a turn and a step change of their agent, put together."""

from __future__ import annotations

from typing import Any

from ..types.interface import LastingOverrides, TurnStatus
from ..types.state import RunState, TurnState
from ..types.wire import NewMessage
from .finish import REMINDER_ID, build_response
from .payload_limits import PAST_TURNS, PAST_TURNS_BYTES, select_latest_rows

OverrideFields = dict[str, Any]
"""Plain JSON of a ``StepOverride``, without what it leaves as it is."""

_MERGED_FIELDS = ("settings", "provider_options", "limits")
"""Fields of which each piece counts for itself."""


def get_effective_overrides(state: RunState) -> OverrideFields | None:
    """The run's and the turn's, which counts more."""
    return merge_overrides(state.overrides or {}, (state.turn.overrides if state.turn else None) or {}) or None


def merge_overrides(first: OverrideFields, then: OverrideFields) -> OverrideFields:
    """``then`` over ``first``; settings, provider options and limits one by one, and so tools that came and went."""
    both = {
        name: {**first[name], **then[name]}
        for name in _MERGED_FIELDS
        if isinstance(first.get(name), dict) and isinstance(then.get(name), dict)
    }
    if "limits" in both:
        both["limits"]["turn"] = {**(first["limits"].get("turn") or {}), **(then["limits"].get("turn") or {})}
    whole = {**first, **then, **both}
    for name, other in (("add_tools", "remove_tools"), ("remove_tools", "add_tools")):
        if name in first:
            undone = then.get(other) or ()
            whole[name] = _union_names([tool for tool in first[name] if tool not in undone], then.get(name) or ())
    return {name: value for name, value in whole.items() if value or name not in ("add_tools", "remove_tools")}


def keep_overrides(state: RunState, kept: LastingOverrides) -> None:
    """From now on the run, and its turn, have what the step policy keeps."""
    turn = state.turn
    if kept.run:
        state.overrides = merge_overrides(state.overrides or {}, kept.run)
        if turn is not None and turn.overrides:  # what the turn changes counts more, and the step came later
            turn.overrides = merge_overrides(turn.overrides, kept.run)
    if kept.turn and turn is not None:
        turn.overrides = merge_overrides(turn.overrides or {}, kept.turn)


def _union_names(names: list[str], more: Any) -> list[str]:
    return list(dict.fromkeys([*names, *more]))


# ---
# Turns as the outside asks for them: the present one, and those that have ended.


def build_turn_status(state: RunState, task_id: str | None = None) -> TurnStatus:
    """The turn of that id; without one the present turn, which is the last one between two turns."""
    turn = state.turn
    if turn is not None and task_id in (None, turn.task_id):
        if is_turn_answered(state) and state.carry:  # what closes its transcript is still to be recorded
            return TurnStatus(task_id=turn.task_id, state="running")
        return _build_current_turn_status(state, turn)
    for past in state.past:
        if past.task_id == task_id:
            return past
    return TurnStatus(task_id=task_id or "", state="unknown")


def _build_current_turn_status(state: RunState, turn: TurnState) -> TurnStatus:
    task_id = turn.task_id
    if turn.failure is not None:
        return TurnStatus(task_id=task_id, state="failed", error_type=turn.failure.type, error=turn.failure.message)
    if not is_turn_answered(state):
        return TurnStatus(task_id=task_id, state="cancelled" if state.cancelled else "running")
    return TurnStatus(task_id=task_id, state="completed", response=build_response(state))


def is_turn_answered(state: RunState) -> bool:
    """Whether the present turn has its answer, and nothing extends it."""
    return state.turn is not None and state.turn.answer is not None and not state.inbox


def remember_turn(state: RunState) -> None:
    """Keep how the present turn ended, before the next one takes its place: the latest turns, as many as fit."""
    if state.turn is None:
        return
    state.past = select_latest_rows(
        [*state.past, _build_current_turn_status(state, state.turn)][-PAST_TURNS:], PAST_TURNS_BYTES
    )


# ---
# Messages that a turn ends without having answered, because a limit forbids another model call.


MAX_UNANSWERED_IDS = 20
"""Messages that are named: the last ones."""
_MAX_NAMED_IDS = 3
"""Those of them that an error names."""


def record_unanswered_messages(state: RunState) -> None:
    """The turn ends with what waits in the inbox: it is recorded, and given to the model of the next turn, if any."""
    turn = state.turn
    assert turn is not None, "a turn that ends"
    # What an interrupt has put aside comes first; a second ending of the turn has counted it already.
    waiting = state.inbox if turn.unanswered else [*state.carry, *state.inbox]
    left = [new.id or "" for new in waiting if isinstance(new, NewMessage) and new.id != REMINDER_ID]
    turn.unanswered = [*turn.unanswered, *left][-MAX_UNANSWERED_IDS:]


def describe_unanswered_messages(turn: TurnState | None) -> str:
    """What an error says of them; nothing where there are none."""
    if turn is None or not turn.unanswered:
        return ""
    ids = ", ".join([one for one in turn.unanswered if one][-_MAX_NAMED_IDS:])
    what = "The message" if len(turn.unanswered) == 1 else f"{len(turn.unanswered)} messages"
    return f". {what} that came meanwhile got no answer{f': {ids}' if ids else ''}"
