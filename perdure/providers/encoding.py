"""JSON and text as they go over the wire, in every format: UTF-8 without lone surrogates, which no store can keep."""

from __future__ import annotations

import json
from typing import Any

from ..types.messages import clean
from ..types.plain import parse_json

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_json(value: object) -> bytes:
    """Compact JSON in UTF-8; lone surrogates, which UTF-8 cannot carry, are replaced."""
    text = _compact(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return clean(text).encode()


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The JSON object of ``text``; {} for blank text; None for anything else, and for what is not plain JSON."""
    if not text.strip():
        return {}
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def clean_json(value: Any) -> Any:
    """``value`` (plain JSON) without lone surrogates in its texts: for opaque data that is kept."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.loads(clean(text))
    return value


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
