"""A streamed chat completion, put together: chunks in, events out, ``Completed`` at the end.

Tolerant of what servers that call themselves compatible send; strict where a guess would lose something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import MalformedReplyError, TruncatedStreamError
from ..ports import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, Part, TextPart, Usage, clean
from .chat_calls import CallSlots
from .chat_thinking import Thinking
from .classify import in_stream
from .encoding import Text, clean_json
from .plain import array, count, mapping, string

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
}

_CUT = ("length", "content_filter", "refusal")
"""The reply may have ended in the middle of a call."""


class ChatReply:
    """One reply under assembly. ``endpoint`` names the API in errors, ``origin`` what only it understands."""

    def __init__(self, endpoint: str, origin: str) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._text = Text()
        self._refusal = Text()
        self._annotations: list[Any] = []
        self._thinking = Thinking()
        self._calls = CallSlots()
        self._reason: str | None = None
        self._usage = Usage()
        self._model = ""

    def feed(self, chunk: object) -> Iterator[StreamEvent]:
        """Take one chunk. Raises ``MalformedReplyError``, or the error that the chunk carries."""
        if not isinstance(chunk, dict):
            raise MalformedReplyError(f"{self._endpoint} sent a chunk that is no JSON object: {str(chunk)[:200]!r}")
        if chunk.get("object") == "error" or chunk.get("error"):
            raise in_stream(chunk.get("error") or chunk, "", self._endpoint)
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = read_usage(usage)
        for choice in array(chunk.get("choices")):
            if isinstance(choice, dict) and not choice.get("index"):
                yield from self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[StreamEvent]:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise MalformedReplyError(f"{self._endpoint} sent a delta that is no JSON object: {str(delta)[:200]!r}")
        if thought := self._thinking.add(delta):
            yield ThinkingDelta(thought)
        if (refusal := string(delta.get("refusal"))) and (shown := self._refusal.add(refusal)):
            yield TextDelta(shown)
        if annotations := delta.get("annotations"):
            self._annotations.extend(array(annotations))
        yield from self._content(delta.get("content"))
        for entry in array(delta.get("tool_calls")):
            if not isinstance(entry, dict):
                raise MalformedReplyError(f"{self._endpoint} sent a tool call that is no JSON object")
            yield self._call(entry)
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._reason = reason

    def _content(self, content: object) -> Iterator[StreamEvent]:
        """Text, or a list of typed pieces, as some servers send it."""
        for piece in array(content) if isinstance(content, list) else [content]:
            text = string(piece) or (string(piece.get("text")) if isinstance(piece, dict) else "")
            if text and (shown := self._text.add(text)):
                yield TextDelta(shown)

    def _call(self, entry: Mapping[str, Any]) -> ToolCallDelta:
        slot, arguments = self._calls.add(entry)
        return ToolCallDelta(index=slot.index, id=slot.id, name=slot.name, arguments=clean(arguments))

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` when the stream never said why it ended."""
        if self._reason is None:
            raise TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
        reason = self._finish_reason()
        parts: list[Part] = []
        if thinking := self._thinking.part(self._origin):
            parts.append(thinking)
        if text := self._text.whole():
            parts.append(self._own_text(text, {"annotations": self._annotations} if self._annotations else None))
        if refusal := self._refusal.whole():
            parts.append(self._own_text(refusal, {"refusal": True}))
        parts.extend(self._calls.parts(self._origin, cut=reason in _CUT))
        return Completed(tuple(parts), reason, self._usage, self._model, origin=self._origin)

    def _own_text(self, text: str, opaque: dict[str, Any] | None) -> TextPart:
        return TextPart(text=text, provider=self._origin if opaque else None, opaque=clean_json(opaque))

    def _finish_reason(self) -> FinishReason:
        reason = _REASONS.get(self._reason or "", "other")
        if reason == "stop" and self._refusal.whole():
            return "refusal"
        return "tool_calls" if reason in ("stop", "other") and self._calls else reason


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage as the API counts it; what is missing is 0."""
    read = mapping(usage, "prompt_tokens_details")
    written = mapping(usage, "completion_tokens_details")
    return Usage(
        input_tokens=count(usage, "prompt_tokens"),
        output_tokens=count(usage, "completion_tokens"),
        cached_tokens=count(read, "cached_tokens") or count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=count(written, "reasoning_tokens"),
        cache_write_tokens=count(read, "cache_write_tokens"),
    )
