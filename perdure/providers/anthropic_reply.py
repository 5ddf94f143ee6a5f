"""A streamed message, put together: events of the API in, events of ours out, ``Completed`` at the end.

Blocks stay in the order in which they came, and what is not for us to read stays as it is: the API wants both back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import MalformedReplyError, TruncatedStreamError
from ..ports import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .encoding import StreamedText, clean_json_value, parse_arguments
from .errors import build_stream_error
from .json_values import read_array, read_string

_ANTHROPIC_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
"""``pause_turn`` is no end: the adapter has the model go on. Where it gives that up, the reply ends with "other"."""

_ANTHROPIC_CUT_REASONS: tuple[FinishReason, ...] = ("length", "refusal", "other")
"""Endings after which the last block may be a piece of one."""


@dataclass(slots=True)
class _StreamedBlock:
    """A content block under assembly: as it began, and what was added to it."""

    kind: str
    start: dict[str, Any]
    text: StreamedText = field(default_factory=StreamedText)
    json: str = ""
    citations: list[Any] = field(default_factory=list)
    signature: str = ""
    call_index: int = -1
    """Which of the reply's calls it is."""

    def clean_arguments(self) -> str:
        return clean_text(self.json)

    def read_call_fields(self) -> dict[str, str]:
        return {key: clean_text(read_string(self.start.get(key))) for key in ("id", "name")}

    def collect_extra_fields(self, *known: str) -> dict[str, Any]:
        """What the block has besides ``known``: for the API alone."""
        rest = {key: value for key, value in self.start.items() if key not in ("type", *known) and value is not None}
        extra: dict[str, Any] = clean_json_value(rest)
        return extra


