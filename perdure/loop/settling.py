"""A turn at a limit: it ends, or its run waits for a person, who may raise the limit."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..errors import InvalidInputError
from ..types.bounds import Bounds, RunLimits
from ..types.state import Answer, RunState
from .apply import drop_reminder
from .branching import drop_branches, waiting
from .limits import BUDGETS, exceeded, failure, release
from .receive import refuse
from .unanswered import leave_unanswered


def settle(state: RunState) -> None:
    """End the turn where a budget is used up and nobody is to be asked: neither the model nor a person.

    Nothing may be in flight. ``on_limit="finish"`` asks the model once: a turn that finds the run's budget used up, or
    goes on after it was told to finish, ends as it stands.
    """
    release(state)
    turn = state.turn
    if turn is None or turn.failure or state.cancelled or state.pause or state.calls or waiting(state):
        return
    if turn.answer is not None and not state.inbox:
        return
    use, how = exceeded(state), state.limits.on_limit
    if use is None or use.name == "max_iterations" or how == "pause":
        return
    if how == "finish" and turn.iteration and not turn.forced:
        return
    turn.reached = use
    state.recorded = False
    drop_reminder(state)
    drop_branches(state)
    leave_unanswered(state)
    if how == "error":
        turn.failure = failure(state, use)
        return
    last = turn.answer or Answer(content=turn.last_text, blob=turn.last_blob)
    turn.answer = last.model_copy(update={"finish_reason": "limit"})
    state.carry += state.inbox
    state.inbox = []


def raise_limits(state: RunState, raw: Any) -> bool:
    """Take the limits of ``{"limits": {"cost_usd": 5}, "by": …}``; False if they cannot be taken.

    They hold for the run, those of a turn for the present one. Of several people who raise a limit the highest counts.
    """
    given = raw.get("limits") if isinstance(raw, dict) else None
    if given is None:
        return True
    try:
        limits = read_limits(given)
    except InvalidInputError as error:
        refuse(state, error.message)
        return False
    state.raised = _higher(state.raised, limits.model_dump(exclude={"turn"}))
    if limits.turn is not None and state.turn is not None:
        state.turn.raised = _higher(state.turn.raised, limits.turn.model_dump())
    return True


def read_limits(raw: Any) -> RunLimits:
    """Limits as somebody sends them. Raises ``InvalidInputError`` that names what is wrong."""
    try:
        return RunLimits.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(("limits", *map(str, first["loc"])))
        names = ", ".join(("max_iterations", *RunLimits.model_fields))
        raise InvalidInputError(f"{where}: {first['msg']}", hint=f"There are: {names}.") from None


def _higher(one: Bounds | None, other: dict[str, Any]) -> Bounds | None:
    most = {
        name: max((value for value in (getattr(one, name, None), other[name]) if value is not None), default=None)
        for name in BUDGETS
    }
    return None if all(value is None for value in most.values()) else Bounds.model_validate(most)
