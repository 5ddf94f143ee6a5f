"""Encodes a chat completions request: messages, settings, tools.

Each message is encoded once in its life: its bytes stay on it under the origin they were encoded for, and a call joins
them. So a call costs what copying the transcript costs, not what encoding it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from ..ports import ModelRequest
from ..types.messages import ContentPart, FilePart, Message, Part, TextPart, ThinkingPart, ToolCallPart
from ..types.transcript import iter_pieces
from .encoding import (
    MessageEncoder,
    build_body,
    build_data_url,
    build_moved_file_parts,
    encode_file_base64,
    encode_json,
    encode_json_text,
    encode_tool_name,
    join_fragments,
    merge_fragments,
    render_file_text,
    require_loaded_text,
    strip_parameters,
)
from .tool_schemas import WireTool, get_rules, translate_tools

THINKING_FIELDS = ("reasoning_content", "reasoning")
"""Where compatible servers put the model's thinking."""
_CHAT_IMAGE_TYPES = {"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"}
_CHAT_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}

RESERVED_OPTIONS = dict.fromkeys(
    ("model", "messages", "stream", "stream_options", "tools", "tool_choice", "n"), "perdure"
)
"""Parameters that the adapter sets itself (``n``: it reads one choice, more would be paid for nothing)."""


def encode_request(request: ModelRequest, *, origin: str, max_tokens_name: str) -> bytes:
    """The body of ``POST /chat/completions`` at ``origin``: ``request`` in order, streamed, with usage.

    The messages come last, so that each call's body begins with all of the one before, but for its end.
    """
    head: dict[str, Any] = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    if offered := translate_tools(get_rules("openai", request.model), request.tools).offered:
        head["tools"] = [encode_tool(tool) for tool in offered]
    if request.tool_choice:
        head["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    for name, value in request.settings.items():
        if value is not None:
            head[max_tokens_name if name == "max_tokens" else name] = value
    head |= request.provider_options
    return build_body(head, "messages", ChatEncoder(request, origin).encode_messages(request.system))


def encode_tool(tool: WireTool) -> dict[str, Any]:
    """A tool's definition."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class ChatEncoder(MessageEncoder):
    """Encodes the messages of one request."""

    max_call_id = 40  # OpenAI's limit

    def encode_messages(self, system: str | None) -> list[bytes]:
        """The system prompt and the messages, in pieces of one or more JSON objects.

        Raises ``BadRequestError`` for content that was not loaded.
        """
        prompt = [encode_json({"role": "system", "content": system})] if system else []
        key = f"chat {self.origin}"
        return prompt + self.encode_pieces(iter_pieces(self.messages), key, self._encode_piece, merge_fragments)

    def _encode_piece(self, messages: Sequence[Message]) -> list[bytes]:
        """Results hold text alone; their files follow in a user message, after the results of all calls, which must not
        be separated."""
        files_key = f"{self.origin} files"
        encoded: list[bytes] = []
        moved: list[bytes] = []
        for message in messages:
            if moved and message.role != "tool":
                encoded += moved
                moved = []
            fragment = message.wire(self.origin)
            if fragment is None:
                fragment = join_fragments(message, self.origin, self._encode_message(message))
            if fragment:
                encoded.append(fragment)
            if message.role == "tool":
                files = message.wire(files_key)
                if files is None:
                    files = join_fragments(message, files_key, self._encode_moved_files(message))
                if files:
                    moved.append(files)
        return encoded + moved

    def _encode_message(self, message: Message) -> Iterator[dict[str, Any]]:
        match message.role:
            case "system":
                yield {"role": "system", "content": self.join_text(message.parts)}
            case "user":
                content = [part for part in message.parts if isinstance(part, TextPart | FilePart)]
                yield {"role": "user", "content": self._encode_content(content)}
            case "assistant":
                yield self._encode_assistant(message)
            case "tool":
                for part in message.tool_results:
                    # The format has no mark for an error: the text says what went wrong.
                    text = require_loaded_text(part)
                    yield {"role": "tool", "tool_call_id": self.encode_call_id(part.call_id), "content": text}
            case never:
                assert_never(never)

    def _encode_moved_files(self, message: Message) -> Iterator[dict[str, Any]]:
        content = build_moved_file_parts(
            result.model_copy(
                update={"call_id": self.encode_call_id(result.call_id), "name": encode_tool_name(result.name)}
            )
            for result in message.tool_results
            if result.files
        )
        if content:
            yield {"role": "user", "content": self._encode_content(content)}

    def _encode_assistant(self, message: Message) -> dict[str, Any]:
        refusals: list[Part] = []
        rest: list[Part] = []
        for part in message.parts:
            is_refusal = isinstance(part, TextPart) and self.get_opaque(part).get("refusal")
            (refusals if is_refusal else rest).append(part)
        text = self.join_text(rest)
        calls = [self._encode_call(call) for call in message.tool_calls]
        encoded: dict[str, Any] = {"role": "assistant", "content": text}
        if refusals:
            encoded["refusal"] = self.join_text(refusals)
        if calls:
            encoded["tool_calls"] = calls
        if not text and (calls or refusals):
            # With none of the three (an empty reply, thinking alone) the API refuses null, but takes "".
            encoded["content"] = None
        return encoded | self._encode_thinking(message.parts)

    def _encode_thinking(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The thinking that this server gave, in the field it came in.

        DeepSeek refuses a conversation with tool calls that lacks it (its first reasoning models refused one that had
        it: they had no tools), and models that think between tool calls continue from it. OpenAI itself gives none, so
        it gets none; nor does any other server, because few take it.
        """
        fields: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, ThinkingPart) and (opaque := self.get_opaque(part)):
                if isinstance(details := opaque.get("reasoning_details"), list):
                    fields["reasoning_details"] = [*fields.get("reasoning_details", ()), *details]
                elif (field := opaque.get("field")) in THINKING_FIELDS:
                    fields[field] = fields.get(field, "") + part.text
        return fields

    def _encode_call(self, call: ToolCallPart) -> dict[str, Any]:
        # Malformed arguments are sent as {}: the API wants JSON, and the result that follows says what was wrong.
        function = {"name": encode_tool_name(call.name), "arguments": encode_json_text(call.arguments)}
        encoded: dict[str, Any] = {"id": self.encode_call_id(call.id), "type": "function", "function": function}
        # Google's compatible endpoint keeps its thought signatures there, and refuses a call without its own.
        if (extra := self.get_opaque(call).get("extra_content")) is not None:
            encoded["extra_content"] = extra
        return encoded

    def _encode_content(self, parts: Sequence[ContentPart]) -> str | list[dict[str, Any]]:
        """A user's content: a text, or a list of typed parts if there are files."""
        if not any(isinstance(part, FilePart) for part in parts):
            return self.join_text(parts)
        content: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, FilePart):
                content.append(self._encode_file(part))
            elif text := require_loaded_text(part):
                content.append({"type": "text", "text": text})
        return content

    def _encode_file(self, file: FilePart) -> dict[str, Any]:
        media_type = strip_parameters(file.media_type)
        if media_type in _CHAT_IMAGE_TYPES:
            # The API fetches an image's URL; PDF and audio it takes only as bytes.
            return {"type": "image_url", "image_url": {"url": file.url or build_data_url(file, self.files)}}
        if media_type == "application/pdf" and (url := build_data_url(file, self.files)):
            return {"type": "file", "file": {"filename": file.name or "file.pdf", "file_data": url}}
        if media_type in _CHAT_AUDIO_FORMATS and (data := encode_file_base64(file, self.files)):
            return {"type": "input_audio", "input_audio": {"data": data, "format": _CHAT_AUDIO_FORMATS[media_type]}}
        return {"type": "text", "text": render_file_text(file, self.files)}
