"""Encodes a request of the Responses API. The input comes last, and only grows: a prefix that stays cached.

Each message is encoded once in its life for an origin and a model: its fragment stays on it.

The API stores nothing (``store: false``): what it gave is sent back, in its order. It has rules for that. A reasoning
item stands directly before the item that came after it; an item that came after reasoning may keep its id only behind
that reasoning; a reasoning item without its encrypted content is unknown. So an assistant message is sent *whole*
(reasoning, ids, items of built-in tools) or *bare* (texts and calls, like those of any provider). Messages of another
origin are bare, and so are those of another model of the same origin: some models refuse reasoning that they cannot
decrypt, others leave it out, and we cannot know which.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, assert_never

from ..ports.model import ModelRequest
from ..types import messages
from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from ..types.transcript import iter_pieces
from .dialects import Dialect
from .encoding import (
    MessageEncoder,
    build_body,
    build_data_url,
    build_tool_demand,
    clean_json_value,
    encode_json,
    encode_json_text,
    encode_tool_name,
    get_own_opaque,
    join_fragments,
    keep_opaque,
    merge_fragments,
    parse_arguments,
    render_file_text,
    require_loaded_text,
    strip_parameters,
)
from .reply import read_array, read_string
from .tool_schemas import WireTool, get_rules, translate_tools

# ---
# Items of the Responses format as parts of a message, for replies and imports.
#
# Opaque data of the parts: ``{"model": …, "item": …}`` for reasoning and for unknown items (a search, a run of the code
# interpreter), ``{"model": …, "id": …, …}`` for texts and calls. ``model`` is the requested name: another model cannot
# decrypt the reasoning, see the module's docstring.


CONTENT_KEYS = ("annotations",)
MESSAGE_KEYS = ("id", "status", "phase")
CALL_KEYS = ("id", "status", "namespace", "caller")


def read_item(item: Mapping[str, Any], *, origin: str, model: str | None) -> list[Part]:
    """The parts of an item that a model wrote."""
    # Keys in the order in which the store returns them: a message has the same bytes in every worker.
    item = json.loads(json.dumps(clean_json_value(dict(item)), sort_keys=True))
    mark: dict[str, Any] = {"model": model} if model else {}
    match item.get("type"):
        case "message":
            return list(_decode_output_texts(item, origin, mark))
        case "reasoning":
            return [ThinkingPart(text=join_reasoning_text(item), provider=origin, opaque=mark | {"item": item})]
        case "function_call":
            return [_decode_call(item, origin, mark)]
        case _:
            # Also an unknown type: the API takes back what it gave.
            return [OpaquePart(provider=origin, data=mark | {"item": item})]


def join_reasoning_text(item: Mapping[str, Any]) -> str:
    """The readable text of a reasoning item: its summary, or the reasoning itself, which few servers give."""
    return "\n\n".join(_list_entry_texts(item.get("summary"))) or "".join(_list_entry_texts(item.get("content")))


def _list_entry_texts(entries: object) -> list[str]:
    return [
        entry["text"] for entry in read_array(entries) if isinstance(entry, dict) and isinstance(entry.get("text"), str)
    ]


def _decode_output_texts(item: Mapping[str, Any], origin: str, mark: dict[str, Any]) -> Iterator[TextPart]:
    kept = mark | {key: item[key] for key in MESSAGE_KEYS if item.get(key) is not None}
    content = item.get("content")
    for entry in content if isinstance(content, list) else [{"type": "output_text", "text": content}]:
        if not isinstance(entry, dict):
            continue
        opaque = kept | {key: entry[key] for key in CONTENT_KEYS if entry.get(key)}
        is_refusal = entry.get("type") == "refusal"
        if is_refusal:
            opaque["refusal"] = True
        text = read_string(entry.get("refusal" if is_refusal else "text"))
        # Without an id there is nothing to keep, but whether it was a refusal: the message is like any provider's.
        yield TextPart(text=text, **keep_opaque(origin, opaque if "id" in kept or is_refusal else None))


def _decode_call(item: Mapping[str, Any], origin: str, mark: dict[str, Any]) -> ToolCallPart:
    raw = item.get("arguments")
    raw = messages.clean_json_text(raw if isinstance(raw, str) else json.dumps(raw or {}, ensure_ascii=False))
    opaque = {key: item[key] for key in CALL_KEYS if item.get(key) is not None}
    arguments = parse_arguments(raw)
    if arguments and raw.lstrip().startswith("{") and encode_arguments(arguments) != raw:
        # As the model wrote it: its cache knows that text, and its reasoning may be left out behind another one.
        # Most often only the order of the keys is lost, and arguments are too large to be kept twice.
        keys = list(arguments)
        opaque |= {"keys": keys} if encode_arguments(arguments, keys) == raw else {"arguments": raw}
    call_id, name = read_string(item.get("call_id")), read_string(item.get("name"))
    return ToolCallPart(
        id=call_id,
        name=name,
        arguments=arguments or {},
        malformed=raw if arguments is None else None,
        **keep_opaque(origin, mark | opaque if opaque else None),
    )


def encode_arguments(arguments: Mapping[str, Any], keys: Sequence[str] = ()) -> str:
    """Arguments of a call as the wire has them: in the order of ``keys`` if these are all of them, or sorted."""
    order = keys if set(keys) == set(arguments) else sorted(arguments)
    fields = (f"{encode_json_text(key)}:{encode_json_text(arguments[key], sort_keys=True)}" for key in order)
    return f"{{{','.join(fields)}}}"


FRAGMENT_KEY = "openai-responses"
"""Under this name a message remembers its fragment: for results with the origin behind it, for assistant messages with
origin and model."""

RESERVED_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("model", "input", "instructions", "stream", "store", "tool_choice"), "perdure"),
    "background": "perdure, which streams,",
    "previous_response_id": "the transcript",
    "conversation": "the transcript",
}
"""Parameters that the adapter sets itself or cannot offer, and what takes their place."""

ENCRYPTED_REASONING = "reasoning.encrypted_content"

_RESPONSES_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_RESPONSES_FILE_TYPES = re.compile(
    r"text/.*|application/(pdf|json|xml|yaml|x-yaml|toml|javascript|typescript|sql|rtf|csv|msword|vnd\.ms-(excel|powerpoint)"
    r"|vnd\.openxmlformats-officedocument\..*|vnd\.oasis\.opendocument\.(text|spreadsheet|presentation))\Z"
)
"""Types that ``input_file`` takes: PDF, text and code, documents, presentations, spreadsheets."""


def encode_request(
    request: ModelRequest, *, origin: str, encrypted: bool = True, dialect: Dialect | None = None
) -> bytes:
    """The body of ``POST /responses``: ``request`` in order, streamed.

    ``encrypted``: ask for the reasoning, which then can be sent back.
    """
    encoder = ResponsesEncoder(request, origin)
    dialect = dialect or Dialect()
    forced_tool = dialect.forced_tool
    head: dict[str, Any] = {"model": request.model, **({"stream": True} if dialect.streaming else {}), "store": False}
    if encrypted:
        head["include"] = [ENCRYPTED_REASONING]
    if offered := translate_tools(get_rules("openai-responses", request.model), request.tools).offered:
        head["tools"] = [encode_tool(tool) for tool in offered]
    demands: list[bytes] = []
    if request.tool_choice and forced_tool == "named":
        head["tool_choice"] = {"type": "function", "name": request.tool_choice}
    elif request.tool_choice:
        head |= {"tool_choice": "required"} if forced_tool == "required" else {}
        text = build_tool_demand(request.tool_choice)
        demands = [encode_json({"type": "message", "role": "user", "content": text})]
    head |= _encode_settings(request.settings)
    for key, value in request.provider_options.items():
        # Three options are added to what we send under the same name; the others are sent unchanged.
        if key == "include":
            value = list(dict.fromkeys([*head.get(key, ()), *value]))
        elif key == "tools":
            value = [*head.get(key, ()), *value]
        elif key == "reasoning":
            value = head.get(key, {}) | value
        head[key] = value
    if request.system:
        head["instructions"] = request.system
    return build_body(head, "input", [*encoder.encode_messages(), *demands])


def _encode_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in settings.items() if value is not None}
    if "max_tokens" in given:
        given["max_output_tokens"] = given.pop("max_tokens")
    if "reasoning_effort" in given:
        given["reasoning"] = {"effort": given.pop("reasoning_effort")}
    return given


def encode_tool(tool: WireTool) -> dict[str, Any]:
    """A tool's definition.

    ``strict`` must be given: its default is true here, and the API then refuses, or silently rewrites, a schema with an
    optional field.
    """
    definition = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **definition, "strict": False}


class ResponsesEncoder(MessageEncoder):
    """Encodes the messages of one request."""

    def __init__(self, request: ModelRequest, origin: str) -> None:
        super().__init__(request, origin)
        self._model = request.model

    def encode_messages(self) -> list[bytes]:
        """The items of all messages as JSON objects, in pieces of one or more."""
        key = f"{FRAGMENT_KEY} {self.origin} {self._model}"
        return self.encode_pieces(iter_pieces(self.messages), key, self._encode_piece, merge_fragments)

    def _encode_piece(self, messages: Sequence[Message]) -> list[bytes]:
        return [*filter(None, map(self.encode_message, messages))]

    def encode_message(self, message: Message) -> bytes:
        """The message's items as JSON objects, joined by commas. Empty if nothing of it can be sent."""
        key = FRAGMENT_KEY
        if message.role == "assistant":
            key = f"{FRAGMENT_KEY} {self.origin} {self._model}"
        elif message.role == "tool":
            key = f"{FRAGMENT_KEY} {self.origin}"
        fragment = message.wire(key)
        return join_fragments(message, key, self._encode_items(message)) if fragment is None else fragment

    def _encode_items(self, message: Message) -> list[dict[str, Any]]:
        match message.role:
            case "system" | "user":
                return [{"type": "message", "role": message.role, "content": self._encode_content(message.parts)}]
            case "assistant":
                return self._encode_assistant(message)
            case "tool":
                return [self._encode_result(result) for result in message.tool_results]
            case never:
                assert_never(never)

    def _encode_content(self, parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, TextPart):
                content.append({"type": "input_text", "text": require_loaded_text(part)})
            elif isinstance(part, FilePart):
                content.append(self._encode_file(part))
        if not content:
            return ""
        return str(content[0]["text"]) if len(content) == 1 and "text" in content[0] else content

    def _encode_file(self, file: FilePart) -> dict[str, Any]:
        media_type = strip_parameters(file.media_type)
        if media_type in _RESPONSES_IMAGE_TYPES:
            url = build_data_url(file, self.files) or file.url
            return {"type": "input_image", "detail": "auto", "image_url": url}
        if not _RESPONSES_FILE_TYPES.match(media_type):
            return {"type": "input_text", "text": render_file_text(file, self.files)}
        if (data := build_data_url(file, self.files)) is None:
            return {"type": "input_file", "file_url": file.url}
        name = file.name or "file"
        if "." not in name:  # the API goes by the name's ending
            name += mimetypes.guess_extension(media_type) or ".txt"
        return {"type": "input_file", "filename": name, "file_data": data}

    def _encode_result(self, result: ToolResultPart) -> dict[str, Any]:
        output: str | list[dict[str, Any]] = require_loaded_text(result)
        if result.files:
            text = [{"type": "input_text", "text": output}] if output else []
            output = text + [self._encode_file(file) for file in result.files]
        return {"type": "function_call_output", "call_id": self.encode_call_id(result.call_id), "output": output}

    def _encode_assistant(self, message: Message) -> list[dict[str, Any]]:
        whole = self._can_send_whole(message)
        items: list[dict[str, Any]] = []
        for group, grouped in groupby(message.parts, lambda part: self._get_item_group(part, whole)):
            parts = list(grouped)
            match parts[0]:
                case TextPart() | FilePart():
                    items.extend(self._encode_texts(parts, whole))
                case ToolCallPart():
                    items.extend(self._encode_call(part, whole) for part in parts if isinstance(part, ToolCallPart))
                case ThinkingPart() | OpaquePart():
                    items.extend(self._restore_item(part) for part in parts if group == "kept")
                case ToolResultPart():
                    pass  # only in messages of its own
                case never:
                    assert_never(never)
        while items and items[-1]["type"] == "reasoning":
            items.pop()  # a reply that ended in its reasoning: the API refuses reasoning that nothing follows
        return items

    def _get_model_opaque(self, part: Part) -> dict[str, Any] | None:
        """The opaque data that this model gave; {} if another model of the origin did; None from elsewhere."""
        if isinstance(part, FilePart | ToolResultPart) or (data := get_own_opaque(part, self.origin)) is None:
            return None
        return data if data.get("model") in (None, self._model) else {}

    def _can_send_whole(self, message: Message) -> bool:
        for part in message.parts:
            if (data := self._get_model_opaque(part)) is None:
                continue
            if not data:
                return False
            item = data.get("item", {})
            if isinstance(part, ThinkingPart) and not (item.get("encrypted_content") or item.get("content")):
                return False
        return True

    def _get_item_group(self, part: Part, whole: bool) -> str:
        """Neighbouring parts of one group become one item, or are left out together."""
        data = (self._get_model_opaque(part) if whole else None) or {}
        match part:
            case TextPart() | FilePart():
                return f"message {data.get('id', '')}"
            case ToolCallPart():
                return "call"
            case ThinkingPart() | OpaquePart() | ToolResultPart():
                return "kept" if data.get("item") else "left out"
            case never:
                assert_never(never)

    def _encode_texts(self, parts: list[Part], whole: bool) -> Iterator[dict[str, Any]]:
        data = (self._get_model_opaque(parts[0]) if whole else None) or {}
        if "id" in data:
            content = [self._encode_output_text(part) for part in parts if isinstance(part, TextPart)]
            kept = {key: data[key] for key in MESSAGE_KEYS if key in data}
            yield {"type": "message", "role": "assistant", "status": "completed", **kept, "content": content}
            return
        # Without an id the API takes an assistant's message as plain text alone.
        if text := self.join_text(parts):
            yield {"type": "message", "role": "assistant", "content": text}

    def _encode_output_text(self, part: TextPart) -> dict[str, Any]:
        data = self._get_model_opaque(part) or {}
        text = require_loaded_text(part)
        if data.get("refusal"):
            return {"type": "refusal", "refusal": text}
        kept = {key: data[key] for key in CONTENT_KEYS if key in data}
        return {"type": "output_text", "text": text, "annotations": [], **kept}

    def _encode_call(self, part: ToolCallPart, whole: bool) -> dict[str, Any]:
        data = (self._get_model_opaque(part) if whole else None) or {}
        # Malformed arguments are sent as {}: the API wants JSON, and the result that follows says what was wrong.
        arguments = encode_arguments(part.arguments, data.get("keys", ()))
        if "arguments" in data and parse_arguments(data["arguments"]) == part.arguments:
            arguments = data["arguments"]
        return {
            "type": "function_call",
            **{key: data[key] for key in CALL_KEYS if key in data},
            "call_id": self.encode_call_id(part.id),
            "name": encode_tool_name(part.name),
            "arguments": arguments,
        }

    def _restore_item(self, part: Part) -> dict[str, Any]:
        item: dict[str, Any] = (self._get_model_opaque(part) or {})["item"]
        if isinstance(part, ThinkingPart):
            # The API refuses keys of a reasoning item that are null, and its status, although it gives both.
            return {key: value for key, value in item.items() if value is not None and key != "status"}
        return dict(item)
