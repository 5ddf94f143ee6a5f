"""Converts errors, messages and replies between pydantic-ai and perdure.

Imported with the first call, as it imports pydantic-ai.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from pydantic import TypeAdapter
from pydantic_ai import exceptions
from pydantic_ai import messages as theirs
from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart

from .. import errors
from ..ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import (
    FilePart,
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
    MessageEncoder,
    build_tool_call,
    clean_json_value,
    encode_json,
    get_own_opaque,
    keep_opaque,
    read_file_bytes,
    render_file_text,
    require_loaded_text,
    strip_parameters,
)
from .errors import build_connection_error, build_status_error, describe_error, translate_transport_error
from .finish_reasons import read_ending, require_reply
from .reply import read_string
from .tool_call_stream import drop_repeated_calls

# ---
# Errors.


_ERROR_BY_CLASS: tuple[tuple[type[Exception], type[errors.ProviderError]], ...] = (
    (exceptions.ModelRateLimitError, errors.RateLimitError),
    (exceptions.ModelQuotaExceededError, errors.PermissionDeniedError),
    (exceptions.ModelUnavailableError, errors.OverloadedError),
    (exceptions.ModelServerError, errors.ProviderServerError),
    (exceptions.ModelTimeoutError, errors.ProviderTimeoutError),
    (exceptions.ModelRequestTimeout, errors.ProviderTimeoutError),
    (exceptions.ModelConnectionError, errors.ProviderConnectionError),
    (exceptions.ModelContextWindowExceededError, errors.ContextLengthError),
    (exceptions.ModelAuthenticationError, errors.AuthenticationError),
    (exceptions.ModelNotFoundError, errors.ModelNotFoundError),
    (exceptions.ModelRequestRejectedError, errors.BadRequestError),
    (exceptions.ModelAPIError, errors.ProviderServerError),
    (exceptions.ContentFilterError, errors.ContentFilterError),
    (exceptions.OutputTokenLimitExceeded, errors.ModelSlipError),
    (exceptions.UnexpectedModelBehavior, errors.ModelSlipError),
    (exceptions.ConcurrencyLimitExceeded, errors.OverloadedError),
)
"""The first that fits. Errors with an HTTP status are classified by :func:`build_status_error`, as in every adapter."""


TranslatedError = errors.ProviderError | errors.RuntimeSetupError


def translate_error(error: Exception, *, reply_started: bool, endpoint: str) -> TranslatedError:
    """Translates an exception of pydantic-ai, or of an SDK below it."""
    if isinstance(error, TranslatedError):
        return error
    description = describe_error(error)
    if isinstance(error, exceptions.FallbackExceptionGroup):
        # A FallbackModel whose models all failed: the error that may pass, else the first.
        inner_errors = [inner for inner in error.exceptions if isinstance(inner, Exception)]
        translated = [translate_error(inner, reply_started=reply_started, endpoint=endpoint) for inner in inner_errors]
        retryable = (each for each in translated if each.retryable)
        return next(retryable, translated[0] if translated else errors.ProviderError(f"{endpoint}: {error}"))
    if isinstance(error, exceptions.ModelHTTPError):
        return _translate_http_error(error, endpoint)
    if reply_started and type(error) is exceptions.ModelConnectionError:
        return build_connection_error(error, reply_started, endpoint)
    for their_class, our_class in _ERROR_BY_CLASS:
        if isinstance(error, their_class):
            wait = getattr(error, "retry_after", None) if our_class.retryable else None
            return our_class(f"{endpoint}: {description}", retry_after=wait)
    # Before ValueError below: the parser of an SDK raises it.
    if not isinstance(error, UnicodeEncodeError) and (
        transport_error := translate_transport_error(error, reply_started, endpoint)
    ):
        return transport_error
    if isinstance(error, ImportError):
        hint = "Install the SDK that this pydantic-ai model needs."
        return errors.BadRequestError(f"{endpoint}: {description}", hint=hint)
    if isinstance(
        error, exceptions.UserError | exceptions.AgentRunError | NotImplementedError | ValueError | TypeError
    ):
        return errors.BadRequestError(f"{endpoint}: pydantic-ai does not take the request ({description})")
    unexpected = errors.ProviderError(f"{endpoint}: unexpected {description}")
    unexpected.retryable = True  # pydantic-ai reads the beginning of a reply before it returns the stream
    return unexpected


def _translate_http_error(error: exceptions.ModelHTTPError, endpoint: str) -> errors.ProviderError:
    provider_error = build_status_error(error.status_code, error.body, error.headers or {}, endpoint)
    if provider_error.retryable and provider_error.retry_after is None:
        provider_error.retry_after = error.retry_after
    if isinstance(error, exceptions.ModelContextWindowExceededError) and not isinstance(
        provider_error, errors.ContextLengthError
    ):
        return errors.ContextLengthError(provider_error.message, status=error.status_code)
    if isinstance(error, exceptions.ModelQuotaExceededError) and provider_error.retryable:
        return errors.PermissionDeniedError(provider_error.message, status=error.status_code)
    return provider_error


# ---
# Our messages as pydantic-ai's.


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
    """The conversation: consecutive messages of the user's side are one, which some vendors require.

    Opaque data is included if it came from ``origin``. Files are sent as the model's ``profile`` takes them, else as
    text. Raises ``BadRequestError`` for content that was not loaded.
    """
    encoder = _PydanticAIEncoder(request, origin, profile)
    encoded: list[ModelMessage] = []
    request_parts: list[ModelRequestPart] = []
    if request.system:
        request_parts.append(theirs.SystemPromptPart(clean_text(request.system)))
    for message in request.messages:
        if message.role != "assistant":
            request_parts.extend(encoder.encode_request_parts(message))
        elif parts := [part for each in message.parts if (part := encoder.encode_reply_part(each)) is not None]:
            if request_parts:
                encoded.append(theirs.ModelRequest(request_parts))
                request_parts = []
            encoded.append(theirs.ModelResponse(parts, model_name=message.model))
    if request_parts:
        encoded.append(theirs.ModelRequest(request_parts))
    return encoded


class _PydanticAIEncoder(MessageEncoder):
    max_call_id = 40  # together with the pattern: ids that every vendor takes
    call_id_pattern = re.compile(r"[a-zA-Z0-9_-]+")

    def __init__(self, request: ModelRequest, origin: str, profile: Mapping[str, Any]) -> None:
        super().__init__(request, origin)
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
        text = clean_text(require_loaded_text(part))
        content: Any = [*([text] if text else []), *map(self._encode_file, part.files)] if part.files else text
        return theirs.ToolReturnPart(
            tool_name=part.name,
            content=content,
            tool_call_id=self.encode_call_id(part.call_id),
            outcome="failed" if part.is_error else "success",
        )

    def _encode_content(self, part: TextPart | FilePart) -> str | theirs.MultiModalContent:
        if isinstance(part, FilePart):
            return self._encode_file(part)
        return clean_text(require_loaded_text(part))

    def _encode_file(self, file: FilePart) -> str | theirs.MultiModalContent:
        media_type = strip_parameters(file.media_type)
        flag, url_type = _FILE_URL_TYPES.get(media_type.partition("/")[0], _DOCUMENT_URL_TYPE)
        content = read_file_bytes(file, self.files)
        binary = theirs.BinaryContent(content or b"", media_type=media_type)
        is_known = binary.is_image or binary.is_audio or binary.is_video or binary.is_document
        if not is_known or not self._profile.get(flag, True):
            return clean_text(render_file_text(file, self.files))
        return url_type(file.url or "", media_type=media_type) if content is None else binary

    def encode_reply_part(self, part: Part) -> ModelResponsePart | None:
        match part:
            case OpaquePart():
                data = get_own_opaque(part, self.origin)
                return _restore_reply_part(data) if data is not None else None
            case ThinkingPart():
                if part.provider != self.origin:
                    return None
                return _restore_reply_part({"part_kind": "thinking", "content": part.text, **(part.opaque or {})})
            case TextPart():
                if not (text := require_loaded_text(part)):
                    return None
                return _restore_reply_part({"part_kind": "text", "content": text, **self.get_opaque(part)})
            case ToolCallPart():
                call = {"tool_name": part.name, "args": part.arguments, "tool_call_id": self.encode_call_id(part.id)}
                return _restore_reply_part({"part_kind": "tool-call", **call, **self.get_opaque(part)})
            case FilePart():
                content = read_file_bytes(part, self.files)
                if content is None:
                    return theirs.TextPart(clean_text(render_file_text(part, self.files)))
                return theirs.FilePart(theirs.BinaryContent(content, media_type=part.media_type))
            case ToolResultPart():
                return None  # only in messages of its own
            case never:
                assert_never(never)


def _restore_reply_part(data: Mapping[str, Any]) -> ModelResponsePart:
    # encode_json refuses and cleans values as for the other formats.
    part: ModelResponsePart = RESPONSE_PART_ADAPTER.validate_json(encode_json(data))
    return part


# ---
# Replies.


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
"""Streams that end with a finish reason, which pydantic-ai keeps as the API sent it. By name: importing a class needs
its vendor's SDK. Groq's is not among them: after a malformed tool call it ends without a reason."""
_STREAM_WITHOUT_FINISH_REASON = "SnowflakeStreamedResponse"
"""A kind of chat completions."""


class StreamEventConverter:
    """Converts pydantic-ai's stream events to ours."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, str, str]] = {}
        """By the part's place in the reply: the call's place among the calls, its id and its name."""

    def feed(self, event: object) -> Iterator[StreamEvent]:
        """Convert one event."""
        match event:
            case theirs.PartStartEvent(index=index, part=part):
                yield from self._start_part(index, part)
            case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
                yield TextDelta(clean_text(text))
            case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=str(text))) if text:
                yield ThinkingDelta(clean_text(text))
            case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta() as delta):
                number, call_id, name = self._calls.get(index, (len(self._calls), "", ""))
                call = (number, delta.tool_call_id or call_id, name + (delta.tool_name_delta or ""))
                self._calls[index] = call
                if arguments := _encode_raw_arguments(delta.args_delta):
                    yield ToolCallDelta(*call, arguments)

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


