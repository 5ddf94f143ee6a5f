"""What the outside sees of a state."""

from __future__ import annotations

from ..types.interface import Response
from ..types.state import RunState


def response(state: RunState) -> Response:
    """The answer of the turn, with what it took."""
    turn = state.turn
    answer = turn.answer if turn else None
    return Response(
        content=answer.content if answer else "",
        blob=answer.blob if answer else None,
        output=answer.content if answer and answer.blob is None else None,
        iterations=turn.iteration if turn else 0,
        usage=state.usage - turn.usage_before if turn else state.usage,
        calls=turn.iteration if turn else 0,
        cost_usd=_cost(state),
        finish_reason=answer.finish_reason if answer else "other",
        finish_called=answer.called if answer else False,
        context_id=state.context_id,
        task_id=turn.task_id if turn else "",
        head=state.head,
        store_id=state.store_id,
    )


def _cost(state: RunState) -> float | None:
    """Of the turn; None where no price is known."""
    before = state.turn.cost_before if state.turn else None
    return state.cost_usd if state.cost_usd is None or before is None else state.cost_usd - before
