"""On whose behalf a run acts: who started it, until a message that the model is given brings somebody else.

Calls of a reply to an earlier message still run as before: what a message brings counts from the step on that takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..types.interface import Start, UserMessage
from ..types.state import RunState
from ..types.wire import New, NewMessage

Brings = Start | UserMessage | NewMessage


def take_auth(state: RunState, message: Brings) -> None:
    """The run acts as ``message`` says, if it says so."""
    if message.auth_context is not None or message.auth_ref is not None:
        state.auth_context, state.auth_ref = message.auth_context, message.auth_ref


def given(state: RunState, new: Sequence[New]) -> tuple[New, ...]:
    """``new`` as a step is given it. The run acts as its messages say from now on, and every activity is told so."""
    return tuple(_taken(state, item) if isinstance(item, NewMessage) else item for item in new)


def _taken(state: RunState, message: NewMessage) -> NewMessage:
    if message.auth_context is None and message.auth_ref is None:
        return message
    take_auth(state, message)
    return message.model_copy(update={"auth_context": None, "auth_ref": None})


def shown(raw: Any) -> str:
    """A message that is refused, as an error says it: without what somebody may have sent in the clear."""
    hidden = isinstance(raw, Mapping) and raw.get("auth_context") is not None
    try:
        return str({**raw, "auth_context": "…"} if hidden else raw)
    except (RecursionError, ValueError):  # nested thousands of times, or with an integer of thousands of digits
        return f"a {type(raw).__name__}"
