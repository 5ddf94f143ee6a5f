"""A streamed reply of Gemini, put together: chunks in, events out, ``Completed`` at the end.

Every part keeps what it carried beside its content (a thought signature), and no two parts become one where either
carried something: a signature is valid for its own part alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import (
    BadRequestError,
    ContentFilterError,
    MalformedReplyError,
    PermissionDeniedError,
    ProviderError,
    TruncatedStreamError,
)
from ..ports import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .encoding import StreamedText, clean_json_value
from .errors import build_stream_error, truncate_api_text
from .json_values import read_array, read_count, read_string

_GOOGLE_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "ESCALATION": "content_filter",
}
"""Outcomes of a reply; a reason that is not here is ``other``."""
_GOOGLE_FAILURE_REASONS: dict[str, type[ProviderError]] = {
    # The model meant to call a tool and wrote something else: nothing of it is in the reply, and it often succeeds
    # with the next attempt.
    "MALFORMED_FUNCTION_CALL": MalformedReplyError,
    "UNEXPECTED_TOOL_CALL": MalformedReplyError,
    "MALFORMED_RESPONSE": MalformedReplyError,
    "MISSING_THOUGHT_SIGNATURE": BadRequestError,
    "PUP_LIMITED_DISABLED": PermissionDeniedError,
}
"""Reasons with which there is no reply."""


@dataclass(slots=True)
class _StreamedGooglePart:
    """Text or thought under assembly; ``beside`` is what came with it."""

    is_thought: bool
    extra_fields: dict[str, Any]
    text: StreamedText = field(default_factory=StreamedText)

    def build_part(self, origin: str) -> Part | None:
        text, opaque = self.text.join_text(), self.extra_fields or None
        if self.is_thought:
            return ThinkingPart(text=text, provider=origin, opaque=opaque)
        return TextPart(text=text, provider=origin if opaque else None, opaque=opaque) if text else None


class GoogleReply:
    """One reply under assembly. ``endpoint`` and ``key_name`` are for errors; ``origin`` marks what is opaque."""

    def __init__(self, endpoint: str, origin: str, *, key_name: str = "the key") -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._key_name = key_name
        self._pieces: list[_StreamedGooglePart | ToolCallPart | OpaquePart] = []
        self._reason: str | None = None
        self._message = ""
        self._usage = Usage()
        self._earlier_usage = Usage()  # of the requests that this reply was continued from
        self._model = ""
        self._token = ""
        self._last_token = ""

    def feed(self, chunk: object) -> Iterator[StreamEvent]:
        """Take one chunk. Raises ``MalformedReplyError``, ``ContentFilterError``, or the error that it carries."""
        if isinstance(chunk, list):  # a server that knows no event stream sends all chunks as one list
            for inner in chunk:
                yield from self.feed(inner)
            return
        if not isinstance(chunk, Mapping):
            raise MalformedReplyError(f"{self._endpoint} sent a chunk that is no JSON object: {str(chunk)[:200]!r}")
        if chunk.get("error"):
            raise build_stream_error(chunk, "", self._endpoint, key_name=self._key_name)
        if isinstance(model := chunk.get("modelVersion"), str) and model:
            self._model = model
        if isinstance(usage := chunk.get("usageMetadata"), Mapping):
            self._usage = read_usage(usage)
        feedback = chunk.get("promptFeedback")
        if isinstance(feedback, Mapping) and (blocked := feedback.get("blockReason")):
            said = feedback.get("blockReasonMessage")
            raise ContentFilterError(
                f"{self._endpoint} refused the conversation ({blocked})"
                + (f": {truncate_api_text(str(said))}" if said else "")
            )
        for candidate in read_array(chunk.get("candidates")):
            if isinstance(candidate, Mapping) and not candidate.get("index"):
                yield from self._feed_candidate(candidate)

    def _feed_candidate(self, candidate: Mapping[str, Any]) -> Iterator[StreamEvent]:
        content = candidate.get("content") or {}
        if not isinstance(content, Mapping):
            raise MalformedReplyError(f"{self._endpoint} sent content that is no JSON object: {str(content)[:200]!r}")
        for part in read_array(content.get("parts")):
            if not isinstance(part, Mapping):
                raise MalformedReplyError(f"{self._endpoint} sent a part that is no JSON object: {str(part)[:200]!r}")
            yield from self._feed_part(part)
        if isinstance(reason := candidate.get("finishReason"), str) and reason:
            self._reason = reason
        if isinstance(message := candidate.get("finishMessage"), str):
            self._message = message
        if isinstance(token := candidate.get("continuationToken"), str):
            self._token = token

    def _feed_part(self, part: Mapping[str, Any]) -> Iterator[StreamEvent]:
        if "functionCall" in part:
            yield self._feed_call(part)
            return
        text, thought = part.get("text"), part.get("thought") is True
        beside = {key: value for key, value in part.items() if key not in ("text", "thought")}
        if not isinstance(text, str) or not (text or thought):
            # Code that ran on Google's side, a picture, a signature alone: it goes back as it came.
            if beside:
                self._pieces.append(OpaquePart(provider=self._origin, data=clean_json_value(dict(part))))
            return
        piece = self._pieces[-1] if self._pieces else None
        if not isinstance(piece, _StreamedGooglePart) or piece.is_thought != thought or piece.extra_fields or beside:
            piece = _StreamedGooglePart(thought, clean_json_value(beside))
            self._pieces.append(piece)
        if shown := piece.text.add(text):
            yield ThinkingDelta(shown) if thought else TextDelta(shown)

    def _feed_call(self, part: Mapping[str, Any]) -> ToolCallDelta:
        call = part["functionCall"]
        if not isinstance(call, Mapping) or not isinstance(name := call.get("name"), str):
            raise MalformedReplyError(f"{self._endpoint} sent a function call without a name: {str(call)[:200]!r}")
        made = decode_function_call(part, clean_text(read_string(call.get("id"))), self._origin)
        index = sum(isinstance(piece, ToolCallPart) for piece in self._pieces)
        self._pieces.append(made)
        arguments = made.malformed or json.dumps(made.arguments, ensure_ascii=False)
        return ToolCallDelta(index=index, id=made.id, name=clean_text(name), arguments=arguments)

    def take_continuation_token(self) -> str | None:
        """What to ask with for the rest, where the reply reached the limit of one request and goes on after it.

        To be asked once at the end of each stream.
        """
        token, self._token = self._token, ""
        if self._reason != "CONTINUATION" or not token or token == self._last_token:
            return None
        self._reason, self._last_token = None, token
        self._earlier_usage, self._usage = self._earlier_usage + self._usage, Usage()
        return token

    def complete(self) -> Completed:
        """The whole reply.

        Raises ``TruncatedStreamError`` when the stream never said why it ended, ``MalformedReplyError`` and others
        where it said that there is no reply.
        """
        if self._reason is None:
            raise TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
        if (failure := _GOOGLE_FAILURE_REASONS.get(self._reason)) is not None:
            said = f": {truncate_api_text(clean_text(self._message))}" if self._message else ""
            raise failure(f"{self._endpoint} gave no reply ({self._reason}){said}")
        reason = _GOOGLE_FINISH_REASONS.get(self._reason, "other")
        parts = [made for piece in self._pieces if (made := self._build_part(piece)) is not None]
        if reason in ("length", "content_filter"):
            parts = [part for part in parts if not isinstance(part, ToolCallPart) or part.malformed is None]
        elif any(isinstance(part, ToolCallPart) for part in parts):
            reason = "tool_calls"
        return Completed(tuple(parts), reason, self._earlier_usage + self._usage, self._model, origin=self._origin)

    def _build_part(self, piece: _StreamedGooglePart | ToolCallPart | OpaquePart) -> Part | None:
        return piece.build_part(self._origin) if isinstance(piece, _StreamedGooglePart) else piece


def decode_function_call(part: Mapping[str, Any], id: str, origin: str) -> ToolCallPart:
    """The call of a ``functionCall`` part, with what the part carries beside it."""
    call = part["functionCall"]
    name, arguments = clean_text(read_string(call.get("name"))), clean_json_value(call.get("args"))
    malformed = None if isinstance(arguments, dict | None) else json.dumps(arguments, ensure_ascii=False)
    beside = clean_json_value({key: value for key, value in part.items() if key != "functionCall"})
    return ToolCallPart(
        id=id,
        name=name,
        arguments=arguments if isinstance(arguments, dict) else {},
        malformed=malformed,
        provider=origin if beside else None,
        opaque=beside or None,
    )


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage as the API counts it; what is missing is 0."""
    thoughts = read_count(usage, "thoughtsTokenCount")
    return Usage(
        input_tokens=read_count(usage, "promptTokenCount") + read_count(usage, "toolUsePromptTokenCount"),
        output_tokens=read_count(usage, "candidatesTokenCount") + thoughts,
        cached_tokens=read_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )
