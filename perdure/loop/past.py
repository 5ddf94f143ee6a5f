"""Turns as the outside asks for them: the present one, and those that have ended."""

from __future__ import annotations

from ..types.interface import TurnStatus
from ..types.state import RunState, Turn
from .answer import response
from .sizes import PAST_BYTES, PAST_TURNS, latest


def turn_status(state: RunState, task_id: str | None = None) -> TurnStatus:
    """The turn of that id; without one the present turn, which is the last one between two turns."""
    turn = state.turn
    if turn is not None and task_id in (None, turn.task_id):
        if answered(state) and state.carry:  # what closes its transcript is still to be recorded
            return TurnStatus(task_id=turn.task_id, state="running")
        return _present(state, turn)
    for past in state.past:
        if past.task_id == task_id:
            return past
    return TurnStatus(task_id=task_id or "", state="unknown")


def _present(state: RunState, turn: Turn) -> TurnStatus:
    task_id = turn.task_id
    if turn.failure is not None:
        return TurnStatus(task_id=task_id, state="failed", error_type=turn.failure.type, error=turn.failure.message)
    if not answered(state):
        return TurnStatus(task_id=task_id, state="cancelled" if state.cancelled else "running")
    return TurnStatus(task_id=task_id, state="completed", response=response(state))


def answered(state: RunState) -> bool:
    """Whether the present turn has its answer, and nothing extends it."""
    return state.turn is not None and state.turn.answer is not None and not state.inbox


def remember(state: RunState) -> None:
    """Keep how the present turn ended, before the next one takes its place: the latest turns, as many as fit."""
    if state.turn is None:
        return
    state.past = latest([*state.past, _present(state, state.turn)][-PAST_TURNS:], PAST_BYTES)
