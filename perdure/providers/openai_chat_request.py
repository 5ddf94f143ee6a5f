"""The messages of a conversation in the chat completions wire format, each encoded once in its life.

A message's fragment stays on it under the origin it was encoded for, and a call joins the fragments: so a call costs
what copying the transcript costs, not what encoding it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from ..ports import ModelRequest, ToolSpec
from ..types.messages import (
    ContentPart,
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from .encoding import (
    build_data_url,
    build_moved_file_parts,
    encode_call_id,
    encode_file_base64,
    encode_json,
    encode_json_text,
    encode_tool_name,
    get_own_opaque,
    map_provider_ids,
    render_file_text,
    require_loaded_text,
)

MAX_CHAT_CALL_ID = 40
"""Characters that OpenAI takes of a tool call's id."""
THINKING_FIELDS = ("reasoning_content", "reasoning")
"""Where compatible servers put what a model thought."""
_CHAT_IMAGE_TYPES = {"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"}
_CHAT_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}

FileContents = Mapping[str, bytes]


def encode_messages(messages: Sequence[Message], origin: str, files: FileContents) -> Iterator[bytes]:
    """Fragments of ``messages``, for the server that ``origin`` names: one or more JSON objects each.

    Results hold text alone; their files follow in a user message, after the results of all calls, which must not be
    parted. Raises ``BadRequestError`` for content that was not loaded.
    """
    moved_as = f"{origin} files"
    ids = map_provider_ids(messages, origin)
    moved: list[bytes] = []
    for message in messages:
        if moved and message.role != "tool":
            yield from moved
            moved.clear()
        fragment = message.wire(origin)
        if fragment is None:
            fragment = b",".join(map(encode_json, _encode_chat_message(message, origin, files, ids)))
            message.remember_wire(origin, fragment)
        if fragment:
            yield fragment
        if message.role == "tool":
            following = message.wire(moved_as)
            if following is None:
                content = build_moved_file_parts(
                    _rename_result_for_wire(result, ids) for result in message.tool_results if result.files
                )
                following = (
                    encode_json({"role": "user", "content": _encode_chat_content(content, files)}) if content else b""
                )
                message.remember_wire(moved_as, following)
            if following:
                moved.append(following)
    yield from moved


def _encode_chat_call_id(call_id: str, ids: Mapping[str, str]) -> str:
    return ids.get(call_id) or encode_call_id(call_id, MAX_CHAT_CALL_ID)


def _rename_result_for_wire(result: ToolResultPart, ids: Mapping[str, str]) -> ToolResultPart:
    """With the id and the name that its call goes out under."""
    return result.model_copy(
        update={"call_id": _encode_chat_call_id(result.call_id, ids), "name": encode_tool_name(result.name)}
    )


def _encode_chat_message(
    message: Message, origin: str, files: FileContents, ids: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    match message.role:
        case "system":
            yield {"role": "system", "content": _join_chat_text(message.parts, files)}
        case "user":
            content = [part for part in message.parts if isinstance(part, TextPart | FilePart)]
            yield {"role": "user", "content": _encode_chat_content(content, files)}
        case "assistant":
            yield _encode_chat_assistant(message, origin, files, ids)
        case "tool":
            for part in message.tool_results:
                # There is no mark for an error: the text says what went wrong.
                content_text = require_loaded_text(part.content, part)
                yield {"role": "tool", "tool_call_id": _encode_chat_call_id(part.call_id, ids), "content": content_text}
        case never:
            assert_never(never)


def _encode_chat_assistant(
    message: Message, origin: str, files: FileContents, ids: Mapping[str, str]
) -> dict[str, Any]:
    refused = [
        part
        for part in message.parts
        if isinstance(part, TextPart) and (get_own_opaque(part, origin) or {}).get("refusal")
    ]
    text = _join_chat_text([part for part in message.parts if part not in refused] if refused else message.parts, files)
    calls = [_encode_chat_call(call, origin, ids) for call in message.tool_calls]
    plain: dict[str, Any] = {"role": "assistant", "content": text}
    if refused:
        plain["refusal"] = _join_chat_text(refused, files)
    if calls:
        plain["tool_calls"] = calls
    if not text and (calls or refused):
        # With none of the three (an empty reply, thinking alone) the API refuses null, not "".
        plain["content"] = None
    return plain | _encode_chat_thinking(message.parts, origin)


def _encode_chat_thinking(parts: Sequence[Part], origin: str) -> dict[str, Any]:
    """What the server itself gave as the model's thinking, in the field it came in.

    DeepSeek refuses a conversation with tool calls that lacks it (its first reasoning models refused one that had it:
    they had no tools), and models that think between tool calls go on from it. OpenAI itself gives none, so it gets
    none; nor does any other server, because few take it.
    """
    fields: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, ThinkingPart) and (opaque := get_own_opaque(part, origin)):
            if isinstance(details := opaque.get("reasoning_details"), list):
                fields["reasoning_details"] = [*fields.get("reasoning_details", ()), *details]
            elif (field := opaque.get("field")) in THINKING_FIELDS:
                fields[field] = fields.get(field, "") + part.text
    return fields


def _encode_chat_call(call: ToolCallPart, origin: str, ids: Mapping[str, str]) -> dict[str, Any]:
    # Malformed arguments go back as {}: the API wants JSON, and the result that follows says what was wrong.
    function = {"name": encode_tool_name(call.name), "arguments": encode_json_text(call.arguments)}
    plain: dict[str, Any] = {"id": _encode_chat_call_id(call.id, ids), "type": "function", "function": function}
    # Google's compatible endpoint keeps its thought signatures there, and refuses a call without its own.
    if (extra := (get_own_opaque(call, origin) or {}).get("extra_content")) is not None:
        plain["extra_content"] = extra
    return plain


def _join_chat_text(parts: Iterable[Part], files: FileContents) -> str:
    """Everything as text, where the format takes no files."""
    texts: list[str] = []
    for part in parts:
        match part:
            case TextPart():
                texts.append(require_loaded_text(part.text, part))
            case FilePart():
                texts.append(render_file_text(part, files))
            case ThinkingPart() | OpaquePart() | ToolCallPart() | ToolResultPart():
                pass  # thinking and opaque parts are the writer's own; calls and results have their place
            case never:
                assert_never(never)
    return "".join(texts)


def _encode_chat_content(parts: Sequence[ContentPart], files: FileContents) -> str | list[dict[str, Any]]:
    """A user's content: a text, or a list of typed parts where there are files."""
    if not any(isinstance(part, FilePart) for part in parts):
        return _join_chat_text(parts, files)
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, FilePart):
            content.append(_encode_chat_file(part, files))
        elif text := require_loaded_text(part.text, part):
            content.append({"type": "text", "text": text})
    return content


def _encode_chat_file(file: FilePart, files: FileContents) -> dict[str, Any]:
    kind = file.media_type.partition(";")[0].strip().lower()
    if kind in _CHAT_IMAGE_TYPES:
        # A URL goes through: the API fetches it. Files and sound it takes as bytes only.
        return {"type": "image_url", "image_url": {"url": file.url or build_data_url(file, files)}}
    if kind == "application/pdf" and (url := build_data_url(file, files)):
        return {"type": "file", "file": {"filename": file.name or "file.pdf", "file_data": url}}
    if kind in _CHAT_AUDIO_FORMATS and (data := encode_file_base64(file, files)):
        return {"type": "input_audio", "input_audio": {"data": data, "format": _CHAT_AUDIO_FORMATS[kind]}}
    return {"type": "text", "text": render_file_text(file, files)}


# ---
# A request in the chat completions wire format, as bytes.


RESERVED_OPTIONS = ("model", "messages", "stream", "stream_options", "tools", "tool_choice", "n")
"""Parameters that the adapter sets itself (``n``: it reads one choice, more would be paid for nothing)."""


def encode_request(request: ModelRequest, *, origin: str, max_tokens_name: str) -> bytes:
    """The body of ``POST /chat/completions`` at ``origin``: ``request`` in order, streamed, with usage.

    The messages come last, so that calls of one conversation have all that is before its end in common.
    """
    fragments: list[bytes] = []
    if request.system:
        fragments.append(encode_json({"role": "system", "content": request.system}))
    fragments.extend(encode_messages(request.messages, origin, request.files))
    head: dict[str, Any] = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    if request.tools:
        head["tools"] = [encode_tool(spec) for spec in request.tools]
    if request.tool_choice:
        head["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    head |= encode_settings(request.settings, max_tokens_name=max_tokens_name)
    head |= request.provider_options
    return b"".join((encode_json(head)[:-1], b',"messages":[', b",".join(fragments), b"]}"))


def encode_settings(settings: Mapping[str, Any], *, max_tokens_name: str) -> dict[str, Any]:
    """Canonical settings under their wire names."""
    names = {"max_tokens": max_tokens_name}
    return {names.get(key, key): value for key, value in settings.items() if value is not None}


def encode_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool's definition."""
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}
