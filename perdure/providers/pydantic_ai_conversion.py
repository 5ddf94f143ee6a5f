"""A pydantic-ai reply as ours. Imported with the first call, as it imports pydantic-ai."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import exceptions
from pydantic_ai import messages as theirs
from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    MalformedReplyError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderConnectionError,
    ProviderError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    RuntimeSetupError,
    TruncatedStreamError,
)
from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import (
    FilePart,
    FinishReason,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    clean_text,
)
from .encoding import (
    clean_json_value,
    encode_call_id,
    encode_json,
    get_own_opaque,
    map_provider_ids,
    parse_arguments,
    read_file_bytes,
    render_file_text,
    require_loaded_text,
)
from .errors import build_status_error, describe_error, translate_transport_error

# ---
# The one translation of what pydantic-ai raises into ``perdure.errors``. Imported with the first call.


_ERROR_BY_CLASS: tuple[tuple[type[Exception], type[ProviderError]], ...] = (
    (exceptions.ModelRateLimitError, RateLimitError),
    (exceptions.ModelQuotaExceededError, PermissionDeniedError),
    (exceptions.ModelUnavailableError, OverloadedError),
    (exceptions.ModelServerError, ProviderServerError),
    (exceptions.ModelTimeoutError, ProviderTimeoutError),
    (exceptions.ModelRequestTimeout, ProviderTimeoutError),
    (exceptions.ModelConnectionError, ProviderConnectionError),
    (exceptions.ModelContextWindowExceededError, ContextLengthError),
    (exceptions.ModelAuthenticationError, AuthenticationError),
    (exceptions.ModelNotFoundError, ModelNotFoundError),
    (exceptions.ModelRequestRejectedError, BadRequestError),
    (exceptions.ModelAPIError, ProviderServerError),
    (exceptions.ContentFilterError, ContentFilterError),
    (exceptions.OutputTokenLimitExceeded, MalformedReplyError),
    (exceptions.UnexpectedModelBehavior, MalformedReplyError),
    (exceptions.ConcurrencyLimitExceeded, OverloadedError),
)
"""The first that fits. Errors with an HTTP status are classified as every adapter's are, by
:func:`build_status_error`."""


def translate_error(error: Exception, *, begun: bool, endpoint: str) -> ProviderError | RuntimeSetupError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` names the API for people."""
    return (
        error
        if isinstance(error, ProviderError | RuntimeSetupError)
        else _translate_pydantic_ai_error(error, begun, endpoint)
    )


def _translate_pydantic_ai_error(error: Exception, begun: bool, endpoint: str) -> ProviderError:
    if isinstance(error, exceptions.FallbackExceptionGroup):
        return _translate_error_group(error, begun, endpoint)
    if isinstance(error, exceptions.ModelHTTPError):
        return _translate_http_error(error, endpoint)
    if begun and type(error) is exceptions.ModelConnectionError:
        return TruncatedStreamError(
            f"{endpoint} broke the connection in the middle of the reply ({describe_error(error)})"
        )
    for kind, ours in _ERROR_BY_CLASS:
        if isinstance(error, kind):
            wait = getattr(error, "retry_after", None) if ours.retryable else None
            return ours(f"{endpoint}: {describe_error(error)}", retry_after=wait)
    if (
        not isinstance(error, UnicodeEncodeError)
        and (found := translate_transport_error(error, begun, endpoint)) is not None
    ):
        return found  # before what follows: an SDK's parser raises ValueError
    if isinstance(error, ImportError):
        return BadRequestError(
            f"{endpoint}: {describe_error(error)}", hint="Install the SDK that this pydantic-ai model needs."
        )
    if isinstance(
        error, exceptions.UserError | exceptions.AgentRunError | NotImplementedError | ValueError | TypeError
    ):
        return BadRequestError(f"{endpoint}: pydantic-ai does not take the request ({describe_error(error)})")
    unexpected = ProviderError(f"{endpoint}: unexpected {describe_error(error)}")
    unexpected.retryable = True  # pydantic-ai reads the beginning of a reply before it gives the stream
    return unexpected


