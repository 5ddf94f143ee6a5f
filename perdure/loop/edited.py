"""Conversations that an author's code has changed: whether a model can be sent them, and what was sealed in them."""

from __future__ import annotations

from collections.abc import Sequence

from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart
from .calls import sound_parts


def unsound(messages: Sequence[Message]) -> str | None:
    """Why no model can be sent ``messages``; None where any can."""
    if not messages:
        return "no message is left"
    if messages[0].role != "user":
        return f"it begins with a message of the {messages[0].role}, and has to begin with a user's"
    if messages[-1].role == "assistant":
        return "it ends with a reply, so there is nothing to answer"
    for index, message in enumerate(messages):
        if message.role == "system":
            return f"message {index} is a system prompt; step.instructions is the place for it"
        before = messages[index - 1].tool_calls if index else ()
        if why := _unanswered(index, message, before):
            return why
    return None


def _unanswered(index: int, message: Message, calls: Sequence[ToolCallPart]) -> str | None:
    """Why ``message`` cannot follow a message with ``calls``."""
    asked = [part.id for part in calls]
    given = [part.call_id for part in message.tool_results]
    if sorted(asked) != sorted(given):
        missing = [one for one in asked if one not in given]
        if missing:
            return f"the call {missing[0]!r} of message {index - 1} has no result right behind it"
        return f"message {index} has a result that no call of the message before it asked for, or has it twice"
    allowed = {"tool": ("tool_result",), "user": ("text", "file")}.get(message.role)
    if allowed is not None and any(part.type not in allowed for part in message.parts):
        return f"message {index} is a {message.role}'s and may consist of {' and '.join(allowed)} alone"
    if message.role == "assistant" and given:
        return f"message {index} is a reply with results in it"
    if message.role in ("tool", "user") and not message.parts:
        return f"message {index} is empty"
    return None


def taken_over(edited: Sequence[Message], known: Sequence[Message]) -> list[Message]:
    """``edited`` as it can be stored and sent: a reply that is none of ``known`` any more is nobody's, since what a
    provider sealed in it covers what stood beside it."""
    taken, at = [], 0
    for message in edited:
        place = next((n for n in range(at, len(known)) if known[n] is message), None)
        at = at if place is None else place + 1  # most edits keep the order
        taken.append(message if place is not None else _sound(message, known))
    return taken


def _sound(message: Message, known: Sequence[Message]) -> Message:
    parts = sound_parts(message.parts)
    if message.role == "assistant" and message not in known:
        parts = tuple(part for one in parts if (part := _open(one)) is not None)
    return message.model_copy(update={"parts": parts})


def _open(part: Part) -> Part | None:
    if isinstance(part, OpaquePart) or (isinstance(part, ThinkingPart) and part.opaque):
        return None
    if isinstance(part, ToolCallPart) and part.provider_id is not None:
        return part.model_copy(update={"provider": None, "opaque": None, "provider_id": None})
    if isinstance(part, TextPart | ToolCallPart) and part.opaque:
        return part.model_copy(update={"provider": None, "opaque": None})
    return part


def trimmed(messages: Sequence[Message], keep: int) -> list[Message]:
    """The first user's message and the last ``keep`` messages, and what these need: a result its call."""
    start = max(0, len(messages) - keep)
    while 0 < start < len(messages) and messages[start].role == "tool":
        start -= 1
    first = next((index for index, message in enumerate(messages) if message.role == "user"), start)
    opening = [messages[first]] if first < start else []
    return [*opening, *messages[start:]]
