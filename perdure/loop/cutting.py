"""Messages made shorter: what is cut is marked, and nothing that is cut claims to be what its provider gave."""

from __future__ import annotations

import json
from typing import Any

from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

NOTE = "[An old result, left out to save space: {size}.]"
_SHORT = 80  # characters of a result that a note would not make shorter


def shortened(message: Message, keep: int) -> Message:
    """A reply with its thinking and tool-call inputs cut to ``keep`` characters; itself where none is longer.

    A provider's signature covers what was cut. So such a reply goes out as anybody's: its texts and calls stay, and
    nothing that only its provider understands.
    """
    parts = [_shortened(part, keep) for part in message.parts]
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    if any(_is_bound(part) for part in message.parts):
        parts = [_unbound(part) for part in parts if not isinstance(part, OpaquePart)]
    return message.model_copy(update={"parts": tuple(parts)})


def cleared(message: Message) -> Message:
    """A message of tool results with a note in the place of each that is not short already, and without files."""
    parts = tuple(_cleared(part) if isinstance(part, ToolResultPart) else part for part in message.parts)
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return message.model_copy(update={"parts": parts})


def cut(text: str, keep: int) -> str:
    """The first ``keep`` characters, with a mark that says how many are gone; ``text`` where that is no shorter."""
    if len(text) <= keep:
        return text
    marked = f"{text[:keep]}… [{len(text) - keep:,} characters cut]"
    return marked if len(marked) < len(text) else text


def _shortened(part: Part, keep: int) -> Part:
    if isinstance(part, ThinkingPart):
        text = cut(part.text, keep)
        return part if text is part.text else part.model_copy(update={"text": text})
    if not isinstance(part, ToolCallPart):
        return part
    update: dict[str, Any] = {}
    if part.malformed is not None and (raw := cut(part.malformed, keep)) is not part.malformed:
        update["malformed"] = raw
    if (arguments := _arguments(part.arguments, keep)) is not part.arguments:
        update["arguments"] = arguments
    return part.model_copy(update=update) if update else part


def _arguments(arguments: dict[str, Any], keep: int) -> dict[str, Any]:
    """Each argument cut for itself, so that the call still reads as one; where there are many, all as one text."""
    whole = _json(arguments)
    if len(whole) <= keep:
        return arguments
    short = {name: _value(value, keep) for name, value in arguments.items()}
    if len(_json(short)) > 4 * keep + 200:
        short = {"cut": cut(whole, keep)}
    return short if len(_json(short)) < len(whole) else arguments


def _value(value: Any, keep: int) -> Any:
    if isinstance(value, str):
        return cut(value, keep)
    text = _json(value)
    return value if len(text) <= keep else cut(text, keep)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_bound(part: Part) -> bool:
    """Whether its provider checks it against what stands beside it, or only its provider understands it.

    The field in which a model's thinking came (chat completions) is no such thing.
    """
    if isinstance(part, OpaquePart):
        return True
    opaque = part.opaque if isinstance(part, TextPart | ThinkingPart | ToolCallPart) else None
    return opaque is not None and opaque.keys() != {"field"}


def _unbound(part: Part) -> Part:
    if isinstance(part, TextPart | ThinkingPart | ToolCallPart) and part.provider is not None:
        return part.model_copy(update={"provider": None, "opaque": None})
    return part


def _cleared(part: ToolResultPart) -> ToolResultPart:
    if len(part.content) <= _SHORT and not part.files:
        return part
    size = f"{len(part.content):,} characters"
    if part.files:
        size += f", {len(part.files)} file{'' if len(part.files) == 1 else 's'}"
    return part.model_copy(update={"content": NOTE.format(size=size), "files": ()})