class AnthropicReply:
    """One reply under assembly. ``endpoint`` names the API in errors; ``origin`` is kept with opaque data."""

    def __init__(self, endpoint: str, origin: str) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._blocks: list[_StreamedBlock] = []
        self._open_blocks: dict[int, _StreamedBlock] = {}
        self._call_count = 0
        self._reason: str | None = None
        self._ended = False
        self._earlier_usage = Usage()
        self._usage: dict[str, Any] = {}
        self._model = ""

    @property
    def is_paused(self) -> bool:
        """The API broke a long turn of its own tools off, for the client to ask again with what there is."""
        return self._ended and self._reason == "pause_turn"

    def feed(self, event: object) -> Iterator[StreamEvent]:
        """Take one event. Raises ``MalformedReplyError``, or the error that the event carries."""
        if not isinstance(event, Mapping):
            raise self._build_malformed_error("an event that is no JSON object", event)
        match event.get("type"):
            case "message_start":
                self._start_message(_read_mapping(event.get("message")))
            case "content_block_start":
                yield from self._start_block(event.get("index"), event.get("content_block"))
            case "content_block_delta":
                yield from self._feed_delta(event.get("index"), event.get("delta"))
            case "message_delta":
                self._reason = read_string(_read_mapping(event.get("delta")).get("stop_reason")) or self._reason
                self._update_usage(event.get("usage"))
            case "message_stop":
                self._ended = True
            case "message":
                yield from self._feed_message(event)
            case "error":
                raise build_stream_error(event, "", self._endpoint)
            case _:
                pass  # ping, content_block_stop, and what later versions add

    def _start_message(self, message: Mapping[str, Any]) -> None:
        """A message begins: the reply, or the next piece of one that was paused."""
        self._earlier_usage = self._earlier_usage + read_usage(self._usage)
        self._usage = {}
        self._open_blocks = {}
        self._reason, self._ended = None, False
        self._model = read_string(message.get("model")) or self._model
        self._update_usage(message.get("usage"))

    def _feed_message(self, message: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """A message that was not streamed: some servers ignore that a stream was asked for."""
        self._start_message(message)
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else []):
            yield from self._start_block(index, block)
        self._reason = read_string(message.get("stop_reason")) or "end_turn"
        self._ended = True

    def _update_usage(self, usage: object) -> None:
        # Counts are totals of the message so far; one that is left out keeps the value it had.
        self._usage |= {key: value for key, value in _read_mapping(usage).items() if value is not None}

    def _start_block(self, index: object, start: object) -> Iterator[StreamEvent]:
        if not isinstance(start, Mapping) or not isinstance(kind := start.get("type"), str):
            raise self._build_malformed_error("a content block that is none", start)
        block = _StreamedBlock(kind, dict(start))
        self._blocks.append(block)
        if isinstance(index, int):
            self._open_blocks[index] = block
        if kind == "text":
            yield from self._feed_text(block, read_string(start.get("text")))
            block.citations.extend(read_array(start.get("citations")))
        elif kind == "thinking":
            yield from self._feed_thinking(block, read_string(start.get("thinking")))
            block.signature = read_string(start.get("signature"))
        elif kind == "tool_use":
            block.call_index = self._call_count
            self._call_count += 1
            yield self._build_call_delta(block, "")

    def _feed_delta(self, index: object, delta: object) -> Iterator[StreamEvent]:
        block = self._open_blocks.get(index) if isinstance(index, int) else None
        if block is None or not isinstance(delta, Mapping):
            raise self._build_malformed_error("a piece of a block that never began", delta)
        match delta.get("type"):
            case "text_delta":
                yield from self._feed_text(block, read_string(delta.get("text")))
            case "thinking_delta":
                yield from self._feed_thinking(block, read_string(delta.get("thinking")))
            case "signature_delta":
                # One piece, and the whole of it each time.
                block.signature = read_string(delta.get("signature")) or block.signature
            case "input_json_delta":
                piece = read_string(delta.get("partial_json"))
                block.json += piece
                if block.call_index >= 0 and piece:
                    yield self._build_call_delta(block, piece)
            case "citations_delta":
                block.citations.append(delta.get("citation"))
            case _:
                pass

    def _feed_text(self, block: _StreamedBlock, piece: str) -> Iterator[StreamEvent]:
        if piece and (shown := block.text.add(piece)):
            yield TextDelta(shown)

    def _feed_thinking(self, block: _StreamedBlock, piece: str) -> Iterator[StreamEvent]:
        if piece and (shown := block.text.add(piece)):
            yield ThinkingDelta(shown)

    def _build_call_delta(self, block: _StreamedBlock, arguments: str) -> ToolCallDelta:
        called = block.read_call_fields()
        return ToolCallDelta(
            index=block.call_index, id=called["id"], name=called["name"], arguments=clean_text(arguments)
        )

    def build_parts(self) -> tuple[Part, ...]:
        """What there is, for a paused reply to go on from."""
        return tuple(part for block in self._blocks if (part := self._build_part(block)) is not None)

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` when the stream never said that it ended."""
        if not self._ended or self._reason is None:
            raise TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
        reason = _ANTHROPIC_FINISH_REASONS.get(self._reason, "other")
        if reason in _ANTHROPIC_CUT_REASONS:
            self._drop_unfinished_calls()
        parts = self.build_parts()
        if reason in ("stop", "other") and any(isinstance(part, ToolCallPart) for part in parts):
            reason = "tool_calls"
        return Completed(parts, reason, self._earlier_usage + read_usage(self._usage), self._model, origin=self._origin)

    def _drop_unfinished_calls(self) -> None:
        """Drop calls that were cut short, and calls of the API's own tools that never came to a result."""
        last = self._blocks[-1] if self._blocks else None
        answered = {block.start.get("tool_use_id") for block in self._blocks}
        self._blocks = [
            block
            for block in self._blocks
            # A call without arguments has no JSON at all, and so has one that was cut before its first.
            if not (
                block.kind == "tool_use"
                and (_parse_block_arguments(block) is None or (block is last and _has_no_arguments(block)))
            )
            and not (block.kind == "server_tool_use" and block.start.get("id") not in answered)
        ]

    def _build_part(self, block: _StreamedBlock) -> Part | None:
        match block.kind:
            case "text":
                return self._build_text_part(block)
            case "thinking":
                return self._build_thinking_part(block)
            case "tool_use":
                return self._build_call_part(block)
            case _:
                data = clean_json_value(block.start)
                if (arguments := parse_arguments(block.clean_arguments())) and "input" in data:
                    data["input"] = arguments
                return OpaquePart(provider=self._origin, data=data)

    def _build_text_part(self, block: _StreamedBlock) -> TextPart | None:
        text = block.text.join_text()
        if not text:
            return None
        if block.citations:
            cited = clean_json_value({"citations": block.citations})
            return TextPart(text=text, provider=self._origin, opaque=cited)
        return TextPart(text=text)

    def _build_thinking_part(self, block: _StreamedBlock) -> ThinkingPart | None:
        text, signature = block.text.join_text(), block.signature
        if not text and not signature:
            return None
        # Thinking without a signature is shown, but the API would not take it back.
        opaque = {"signature": signature} | block.collect_extra_fields("thinking", "signature") if signature else None
        return ThinkingPart(text=text, provider=self._origin, opaque=opaque)

    def _build_call_part(self, block: _StreamedBlock) -> ToolCallPart:
        called: dict[str, Any] = block.read_call_fields()
        if opaque := block.collect_extra_fields("id", "name", "input"):
            called |= {"provider": self._origin, "opaque": opaque}
        arguments = _parse_block_arguments(block)
        return ToolCallPart(
            **called, arguments=arguments or {}, malformed=None if arguments is not None else block.clean_arguments()
        )

    def _build_malformed_error(self, what: str, seen: object) -> MalformedReplyError:
        return MalformedReplyError(f"{self._endpoint} sent {what}: {str(seen)[:200]!r}")


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage as the API counts it: its ``input_tokens`` are those that no cache had to do with."""
    cached, written = (
        _read_usage_count(usage, "cache_read_input_tokens"),
        _read_usage_count(usage, "cache_creation_input_tokens"),
    )
    return Usage(
        input_tokens=_read_usage_count(usage, "input_tokens") + cached + written,
        output_tokens=_read_usage_count(usage, "output_tokens"),
        cached_tokens=cached,
        reasoning_tokens=_read_usage_count(_read_mapping(usage.get("output_tokens_details")), "thinking_tokens"),
        cache_write_tokens=written,
    )


def _parse_block_arguments(block: _StreamedBlock) -> dict[str, Any] | None:
    """The call's arguments; None for what is no JSON object. Some servers send them whole with the block's start."""
    if not block.json and isinstance(given := block.start.get("input"), Mapping):
        whole: dict[str, Any] = clean_json_value(dict(given))
        return whole
    return parse_arguments(block.clean_arguments())


def _has_no_arguments(block: _StreamedBlock) -> bool:
    return not block.json and not block.start.get("input")


def _read_usage_count(usage: Mapping[str, Any], key: str) -> int:
    value = usage.get(key)
    return max(0, int(value)) if isinstance(value, int | float) else 0


def _read_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
