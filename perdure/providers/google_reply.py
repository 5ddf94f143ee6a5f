"""A streamed reply of Gemini: chunks in, events out, ``Completed`` at the end.

Every part keeps its fields beside the content (a thought signature), and parts with such fields are never joined with
others: a signature is valid only for its own part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ContentFilterError
from ..ports.model import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .encoding import clean_json_value, keep_opaque, parse_arguments
from .errors import build_stream_error, truncate_api_text
from .finish_reasons import read_ending, require_reply
from .reply import StreamedReply, StreamedText, read_array, read_count, read_object, read_string
from .tool_call_stream import drop_repeated_calls, is_same_json, read_argument_text


@dataclass(slots=True)
class _StreamedGooglePart:
    """Text or thinking under assembly."""

    is_thought: bool
    extra_fields: dict[str, Any]
    """Beside the text: opaque data."""
    text: StreamedText = field(default_factory=StreamedText)

    def build_part(self, origin: str) -> Part | None:
        text = self.text.join_text()
        if self.is_thought:
            return ThinkingPart(text=text, provider=origin, opaque=self.extra_fields or None)
        return TextPart(text=text, **keep_opaque(origin, self.extra_fields)) if text else None


class GoogleReply(StreamedReply):
    """One reply under assembly."""

    def __init__(self, endpoint: str, origin: str, key_name: str = "the key") -> None:
        super().__init__(endpoint, origin, key_name)
        self._pieces: list[_StreamedGooglePart | ToolCallPart | OpaquePart] = []
        self._reason = ""
        self._message = ""
        self._usage = Usage()
        self._earlier_usage = Usage()  # of the requests that this reply was continued from
        self._token = ""
        self._last_token = ""

    def feed(self, chunk: object) -> Iterator[StreamEvent]:
        """Take one chunk. Raises ``MalformedReplyError``, ``ContentFilterError``, or the error that it carries."""
        if isinstance(chunk, list):  # a server without event streams sends all chunks as one list
            for inner in chunk:
                yield from self.feed(inner)
            return
        chunk = self._require_object(chunk, "a chunk")
        if chunk.get("error"):
            raise build_stream_error(chunk, "", self._endpoint, key_name=self._key_name)
        self._model = read_string(chunk.get("modelVersion")) or self._model
        if isinstance(usage := chunk.get("usageMetadata"), Mapping):
            self._usage = _read_usage(usage)
        feedback = read_object(chunk.get("promptFeedback"))
        if blocked := feedback.get("blockReason"):
            message = feedback.get("blockReasonMessage")
            raise ContentFilterError(
                f"{self._endpoint} refused the conversation ({blocked})"
                + (f": {truncate_api_text(str(message))}" if message else "")
            )
        for candidate in read_array(chunk.get("candidates")):
            if isinstance(candidate, Mapping) and not candidate.get("index"):
                yield from self._feed_candidate(candidate)

    def _feed_candidate(self, candidate: Mapping[str, Any]) -> Iterator[StreamEvent]:
        content = self._require_object(candidate.get("content") or {}, "content")
        for part in read_array(content.get("parts")):
            yield from self._feed_part(self._require_object(part, "a part"))
        self._reason = read_string(candidate.get("finishReason")) or self._reason
        if isinstance(message := candidate.get("finishMessage"), str):
            self._message = message
        if isinstance(token := candidate.get("continuationToken"), str):
            self._token = token

    def _feed_part(self, part: Mapping[str, Any]) -> Iterator[StreamEvent]:
        if "functionCall" in part:
            yield self._feed_call(part)
            return
        text, is_thought = part.get("text"), part.get("thought") is True
        extra = {key: value for key, value in part.items() if key not in ("text", "thought")}
        if not isinstance(text, str) or not (text or is_thought):
            # Code that ran at Google, a picture, a signature alone: sent back as it came.
            if extra:
                self._pieces.append(OpaquePart(provider=self._origin, data=clean_json_value(dict(part))))
            return
        piece = self._pieces[-1] if self._pieces else None
        if not isinstance(piece, _StreamedGooglePart) or piece.is_thought != is_thought or piece.extra_fields or extra:
            piece = _StreamedGooglePart(is_thought, clean_json_value(extra))
            self._pieces.append(piece)
        if shown := piece.text.add(text):
            yield ThinkingDelta(shown) if is_thought else TextDelta(shown)

    def _feed_call(self, part: Mapping[str, Any]) -> ToolCallDelta:
        fields = part["functionCall"]
        if not isinstance(fields, Mapping):
            raise self._build_malformed_error("a function call that is not an object", fields)
        call = decode_function_call(part, clean_text(read_string(fields.get("id"))), self._origin)
        place = len(self._pieces)
        if not call.name:
            place, call = self._extend_call(call, fields)
        index = sum(isinstance(piece, ToolCallPart) for piece in self._pieces[:place])
        self._pieces[place : place + 1] = [call]
        # Without arguments there is nothing to show yet: they may come in a part of their own.
        arguments = call.malformed or (json.dumps(call.arguments, ensure_ascii=False) if call.arguments else "")
        return ToolCallDelta(index, call.id, call.name, arguments)

    def _extend_call(self, rest: ToolCallPart, fields: Mapping[str, Any]) -> tuple[int, ToolCallPart]:
        """The call before a part without a name, with the part's arguments and other fields, and its place."""
        place = next((i for i, piece in reversed([*enumerate(self._pieces)]) if isinstance(piece, ToolCallPart)), None)
        call = None if place is None else self._pieces[place]
        if place is None or not isinstance(call, ToolCallPart):
            raise self._build_malformed_error("a function call without a name", fields)
        is_repeated = not rest.arguments or is_same_json(rest.arguments, call.arguments)
        if rest.malformed is not None or call.malformed is not None or (call.arguments and not is_repeated):
            raise self._build_malformed_error("a function call without a name behind a whole one", fields)
        opaque = keep_opaque(self._origin, {**(call.opaque or {}), **(rest.opaque or {})})
        update = opaque | {"id": call.id or rest.id, "arguments": call.arguments or rest.arguments}
        return place, call.model_copy(update=update)

    def take_continuation_token(self) -> str | None:
        """The token for the rest of a reply that reached the limit of one request; None if it is complete.

        Call it once at the end of each stream.
        """
        token, self._token = self._token, ""
        if self._reason != "CONTINUATION" or not token or token == self._last_token:
            return None
        self._reason, self._last_token = "", token
        self._earlier_usage, self._usage = self._earlier_usage + self._usage, Usage()
        return token

    def complete(self) -> Completed:
        """The whole reply.

        Raises ``TruncatedStreamError`` if the stream ended without a finish reason, ``MalformedReplyError`` and others
        if the reason means that there is no reply.
        """
        if not self._reason:
            raise self._build_truncated_error()
        ending = read_ending(self._reason)
        reason = require_reply(ending, self._endpoint, self._reason, self._message)
        parts: list[Part] = []
        for piece in self._pieces:
            part = piece.build_part(self._origin) if isinstance(piece, _StreamedGooglePart) else piece
            if part is not None:
                parts.append(part)
        parts = drop_repeated_calls(parts)
        if ending.kind == "refused":
            parts = [part for part in parts if not isinstance(part, ToolCallPart) or part.malformed is None]
        elif ending.kind == "complete" and any(isinstance(part, ToolCallPart) for part in parts):
            reason = "tool_calls"
        return Completed(tuple(parts), reason, self._earlier_usage + self._usage, self._model, origin=self._origin)


def decode_function_call(part: Mapping[str, Any], id: str, origin: str) -> ToolCallPart:
    """The call of a ``functionCall`` part, with the other fields of the part."""
    call = part["functionCall"]
    given = clean_json_value(call.get("args"))
    arguments = parse_arguments(read_argument_text(given))
    extra = clean_json_value({key: value for key, value in part.items() if key != "functionCall"})
    return ToolCallPart(
        id=id,
        name=clean_text(read_string(call.get("name"))),
        arguments=arguments or {},
        malformed=json.dumps(given, ensure_ascii=False) if arguments is None else None,
        **keep_opaque(origin, extra),
    )


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    thoughts = read_count(usage, "thoughtsTokenCount")
    return Usage(
        input_tokens=read_count(usage, "promptTokenCount") + read_count(usage, "toolUsePromptTokenCount"),
        output_tokens=read_count(usage, "candidatesTokenCount") + thoughts,
        cached_tokens=read_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )
