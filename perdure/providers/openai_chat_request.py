"""Encodes a chat completions request: messages, settings, tools.

Each message is encoded once in its life: its bytes stay on it under the origin they were encoded for, and a call joins
them. So a call costs what copying the transcript costs, not what encoding it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

from ..ports.model import ModelRequest
from ..types.engine_texts import enclose_text
from ..types.messages import ContentPart, FilePart, Message, Part, TextPart, ThinkingPart, ToolCallPart
from ..types.transcript import iter_pieces
from .dialects import Dialect, find_signer
from .encoding import (
    CONTINUE_TEXT,
    OPENING_TEXT,
    MessageEncoder,
    build_body,
    build_data_url,
    build_moved_file_parts,
    build_tool_demand,
    encode_file_base64,
    encode_json,
    encode_json_text,
    encode_tool_name,
    join_fragments,
    merge_fragments,
    render_file_text,
    require_loaded_text,
    shorten_call_id,
    strip_parameters,
)
from .google_request import PLACEHOLDER_SIGNATURE, parse_gemini_version
from .tool_schemas import WireTool, get_rules, translate_tools

THINKING_FIELDS = ("reasoning_content", "reasoning")
"""Where compatible servers put the model's thinking."""
TAGGED_FIELD = "<think>"
"""Stands for thinking that came at the beginning of the content."""
NO_THINKING = " "
"""For a server that demands thinking which is not there. An empty text counts as missing."""
BRIDGE_TEXT = "OK."
"""The model's message between a result and a message of the user, for servers that want one there."""
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