def _translate_http_error(error: exceptions.ModelHTTPError, endpoint: str) -> ProviderError:
    found = build_status_error(error.status_code, error.body, error.headers or {}, endpoint)
    if found.retryable and found.retry_after is None:
        found.retry_after = error.retry_after
    if isinstance(error, exceptions.ModelContextWindowExceededError) and not isinstance(found, ContextLengthError):
        return ContextLengthError(found.message, status=error.status_code)
    if isinstance(error, exceptions.ModelQuotaExceededError) and found.retryable:
        return PermissionDeniedError(found.message, status=error.status_code)
    return found


def _translate_error_group(error: exceptions.FallbackExceptionGroup, begun: bool, endpoint: str) -> ProviderError:
    """Of a pydantic-ai ``FallbackModel`` whose models all failed: the one that may pass, else the first."""
    found = [
        _translate_pydantic_ai_error(one, begun, endpoint) for one in error.exceptions if isinstance(one, Exception)
    ]
    return next((one for one in found if one.retryable), found[0] if found else ProviderError(f"{endpoint}: {error}"))


# ---
# Our messages as pydantic-ai's. Imported with the first call, as it imports pydantic-ai.


_PYDANTIC_AI_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_PYDANTIC_AI_CALL_ID = 40
"""What every vendor takes as the id of a call."""
_FILE_URL_TYPES: dict[
    str, tuple[str, type[theirs.ImageUrl | theirs.AudioUrl | theirs.VideoUrl | theirs.DocumentUrl]]
] = {
    "image": ("supports_image_input", theirs.ImageUrl),
    "audio": ("supports_audio_file_input", theirs.AudioUrl),
    "video": ("supports_video_input", theirs.VideoUrl),
}
_DOCUMENT_URL_TYPE: tuple[str, type[theirs.DocumentUrl]] = ("supports_document_input", theirs.DocumentUrl)
RESPONSE_PART_ADAPTER: TypeAdapter[Any] = TypeAdapter(ModelResponsePart)
"""One part of a reply, from JSON and to it."""


def encode_messages(request: ModelRequest, origin: str, profile: Mapping[str, Any]) -> list[ModelMessage]:
    """The conversation: messages that follow each other on the user's side are one, as some vendors ask for.

    Opaque data goes along where it came from ``origin``. Files are given as the model's ``profile`` takes them, and as
    text where it does not. Raises ``BadRequestError`` for content that was not loaded.
    """
    encoder = _PydanticAIEncoder(request, origin, profile)
    said: list[ModelMessage] = []
    ours: list[ModelRequestPart] = []
    if request.system:
        ours.append(theirs.SystemPromptPart(clean_text(request.system)))
    for message in request.messages:
        if message.role != "assistant":
            ours.extend(encoder.encode_request_parts(message))
            continue
        if parts := list(encoder.encode_response_parts(message)):
            if ours:
                said.append(theirs.ModelRequest(ours))
                ours = []
            said.append(theirs.ModelResponse(parts, model_name=message.model))
    if ours:
        said.append(theirs.ModelRequest(ours))
    return said


