"""What a model thought, as servers that speak chat completions stream it. OpenAI itself shows none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types.messages import ThinkingPart
from .chat_messages import THINKING_FIELDS
from .encoding import Text, clean_json

_GROWING = ("text", "summary", "data")


class Thinking:
    """The thinking of one reply, under assembly."""

    def __init__(self) -> None:
        self._text = Text()
        self._field: str | None = None
        self._details: list[dict[str, Any]] = []

    def add(self, delta: Mapping[str, Any]) -> str:
        """Take what ``delta`` has of it; the text that can be shown."""
        for detail in _list(delta.get("reasoning_details")):
            if isinstance(detail, Mapping):
                self._detail(dict(detail))
        for field in THINKING_FIELDS:
            if isinstance(piece := delta.get(field), str) and piece:
                self._field = field
                return self._text.add(piece)
        # Mistral has it among the pieces of the content.
        pieces = [piece for piece in _list(delta.get("content")) if isinstance(piece, Mapping) and "thinking" in piece]
        texts = [
            inner.get("text") for piece in pieces for inner in _list(piece["thinking"]) if isinstance(inner, Mapping)
        ]
        return self._text.add("".join(text for text in texts if isinstance(text, str))) if texts else ""

    def _detail(self, detail: dict[str, Any]) -> None:
        """OpenRouter's form: blocks with signatures or encrypted text, in pieces that have the block's index."""
        last = self._details[-1] if self._details else {}
        if not last or any(last.get(key) != detail.get(key) for key in ("type", "index")):
            self._details.append(detail)
            return
        for key, value in detail.items():
            if key in _GROWING and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None:
                last[key] = value

    def part(self, origin: str) -> ThinkingPart | None:
        """All of it; ``opaque`` says how it goes back to ``origin``."""
        text = self._text.whole()
        if not text and not self._details:
            return None
        opaque: dict[str, Any] | None = None
        if self._details:
            opaque = {"reasoning_details": clean_json(self._details)}
        elif self._field:
            opaque = {"field": self._field}
        return ThinkingPart(text=text, provider=origin if opaque else None, opaque=opaque)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
