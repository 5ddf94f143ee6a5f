"""How many tokens something has, about: for what no provider has counted yet."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..types.messages import FilePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

BYTES = 4
"""Of text in UTF-8 to a token."""
_MESSAGE = 4  # tokens of what stands around a message, or a part
_FILE = 1600  # tokens of a picture, about as much as the APIs count for one of full size


def tokens_of(message: Message) -> int:
    """An estimate: a token for four bytes of text."""
    return _MESSAGE + sum(map(_tokens, message.parts))


def tokens_of_all(messages: Iterable[Message]) -> int:
    """Of all of them."""
    return sum(map(tokens_of, messages))


def _tokens(part: Part) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return _size(part.text) // BYTES
    if isinstance(part, ToolCallPart):
        return _MESSAGE + (_size(part.malformed or json.dumps(part.arguments, ensure_ascii=False))) // BYTES
    if isinstance(part, ToolResultPart):
        return _MESSAGE + _size(part.content) // BYTES + _FILE * len(part.files)
    return _FILE if isinstance(part, FilePart) else 0


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