class _PydanticAIEncoder:
    def __init__(self, request: ModelRequest, origin: str, profile: Mapping[str, Any]) -> None:
        self._files = request.files
        self._ids = map_provider_ids(request.messages, origin)
        self._origin = origin
        self._profile = profile

    def encode_request_parts(self, message: Message) -> Iterator[ModelRequestPart]:
        if message.role == "system":
            yield theirs.SystemPromptPart(clean_text(message.text))
            return
        for part in message.tool_results:
            yield self._encode_result(part)
        content = [self._encode_content(part) for part in message.parts if isinstance(part, TextPart | FilePart)]
        texts = [item for item in content if isinstance(item, str)]
        if content:
            yield theirs.UserPromptPart("\n\n".join(texts) if len(texts) == len(content) else content)

    def _encode_result(self, part: ToolResultPart) -> theirs.ToolReturnPart[Any]:
        text = clean_text(require_loaded_text(part.content, part))
        content: Any = [*([text] if text else []), *map(self._encode_file, part.files)] if part.files else text
        return theirs.ToolReturnPart(
            tool_name=part.name,
            content=content,
            tool_call_id=self._encode_call_id(part.call_id),
            outcome="failed" if part.is_error else "success",
        )

    def _encode_content(self, part: TextPart | FilePart) -> str | theirs.MultiModalContent:
        return (
            clean_text(require_loaded_text(part.text, part)) if isinstance(part, TextPart) else self._encode_file(part)
        )

    def _encode_file(self, file: FilePart) -> str | theirs.MultiModalContent:
        flag, url_type = _FILE_URL_TYPES.get(file.media_type.partition("/")[0], _DOCUMENT_URL_TYPE)
        content = read_file_bytes(file, self._files)
        binary = theirs.BinaryContent(content or b"", media_type=file.media_type)
        known = binary.is_image or binary.is_audio or binary.is_video or binary.is_document
        if not known or not self._profile.get(flag, True):
            return clean_text(render_file_text(file, self._files))
        if content is None:
            return url_type(file.url or "", media_type=file.media_type)
        return binary

    def encode_response_parts(self, message: Message) -> Iterator[ModelResponsePart]:
        for part in message.parts:
            if (encoded := self._encode_part(part)) is not None:
                yield encoded

    def _encode_part(self, part: Part) -> ModelResponsePart | None:
        if isinstance(part, OpaquePart):
            return _restore_response_part(data) if (data := get_own_opaque(part, self._origin)) is not None else None
        if isinstance(part, ThinkingPart):
            if part.provider != self._origin:
                return None
            return _restore_response_part({"part_kind": "thinking", "content": part.text, **(part.opaque or {})})
        if isinstance(part, TextPart):
            if not (text := require_loaded_text(part.text, part)):
                return None
            return _restore_response_part(
                {"part_kind": "text", "content": text, **(get_own_opaque(part, self._origin) or {})}
            )
        if isinstance(part, ToolCallPart):
            call = {"tool_name": part.name, "args": part.arguments, "tool_call_id": self._encode_call_id(part.id)}
            return _restore_response_part(
                {"part_kind": "tool-call", **call, **(get_own_opaque(part, self._origin) or {})}
            )
        if isinstance(part, FilePart):
            content = read_file_bytes(part, self._files)
            return (
                theirs.TextPart(clean_text(render_file_text(part, self._files)))
                if content is None
                else _encode_reply_file(part, content)
            )
        return None

    def _encode_call_id(self, call_id: str) -> str:
        return self._ids.get(call_id) or encode_call_id(call_id, _MAX_PYDANTIC_AI_CALL_ID, _PYDANTIC_AI_CALL_ID)


def _encode_reply_file(part: FilePart, content: bytes) -> theirs.FilePart:
    return theirs.FilePart(theirs.BinaryContent(content, media_type=part.media_type))


def _restore_response_part(data: Mapping[str, Any]) -> ModelResponsePart:
    part: ModelResponsePart = RESPONSE_PART_ADAPTER.validate_json(
        encode_json(data)
    )  # refuses and cleans as for our own formats
    return part


_PYDANTIC_AI_FINISH_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "error": "other",
}

