"""A pydantic-ai reply as ours. Imported with the first call, as it imports pydantic-ai."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_ai import messages as theirs

from ..ports import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import (
    FilePart,
    FinishReason,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    clean,
)
from .encoding import clean_json, parse_arguments
from .pydantic_ai_request import response_part

_FINISH: dict[str | None, FinishReason] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "error": "other",
}

_CHAT = "OpenAIStreamedResponse"
_GIVE_A_REASON = {
    _CHAT,
    "AnthropicStreamedResponse",
    "BedrockStreamedResponse",
    "CohereStreamedResponse",
    "GeminiStreamedResponse",
    "HuggingFaceStreamedResponse",
    "MistralStreamedResponse",
}
"""Streams whose last word is why the reply ended, which pydantic-ai keeps as the API said it. By name: each needs its
vendor's SDK to be imported. Groq's is not among them: it ends without one behind a bad tool call, of which the model is
told."""
_GIVES_NONE = "SnowflakeStreamedResponse"
"""A kind of chat completions."""


class Events:
    """pydantic-ai's stream events as ours."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, str, str]] = {}
        """By the part's place in the reply: the call's place among the calls, its id and its name."""

    def feed(self, event: object) -> Iterator[StreamEvent]:
        """What ``event`` is for whoever follows."""
        match event:
            case theirs.PartStartEvent(index=index, part=part):
                yield from self._begun(index, part)
            case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
                yield TextDelta(clean(text))
            case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=str(text))) if text:
                yield ThinkingDelta(clean(text))
            case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta() as delta):
                number, call_id, name = self._calls.get(index, (len(self._calls), "", ""))
                known = (number, delta.tool_call_id or call_id, name + (delta.tool_name_delta or ""))
                self._calls[index] = known
                if arguments := _raw(delta.args_delta):
                    yield ToolCallDelta(*known, arguments)

    def _begun(self, index: int, part: object) -> Iterator[StreamEvent]:
        match part:
            case theirs.TextPart(content=text) if text:
                yield TextDelta(clean(text))
            case theirs.ThinkingPart(content=text) if text:
                yield ThinkingDelta(clean(text))
            case theirs.ToolCallPart(tool_call_id=id, tool_name=name, args=args):
                number = self._calls[index][0] if index in self._calls else len(self._calls)
                self._calls[index] = (number, id, name)
                yield ToolCallDelta(number, id, name, _raw(args))


def completed(response: theirs.ModelResponse, origin: str) -> Completed:
    """The whole reply. ``origin`` names where its opaque data may go back to."""
    parts = tuple(_part(part, origin) for part in response.parts)
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    finish = _FINISH.get(response.finish_reason, "tool_calls" if calls else "stop")
    if calls and finish == "stop":
        finish = "tool_calls"  # as some vendors say it
    names = response.model_name or "", response.provider_name or ""
    return Completed(parts, finish, _usage(response.usage), *names, origin=origin)


def cut_short(stream: object, response: theirs.ModelResponse, profile: Mapping[str, Any]) -> bool:
    """Whether ``stream`` ended without the reason that its API gives at the end of every reply, and without an error.

    pydantic-ai takes what came for the whole reply then, and of chat completions makes a ``stop``. A model ``profile``
    which says that these need no reason is believed.
    """
    kinds = {kind.__name__ for kind in type(stream).__mro__}
    given = (response.provider_details or {}).get("finish_reason") or getattr(stream, "_has_finish_reason", False)
    if given or kinds.isdisjoint(_GIVE_A_REASON) or _GIVES_NONE in kinds:
        return False
    if _CHAT in kinds:
        asked = profile.get("openai_chat_streaming_requires_finish_reason") is not False
        return asked and response.finish_reason in (None, "stop")
    return response.finish_reason is None


def _part(part: theirs.ModelResponsePart, origin: str) -> Part:
    if isinstance(part, theirs.FilePart):
        data = base64.b64encode(part.content.data).decode()
        return FilePart(media_type=part.content.media_type, data=data)
    dumped: dict[str, Any] = clean_json(response_part.dump_python(part, mode="json", exclude_none=True))
    match part:
        case theirs.TextPart(content=text):
            return TextPart(text=clean(text), **_opaque(dumped, origin, "content"))
        case theirs.ThinkingPart(content=text):
            rest = {key: value for key, value in dumped.items() if key not in ("content", "part_kind")}
            return ThinkingPart(text=clean(text), provider=origin, opaque=rest or None)
        case theirs.ToolCallPart(tool_call_id=id, tool_name=name, args=args):
            raw = _raw(args)
            read = parse_arguments(raw)
            opaque = _opaque(dumped, origin, "tool_name", "args", "tool_call_id")
            return ToolCallPart(
                id=id, name=clean(name), arguments=read or {}, malformed=clean(raw) if read is None else None, **opaque
            )
    return OpaquePart(provider=origin, data=dumped)


def _opaque(dumped: dict[str, Any], origin: str, *said: str) -> dict[str, Any]:
    """What a part has beside what we keep of it; ``provider_name`` alone is nothing."""
    rest = {key: value for key, value in dumped.items() if key not in (*said, "part_kind")}
    return {"provider": origin, "opaque": rest} if rest.keys() - {"provider_name"} else {}


def _raw(args: Any) -> str:
    return json.dumps(args, ensure_ascii=False) if isinstance(args, dict) else clean(args or "")


def _usage(usage: Any) -> Usage:
    details = usage.details or {}
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=details.get("reasoning_tokens") or details.get("thoughts_tokens") or 0,
    )
