"""A streamed message: events of the API in, our events out, ``Completed`` at the end.

Blocks stay in the order in which they came, and opaque data stays as it is: the API wants both back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ports.model import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .encoding import bind_opaque, clean_json_value, keep_opaque, parse_arguments
from .errors import build_stream_error
from .finish_reasons import Ending, read_ending, require_reply
from .reply import StreamedReply, StreamedText, read_array, read_count, read_object, read_string
from .tool_call_stream import StreamedArguments, drop_repeated_calls


@dataclass(slots=True)
class _StreamedBlock:
    """A content block under assembly: its start, and what was added to it."""

    kind: str
    start: dict[str, Any]
    text: StreamedText = field(default_factory=StreamedText)
    arguments: StreamedArguments = field(default_factory=StreamedArguments)
    citations: list[Any] = field(default_factory=list)
    signature: str = ""
    call_index: int = -1
    """Its place among the reply's calls."""
    is_cut: bool = False
    """The reply ended within its arguments."""
    is_stopped: bool = False
    """The server has said that it is whole."""

    @property
    def json(self) -> str:
        """The text of its arguments. Some servers send them whole with the block's start, as text or as they are."""
        return self.arguments.text or read_string(self.start.get("input"))

    def parse_arguments(self) -> dict[str, Any] | None:
        """The call's arguments; None if malformed."""
        if not self.arguments.text and isinstance(given := self.start.get("input"), Mapping):
            whole: dict[str, Any] = clean_json_value(dict(given))
            return whole
        return parse_arguments(clean_text(self.json))

    def is_begun_again(self, start: Mapping[str, Any]) -> bool:
        """Whether ``start``, under this block's index, is its own once more."""
        keys = ("type", "id", "name")
        is_same = all(start.get(key) == self.start.get(key) for key in keys)
        return self.kind == "tool_use" and is_same and not self.is_stopped

    def build_delta(self, arguments: str) -> ToolCallDelta:
        """The event of a piece of the call's arguments."""
        call_id, name = (clean_text(read_string(self.start.get(key))) for key in ("id", "name"))
        return ToolCallDelta(self.call_index, call_id, name, clean_text(arguments))

    def build_part(self, origin: str) -> Part | None:
        """The block as a part of a message; None if it is empty."""
        text = self.text.join_text()
        match self.kind:
            case "text":
                cited = {"citations": clean_json_value(self.citations)} if self.citations else None
                return TextPart(text=text, **keep_opaque(origin, cited)) if text else None
            case "thinking":
                if not text and not self.signature:
                    return None
                # Anthropic itself always signs; others sign nothing, or have an empty signature.
                signed = {"signature": self.signature} if self.signature or "signature" in self.start else {}
                extra = self._collect_extra_fields("thinking", "signature")
                return ThinkingPart(text=text, provider=origin, opaque={**signed, **extra} or None)
            case "tool_use":
                opaque = keep_opaque(origin, self._collect_extra_fields("id", "name", "input"))
                call, arguments = self.build_delta(""), self.parse_arguments()
                malformed = clean_text(self.json) if arguments is None or self.is_cut else None
                return ToolCallPart(
                    id=call.id, name=call.name, arguments=arguments or {}, malformed=malformed, **opaque
                )
            case _:
                data = clean_json_value(self.start)
                if (arguments := parse_arguments(clean_text(self.json))) and "input" in data:
                    data["input"] = arguments
                return OpaquePart(provider=origin, data=data)

    def _collect_extra_fields(self, *known: str) -> dict[str, Any]:
        """The fields besides ``known``: opaque data."""
        rest = {key: value for key, value in self.start.items() if key not in ("type", *known) and value is not None}
        extra: dict[str, Any] = clean_json_value(rest)
        return extra


class AnthropicReply(StreamedReply):
    """One reply under assembly."""

    def __init__(self, endpoint: str, origin: str, key_name: str = "the key", *, signer: str | None = None) -> None:
        """``signer``: whose models read what this one signs, at a server that has those of many vendors."""
        super().__init__(endpoint, origin, key_name)
        self._signer = signer
        self._blocks: list[_StreamedBlock] = []
        self._open_blocks: dict[int, _StreamedBlock] = {}
        self._call_count = 0
        self._reason = ""
        self._ended = False
        self._earlier_usage = Usage()
        self._usage: dict[str, Any] = {}

    @property
    def is_paused(self) -> bool:
        """The API interrupted a long turn of its own tools, for the client to continue it."""
        return self._ended and self._reason == "pause_turn"

    def feed(self, event: object) -> Iterator[StreamEvent]:
        """Take one event. Raises ``MalformedReplyError``, or the error that the event carries."""
        event = self._require_object(event, "an event")
        kind = event.get("type")
        if kind == "error" or (event.get("error") and not kind):
            raise build_stream_error(event, "", self._endpoint, key_name=self._key_name)
        match kind:
            case "message_start":
                self._start_message(read_object(event.get("message")))
            case "content_block_start":
                yield from self._start_block(event.get("index"), event.get("content_block"))
            case "content_block_delta":
                yield from self._feed_delta(event.get("index"), event.get("delta"))
            case "content_block_stop":
                if (stopped := self._find_open_block(event.get("index"))) is not None:
                    stopped.is_stopped = True
            case "message_delta":
                self._reason = read_string(read_object(event.get("delta")).get("stop_reason")) or self._reason
                self._update_usage(event.get("usage"))
            case "message_stop":
                self._ended = True
            case "message":  # not streamed: some servers ignore that a stream was asked for
                self._start_message(event)
                for index, block in enumerate(read_array(event.get("content"))):
                    yield from self._start_block(index, block)
                self._reason = read_string(event.get("stop_reason")) or "end_turn"
                self._ended = True
            case _:
                pass  # ping, and events of later versions

    def _start_message(self, message: Mapping[str, Any]) -> None:
        """A message begins: the reply, or the next piece of one that was paused."""
        self._earlier_usage = self._earlier_usage + _read_usage(self._usage)
        self._usage = {}
        self._open_blocks = {}
        self._reason, self._ended = "", False
        self._model = read_string(message.get("model")) or self._model
        self._update_usage(message.get("usage"))

    def _update_usage(self, usage: object) -> None:
        # Counts are totals of the message so far; one that is left out keeps its value.
        self._usage |= {key: value for key, value in read_object(usage).items() if value is not None}

    def _start_block(self, index: object, start: object) -> Iterator[StreamEvent]:
        if not isinstance(start, dict) or not isinstance(kind := start.get("type"), str):
            raise self._build_malformed_error("an invalid content block", start)
        earlier = self._find_open_block(index) if isinstance(index, int) else None
        if earlier is not None and earlier.is_begun_again(start):
            earlier.start |= {key: value for key, value in start.items() if value}
            return
        block = _StreamedBlock(kind, dict(start))
        self._blocks.append(block)
        if isinstance(index, int):
            self._open_blocks[index] = block
        if kind in ("text", "thinking"):
            yield from self._feed_text(block, start.get(kind), kind)
            block.citations.extend(read_array(start.get("citations")))
            block.signature = read_string(start.get("signature"))
        elif kind == "tool_use":
            block.call_index = self._call_count
            self._call_count += 1
            yield block.build_delta("")

    def _feed_delta(self, index: object, delta: object) -> Iterator[StreamEvent]:
        block = self._find_open_block(index)
        if block is None or not isinstance(delta, Mapping):
            raise self._build_malformed_error("a delta for an unknown content block", delta)
        match delta.get("type"):
            case "text_delta":
                yield from self._feed_text(block, delta.get("text"), "text")
            case "thinking_delta":
                yield from self._feed_text(block, delta.get("thinking"), "thinking")
            case "signature_delta":
                # One piece, and the whole of it each time.
                block.signature = read_string(delta.get("signature")) or block.signature
            case "input_json_delta":
                piece = read_string(delta.get("partial_json"))
                shown = block.arguments.extend(piece)
                if block.call_index >= 0 and shown:
                    yield block.build_delta(shown)
            case "citations_delta":
                block.citations.append(delta.get("citation"))
            case _:
                pass

    def _find_open_block(self, index: object) -> _StreamedBlock | None:
        """The block of that index; of events that have none, the last one."""
        if index is None:
            return self._blocks[-1] if self._blocks else None
        return self._open_blocks.get(index) if isinstance(index, int) else None

    def _feed_text(self, block: _StreamedBlock, piece: object, kind: str) -> Iterator[StreamEvent]:
        if shown := block.text.add(read_string(piece)):
            yield ThinkingDelta(shown) if kind == "thinking" else TextDelta(shown)

    def build_parts(self) -> tuple[Part, ...]:
        """The parts so far, for a paused reply to continue from."""
        return tuple(part for block in self._blocks if (part := block.build_part(self._origin)) is not None)

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` if the stream ended before the reply did.

        Some servers leave out ``message_stop``: nothing of a reply comes behind its stop reason.
        """
        if not self._reason:
            raise self._build_truncated_error()
        ending = read_ending(self._reason)
        reason = require_reply(ending, self._endpoint, self._reason)
        if ending.kind != "complete" or reason == "other":
            self._drop_unfinished_calls(ending)
        parts = tuple(drop_repeated_calls(self.build_parts()))
        if reason in ("stop", "other") and any(isinstance(part, ToolCallPart) for part in parts):
            reason = "tool_calls"
        if self._signer is not None:
            parts = tuple(bind_opaque(part, self._signer) if _is_signed(part) else part for part in parts)
        usage = self._earlier_usage + _read_usage(self._usage)
        return Completed(parts, reason, usage, self._model, origin=self._origin)

    def _drop_unfinished_calls(self, ending: Ending) -> None:
        """Drop calls of the API's own tools without a result, and calls that were cut short; but mark those that the
        output limit has cut, so that the model hears of them."""
        last = self._blocks[-1] if self._blocks else None
        answered = [block.start.get("tool_use_id") for block in self._blocks]
        kept = []
        for block in self._blocks:
            if block.kind == "tool_use":
                # A call without arguments has no JSON at all, and neither has one that was cut before its first.
                is_empty = block is last and not block.json and not block.start.get("input")
                block.is_cut = is_empty or block.parse_arguments() is None
            is_unanswered = block.kind == "server_tool_use" and block.start.get("id") not in answered
            if not is_unanswered and not (block.is_cut and ending.kind != "cut"):
                kept.append(block)
        self._blocks = kept


def _is_signed(part: Part) -> bool:
    """Whether only its vendor's models may read the part. Thinking without a signature belongs to the server alone."""
    return not isinstance(part, ThinkingPart) or bool((part.opaque or {}).get("signature"))


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage; ``input_tokens`` of the API are only those that were neither read from a cache nor written to one."""
    cached, written = read_count(usage, "cache_read_input_tokens"), read_count(usage, "cache_creation_input_tokens")
    return Usage(
        input_tokens=read_count(usage, "input_tokens") + cached + written,
        output_tokens=read_count(usage, "output_tokens"),
        cached_tokens=cached,
        reasoning_tokens=read_count(read_object(usage.get("output_tokens_details")), "thinking_tokens"),
        cache_write_tokens=written,
    )