_CHAT_STREAM_CLASS = "OpenAIStreamedResponse"
_STREAMS_WITH_FINISH_REASON = {
    _CHAT_STREAM_CLASS,
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
_STREAM_WITHOUT_FINISH_REASON = "SnowflakeStreamedResponse"
"""A kind of chat completions."""


class StreamEventConverter:
    """pydantic-ai's stream events as ours."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, str, str]] = {}
        """By the part's place in the reply: the call's place among the calls, its id and its name."""

    def feed(self, event: object) -> Iterator[StreamEvent]:
        """What ``event`` is for whoever follows."""
        match event:
            case theirs.PartStartEvent(index=index, part=part):
                yield from self._start_part(index, part)
            case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
                yield TextDelta(clean_text(text))
            case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=str(text))) if text:
                yield ThinkingDelta(clean_text(text))
            case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta() as delta):
                number, call_id, name = self._calls.get(index, (len(self._calls), "", ""))
                known = (number, delta.tool_call_id or call_id, name + (delta.tool_name_delta or ""))
                self._calls[index] = known
                if arguments := _encode_raw_arguments(delta.args_delta):
                    yield ToolCallDelta(*known, arguments)

    def _start_part(self, index: int, part: object) -> Iterator[StreamEvent]:
        match part:
            case theirs.TextPart(content=text) if text:
                yield TextDelta(clean_text(text))
            case theirs.ThinkingPart(content=text) if text:
                yield ThinkingDelta(clean_text(text))
            case theirs.ToolCallPart(tool_call_id=id, tool_name=name, args=args):
                number = self._calls[index][0] if index in self._calls else len(self._calls)
                self._calls[index] = (number, id, name)
                yield ToolCallDelta(number, id, name, _encode_raw_arguments(args))


def build_completed(response: theirs.ModelResponse, origin: str) -> Completed:
    """The whole reply. ``origin`` names where its opaque data may go back to."""
    parts = tuple(_decode_response_part(part, origin) for part in response.parts)
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    finish = _PYDANTIC_AI_FINISH_REASONS.get(response.finish_reason, "tool_calls" if calls else "stop")
    if calls and finish == "stop":
        finish = "tool_calls"  # as some vendors say it
    names = response.model_name or "", response.provider_name or ""
    return Completed(parts, finish, _read_request_usage(response.usage), *names, origin=origin)


def is_cut_short(stream: object, response: theirs.ModelResponse, profile: Mapping[str, Any]) -> bool:
    """Whether ``stream`` ended without the reason that its API gives at the end of every reply, and without an error.

    pydantic-ai takes what came for the whole reply then, and of chat completions makes a ``stop``. A model ``profile``
    which says that these need no reason is believed.
    """
    kinds = {kind.__name__ for kind in type(stream).__mro__}
    given = (response.provider_details or {}).get("finish_reason") or getattr(stream, "_has_finish_reason", False)
    if given or kinds.isdisjoint(_STREAMS_WITH_FINISH_REASON) or _STREAM_WITHOUT_FINISH_REASON in kinds:
        return False
    if _CHAT_STREAM_CLASS in kinds:
        asked = profile.get("openai_chat_streaming_requires_finish_reason") is not False
        return asked and response.finish_reason in (None, "stop")
    return response.finish_reason is None


def _decode_response_part(part: theirs.ModelResponsePart, origin: str) -> Part:
    if isinstance(part, theirs.FilePart):
        data = base64.b64encode(part.content.data).decode()
        return FilePart(media_type=part.content.media_type, data=data)
    dumped: dict[str, Any] = clean_json_value(RESPONSE_PART_ADAPTER.dump_python(part, mode="json", exclude_none=True))
    match part:
        case theirs.TextPart(content=text):
            return TextPart(text=clean_text(text), **_collect_opaque_fields(dumped, origin, "content"))
        case theirs.ThinkingPart(content=text):
            rest = {key: value for key, value in dumped.items() if key not in ("content", "part_kind")}
            return ThinkingPart(text=clean_text(text), provider=origin, opaque=rest or None)
        case theirs.ToolCallPart(tool_call_id=id, tool_name=name, args=args):
            raw = _encode_raw_arguments(args)
            read = parse_arguments(raw)
            opaque = _collect_opaque_fields(dumped, origin, "tool_name", "args", "tool_call_id")
            return ToolCallPart(
                id=id,
                name=clean_text(name),
                arguments=read or {},
                malformed=clean_text(raw) if read is None else None,
                **opaque,
            )
    return OpaquePart(provider=origin, data=dumped)


def _collect_opaque_fields(dumped: dict[str, Any], origin: str, *said: str) -> dict[str, Any]:
    """What a part has beside what we keep of it; ``provider_name`` alone is nothing."""
    rest = {key: value for key, value in dumped.items() if key not in (*said, "part_kind")}
    return {"provider": origin, "opaque": rest} if rest.keys() - {"provider_name"} else {}


def _encode_raw_arguments(args: Any) -> str:
    return json.dumps(args, ensure_ascii=False) if isinstance(args, dict) else clean_text(args or "")


def _read_request_usage(usage: Any) -> Usage:
    details = usage.details or {}
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=details.get("reasoning_tokens") or details.get("thoughts_tokens") or 0,
    )
