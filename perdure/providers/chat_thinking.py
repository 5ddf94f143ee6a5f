"""What a model thought, as servers that speak chat completions stream it. OpenAI itself shows none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types.messages import ThinkingPart
from .chat_messages import THINKING_FIELDS
from .encoding import Text, clean_json
from .plain import array

_GROWING = ("text", "summary", "data")


class Thinking:
    """The thinking of one reply, under assembly."""

    def __init__(self) -> None:
        self._text = Text()
        self._field: str | None = None
        self._details: list[dict[str, Any]] = []

    def add(self, delta: Mapping[str, Any]) -> str:
        """Take what ``delta`` has of it; the text that can be shown."""
        if details := delta.get("reasoning_details"):
            for detail in array(details):
                if isinstance(detail, Mapping):
                    self._detail(dict(detail))
        for field in THINKING_FIELDS:
            if (piece := delta.get(field)) and isinstance(piece, str):
                self._field = field
                return self._text.add(piece)
        content = delta.get("content")
        return self._among(content) if isinstance(content, list) else ""

    def _among(self, content: list[Any]) -> str:
        """Mistral has it among the pieces of the content."""
        pieces = [piece for piece in content if isinstance(piece, Mapping) and "thinking" in piece]
        inner = [text for piece in pieces for text in array(piece["thinking"]) if isinstance(text, Mapping)]
        return self._text.add("".join(text["text"] for text in inner if isinstance(text.get("text"), str)))

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