def build_completed(response: theirs.ModelResponse, origin: str, endpoint: str) -> Completed:
    """The whole reply. ``origin`` is the only server that its opaque data may be sent back to. Raises what
    :func:`require_reply` raises."""
    # pydantic-ai has no word for what it does not know; some of its models give none at all, and are whole.
    native = read_string((response.provider_details or {}).get("finish_reason"))
    word = response.finish_reason or native or "stop"
    ending = read_ending(word, native)
    reason = require_reply(ending, endpoint, word, native=native)
    parts = [_decode_reply_part(part, origin) for part in response.parts]
    if ending.kind == "cut" and parts:
        parts[-1] = _mark_cut_call(parts[-1], response.parts[-1])
    parts = drop_repeated_calls(parts)
    if ending.kind == "refused":
        parts = [part for part in parts if not isinstance(part, ToolCallPart) or part.malformed is None]
    if reason == "stop" and any(isinstance(part, ToolCallPart) for part in parts):
        reason = "tool_calls"  # some vendors send "stop" with calls
    details = response.usage.details or {}
    usage = Usage(
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
        cached_tokens=response.usage.cache_read_tokens,
        cache_write_tokens=response.usage.cache_write_tokens,
        reasoning_tokens=details.get("reasoning_tokens") or details.get("thoughts_tokens") or 0,
    )
    return Completed(
        tuple(parts), reason, usage, response.model_name or "", response.provider_name or "", origin=origin
    )


