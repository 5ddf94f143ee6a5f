"""JSON and text as they go over the wire, in every format: UTF-8, finite numbers, no lone surrogates and no NUL."""

from __future__ import annotations

import json
from typing import Any

from ..errors import BadRequestError, MalformedReplyError
from ..types import messages
from ..types.messages import clean
from ..types.plain import parse_json
from .transport import what

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def encode_json(value: object) -> bytes:
    """Compact JSON in UTF-8; what texts cannot carry (:func:`clean`) is replaced.

    Raises ``BadRequestError`` for numbers that JSON does not have, and for values that are nested too deep.
    """
    return json_text(value).encode()


def json_text(value: object, *, sort_keys: bool = False) -> str:
    """The same as text, for JSON within a text."""
    try:
        text = (_sorted if sort_keys else _compact)(value)
    except RecursionError:
        raise _unsendable("a value that is nested too deep to be written as JSON") from None
    except ValueError as error:  # NaN or an infinity, or a value that contains itself
        raise _unsendable(f"a value that JSON does not have ({error})") from None
    return messages.clean_json(text)


def _unsendable(part: str) -> BadRequestError:
    return BadRequestError(
        f"The request cannot be sent: the conversation, a tool's schema or an option has {part}.",
        hint="Remove it from the transcript (a fork, or compaction), the tool or provider_options.",
    )


def parse_answer(text: str | bytes, endpoint: str) -> Any:
    """The JSON value that ``endpoint`` has sent.

    Raises ``MalformedReplyError`` for what is not JSON, is nested too deep, or has a number of too many digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({what(error)})") from None


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The JSON object of ``text``; {} for blank text; None for anything else, and for what is not plain JSON."""
    if not text.strip():
        return {}
    try:
        value = parse_json(text)
        if "\\u0000" in text:  # which no store can keep
            value = json.loads(messages.clean_json(json.dumps(value, ensure_ascii=False)))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def clean_json(value: Any) -> Any:
    """``value`` (plain JSON) with every text in it :func:`clean`: for opaque data that is kept."""
    text = json.dumps(value, ensure_ascii=False)
    cleaned = messages.clean_json(text)
    return value if cleaned == text else json.loads(cleaned)


class Text:
    """Text that arrives in pieces, a piece perhaps ending between the halves of a surrogate pair."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """What can be shown of ``piece``, with the half that was kept back before."""
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        piece = clean(piece)
        self._pieces.append(piece)
        return piece

    def whole(self) -> str:
        """All of it."""
        return "".join(self._pieces) + clean(self._half)