def encode_request(request: ModelRequest, *, origin: str, dialect: Dialect | None = None) -> bytes:
    """The body of ``POST /chat/completions`` at ``origin``: ``request`` in order, with usage.

    The messages come last, so that each call's body begins with all of the one before, but for its end.
    """
    dialect = dialect or Dialect()
    options = dict(request.provider_options)
    head: dict[str, Any] = {"model": request.model, **({"stream": True} if dialect.streaming else {})}
    if dialect.streaming and dialect.stream_usage and options.pop("stream_options", {}) is not None:
        head["stream_options"] = {"include_usage": True}
    options.pop("stream_options", None)
    if offered := translate_tools(get_rules("openai", request.model), request.tools).offered:
        head["tools"] = [encode_tool(tool) for tool in offered]
    if request.tool_choice and dialect.forced_tool == "named":
        head["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    elif request.tool_choice and dialect.forced_tool == "required":
        head["tool_choice"] = "required"
    for name, value in request.settings.items():
        if value is not None:
            head[dialect.max_tokens_name if name == "max_tokens" else name] = value
    head |= options
    return build_body(head, "messages", ChatEncoder(request, origin, dialect).encode_messages(request.system))


def encode_tool(tool: WireTool) -> dict[str, Any]:
    """A tool's definition."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class ChatEncoder(MessageEncoder):
    """Encodes the messages of one request."""

    max_call_id = 40  # OpenAI's limit

    def __init__(self, request: ModelRequest, origin: str, dialect: Dialect) -> None:
        super().__init__(request, origin)
        self.signer = find_signer(request.model)
        self._dialect = dialect
        self._has_call_signatures = dialect.call_signatures and parse_gemini_version(request.model) >= 3
        self._demand = ""
        if request.tool_choice and dialect.forced_tool != "named":
            self._demand = build_tool_demand(request.tool_choice)
        ways = (dialect.thinking, dialect.short_call_ids, self._has_call_signatures)
        # Of OpenAI itself there is no opaque data that only some models read, and no other way.
        self._key = origin if origin == "openai" else " ".join((origin, self.signer, *map(str, ways)))

    def encode_call_id(self, call_id: str) -> str:
        """See :meth:`MessageEncoder.encode_call_id`; a server that wants short ids wants its own short, too."""
        encoded = super().encode_call_id(call_id)
        return shorten_call_id(encoded) if self._dialect.short_call_ids else encoded

    def encode_messages(self, system: str | None) -> list[bytes]:
        """The system prompt and the messages, in pieces of one or more JSON objects.

        Raises ``BadRequestError`` for content that was not loaded.
        """
        prompt = [{"role": "system", "content": system}] if system else []
        demand = [{"role": "user", "content": self._demand}] if self._demand else []
        if self._dialect.strict_roles:
            # What is joined depends on the neighbours, so nothing is kept: these servers are close by and small.
            return [*map(encode_json, alternate_roles([*prompt, *self._list_messages(self.messages), *demand]))]
        pieces = self.encode_pieces(
            iter_pieces(self.messages), f"chat {self._key}", self._encode_piece, merge_fragments
        )
        return [*map(encode_json, prompt), *pieces, *map(encode_json, demand)]

    def _list_messages(self, messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
        """The messages as objects, in the order of :meth:`_encode_piece`."""
        moved: list[dict[str, Any]] = []
        for message in messages:
            if message.role != "tool":
                yield from moved
                moved = []
            yield from self._encode_message(message)
            if message.role == "tool":
                moved += self._encode_moved_files(message)
        yield from moved

    def _encode_piece(self, messages: Sequence[Message]) -> list[bytes]:
        """Results hold text alone; their files follow in a user message, after the results of all calls, which must not
        be separated."""
        files_key = f"{self._key} files"
        encoded: list[bytes] = []
        moved: list[bytes] = []
        for message in messages:
            if moved and message.role != "tool":
                encoded += moved
                moved = []
            fragment = message.wire(self._key)
            if fragment is None:
                fragment = join_fragments(message, self._key, self._encode_message(message))
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
        text = self._join_tagged_thinking(message.parts) + self.join_text(rest)
        calls = [self._encode_call(call) for call in message.tool_calls]
        if self._has_call_signatures and calls and "extra_content" not in calls[0]:
            calls[0]["extra_content"] = {"google": {"thought_signature": PLACEHOLDER_SIGNATURE}}
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
        it gets none; nor does any other server, because few take it. A server that demands it gets an empty one with
        calls that were made elsewhere.
        """
        fields: dict[str, Any] = {}
        if self._dialect.thinking == "refused":
            return fields
        for part in parts:
            if isinstance(part, ThinkingPart) and (opaque := self.get_opaque(part)):
                if isinstance(details := opaque.get("reasoning_details"), list):
                    fields["reasoning_details"] = [*fields.get("reasoning_details", ()), *details]
                elif (field := opaque.get("field")) in THINKING_FIELDS:
                    fields[field] = fields.get(field, "") + part.text
        is_demanded = self._dialect.thinking == "demanded" and any(isinstance(part, ToolCallPart) for part in parts)
        if is_demanded and not any(fields.values()) and not self._join_tagged_thinking(parts):
            fields["reasoning_content"] = NO_THINKING
        return fields

    def _join_tagged_thinking(self, parts: Sequence[Part]) -> str:
        """The thinking that came in tags, for a server that demands it (MiniMax)."""
        if self._dialect.thinking != "demanded":
            return ""
        texts = (
            part.text
            for part in parts
            if isinstance(part, ThinkingPart) and self.get_opaque(part).get("field") == TAGGED_FIELD
        )
        return "".join(f"<think>\n{text.strip()}\n</think>\n\n" for text in texts)

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


# ---
# Roles in turn, for chat templates that raise an error otherwise, and for Mistral and Perplexity.


_Wire = dict[str, Any]


def alternate_roles(messages: Iterable[_Wire]) -> list[_Wire]:
    """``messages`` with one system message at the beginning, then a user and an assistant in turn.

    Calls and their results stand between them; neighbours of one role are joined. The last message is a user's, or a
    result.
    """
    turns: list[_Wire] = []
    for message in messages:
        is_first = all(turn["role"] == "system" for turn in turns)
        if message["role"] == "system" and not is_first:
            message = {"role": "user", "content": enclose_text("system", message["content"])}
        elif message["role"] == "assistant" and not (message.get("content") or message.get("tool_calls")):
            if not message.get("refusal"):
                continue  # an empty reply
            message = {"role": "assistant", "content": message["refusal"]}
        last = turns[-1] if turns else {"role": ""}
        if message["role"] == "assistant" and is_first:
            turns.append({"role": "user", "content": OPENING_TEXT})
        elif message["role"] == "user" and last["role"] == "tool":
            turns.append({"role": "assistant", "content": BRIDGE_TEXT})
        elif message["role"] == last["role"] != "tool" and not last.get("tool_calls"):
            turns[-1] = _join_messages(last, message)
            continue
        turns.append(message)
    if not turns or turns[-1]["role"] not in ("user", "tool"):
        turns.append({"role": "user", "content": CONTINUE_TEXT})
    return turns


def _join_messages(first: _Wire, second: _Wire) -> _Wire:
    joined = {**first, **second}
    for name in THINKING_FIELDS:
        if name in first and name in second:
            joined[name] = first[name] + second[name]
    contents = [content for content in (first.get("content"), second.get("content")) if content]
    if all(isinstance(content, str) for content in contents):
        joined["content"] = "\n\n".join(contents) or second.get("content")
    else:
        lists = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents)
        joined["content"] = [piece for each in lists for piece in each]
    return joined