def _mark_cut_call(last: Part, their_last: theirs.ModelResponsePart) -> Part:
    """``last``, the last part of a reply that the output limit cut; a call without arguments was cut before them."""
    if isinstance(last, ToolCallPart) and isinstance(their_last, theirs.ToolCallPart) and not their_last.args:
        return last.model_copy(update={"malformed": ""})
    return last


def is_cut_short(stream: object, response: theirs.ModelResponse, profile: Mapping[str, Any]) -> bool:
    """Whether ``stream`` ended without an error, but also without the reason that its API gives at the end of a reply.

    pydantic-ai then takes the incomplete reply for the whole, and for chat completions makes up a ``stop``. A model's
    ``profile`` may say that these need no reason.
    """
    class_names = {cls.__name__ for cls in type(stream).__mro__}
    has_reason = (response.provider_details or {}).get("finish_reason") or getattr(stream, "_has_finish_reason", False)
    if (
        has_reason
        or class_names.isdisjoint(_STREAMS_WITH_FINISH_REASON)
        or _STREAM_WITHOUT_FINISH_REASON in class_names
    ):
        return False
    if _CHAT_STREAM_CLASS in class_names:
        is_required = profile.get("openai_chat_streaming_requires_finish_reason") is not False
        return is_required and response.finish_reason in (None, "stop")
    return response.finish_reason is None


def _decode_reply_part(part: theirs.ModelResponsePart, origin: str) -> Part:
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
            opaque = _collect_opaque_fields(dumped, origin, "tool_name", "args", "tool_call_id")
            return build_tool_call(id, clean_text(name), clean_text(_encode_raw_arguments(args)), opaque)
    return OpaquePart(provider=origin, data=dumped)


def _collect_opaque_fields(dumped: dict[str, Any], origin: str, *known_keys: str) -> dict[str, Any]:
    """The fields of a part that our part lacks, kept for ``origin``; none if only ``provider_name`` is left."""
    rest = {key: value for key, value in dumped.items() if key not in (*known_keys, "part_kind")}
    return keep_opaque(origin, rest) if rest.keys() - {"provider_name"} else {}


def _encode_raw_arguments(args: Any) -> str:
    return json.dumps(args, ensure_ascii=False) if isinstance(args, dict) else clean_text(args or "")
