"""What the outside sees of a state."""

from __future__ import annotations

from typing import Any

from ..types.interface import FinishProtocol, Response, plain_output
from ..types.messages import Usage
from ..types.state import Answer, RunState


def response(state: RunState) -> Response:
    """The answer of the turn, with what it took."""
    turn = state.turn
    answer = turn.answer if turn else None
    usage, cost_usd = used(state)
    return Response(
        content=answer.content if answer else "",
        blob=answer.blob if answer else None,
        output=_output(state, answer),
        typed=answer.typed if answer else False,
        iterations=turn.iteration if turn else 0,
        usage=usage,
        calls=turn.iteration - turn.unasked if turn else 0,
        cost_usd=cost_usd,
        finish_reason=answer.finish_reason if answer else "other",
        finish_called=answer.called if answer else False,
        context_id=state.context_id,
        task_id=turn.task_id if turn else "",
        head=state.head,
        store_id=state.store_id,
        unanswered=tuple(turn.unanswered) if turn else (),
    )


def used(state: RunState) -> tuple[Usage, float | None]:
    """Tokens of the turn, and US dollars: None where no price is known."""
    turn, cost = state.turn, state.cost_usd
    if turn is None:
        return state.usage, cost
    before = turn.cost_before
    return state.usage - turn.usage_before, cost if cost is None or before is None else cost - before


def _output(state: RunState, answer: Answer | None) -> Any:
    if answer is None or answer.blob is not None:
        return None
    return output_of(answer.content, typed=answer.typed, called=answer.called, protocol=state.limits.protocol)


def output_of(content: str, *, typed: bool, called: bool, protocol: FinishProtocol) -> Any:
    """The output of an answer. Under ``finish="tool"`` a text that was not given by the tool is none."""
    if typed:
        return plain_output(content)
    return content if called or protocol != "tool" else None
