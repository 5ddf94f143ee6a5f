"""A request in the Responses wire format, as bytes. The input comes last, and only grows: a prefix that stays cached.

Each message is encoded once in its life for an origin and a model: its fragment stays on it.

The API keeps nothing for us (``store: false``): what it gave is sent back, in its order. It has rules for that. A
reasoning item stands directly before the item that came after it; an item that came after reasoning may keep its id
only behind that reasoning; a reasoning item without its encrypted content is unknown. So an assistant message goes back
*whole* (reasoning, ids, items of built-in tools) or *bare* (texts and calls, like anybody's). What another origin gave
is bare, and so is what another model of the same origin gave: reasoning that they cannot decrypt some models refuse and
others leave out, and we cannot know which.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, assert_never

from ..ports import ModelRequest, ToolSpec
from ..types import messages
from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from .encoding import (
    build_data_url,
    clean_json_value,
    encode_call_id,
    encode_json,
    encode_json_text,
    get_own_opaque,
    map_provider_ids,
    parse_arguments,
    render_file_text,
    require_loaded_text,
)
from .json_values import read_string

# ---
# Items of the Responses format as parts of a message: what a reply and an import have in common.
#
# What only the API understands of an item stays on its parts as opaque data: ``{"model": …, "item": …}`` for
# reasoning
# and for items that we do not know (a search, a run of the code interpreter), ``{"model": …, "id": …, …}`` for texts
# and
# calls. ``model`` is the name that was asked for: reasoning is of no use to another one, see ``responses_request``.


CONTENT_KEYS = ("annotations",)
MESSAGE_KEYS = ("id", "status", "phase")
CALL_KEYS = ("id", "status", "namespace", "caller")


def read_item(item: Mapping[str, Any], *, origin: str, model: str | None) -> list[Part]:
    """The parts of an item that a model wrote."""
    # In the order that the store gives them back in: a message has the same bytes in every worker.
    item = json.loads(json.dumps(clean_json_value(dict(item)), sort_keys=True))
    mark: dict[str, Any] = {"model": model} if model else {}
    match item.get("type"):
        case "message":
            return list(_decode_output_texts(item, origin, mark))
        case "reasoning":
            return [ThinkingPart(text=join_reasoning_text(item), provider=origin, opaque=mark | {"item": item})]
        case "function_call":
            return [_decode_responses_call(item, origin, mark)]
        case _:
            # Also of a type that we do not know: the API takes back what it gave.
            return [OpaquePart(provider=origin, data=mark | {"item": item})]


def join_reasoning_text(item: Mapping[str, Any]) -> str:
    """What people may read of a reasoning item: its summary, or the reasoning itself, which few servers give."""
    return "\n\n".join(_list_entry_texts(item.get("summary"))) or "".join(_list_entry_texts(item.get("content")))


def _list_entry_texts(parts: object) -> list[str]:
    entries = parts if isinstance(parts, list) else []
    return [entry["text"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("text"), str)]


def _decode_output_texts(item: Mapping[str, Any], origin: str, mark: dict[str, Any]) -> Iterator[TextPart]:
    kept = mark | {key: item[key] for key in MESSAGE_KEYS if item.get(key) is not None}
    content = item.get("content")
    for entry in content if isinstance(content, list) else [{"type": "output_text", "text": content}]:
        if not isinstance(entry, dict):
            continue
        opaque = kept | {key: entry[key] for key in CONTENT_KEYS if entry.get(key)}
        if refused := entry.get("type") == "refusal":
            opaque["refusal"] = True
        text = entry.get("refusal" if refused else "text")
        # Without an id there is nothing to keep, but whether it was a refusal: such a message is like anybody's.
        keep = "id" in kept or refused
        yield TextPart(
            text=text if isinstance(text, str) else "",
            provider=origin if keep else None,
            opaque=opaque if keep else None,
        )


def _decode_responses_call(item: Mapping[str, Any], origin: str, mark: dict[str, Any]) -> ToolCallPart:
    raw = item.get("arguments")
    raw = messages.clean_json_text(raw if isinstance(raw, str) else json.dumps(raw or {}, ensure_ascii=False))
    opaque = {key: item[key] for key in CALL_KEYS if item.get(key) is not None}
    arguments = parse_arguments(raw)
    if arguments is not None and raw.strip() and encode_arguments(arguments) != raw:
        # As the model wrote it: its cache knows that text, and its reasoning may be left out behind another one.
        # Most often only the order of the keys is lost, and arguments are too large to be kept twice.
        keys = list(arguments)
        opaque |= {"keys": keys} if encode_arguments(arguments, keys) == raw else {"arguments": raw}
    return ToolCallPart(
        id=read_string(item.get("call_id")),
        name=read_string(item.get("name")),
        arguments=arguments or {},
        malformed=None if arguments is not None else raw,
        provider=origin if opaque else None,
        opaque=mark | opaque if opaque else None,
    )


def encode_arguments(arguments: Mapping[str, Any], keys: Sequence[str] = ()) -> str:
    """Arguments of a call as the wire has them: their keys in order of ``keys``, where these are all, or sorted."""
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
"""Parameters that the adapter sets itself or cannot serve, and what is in their place."""

ENCRYPTED_REASONING = "reasoning.encrypted_content"

MAX_RESPONSES_CALL_ID = 64

_NOT_IN_RESPONSES_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_RESPONSES_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_RESPONSES_FILE_TYPES = re.compile(
    r"text/.*|application/(pdf|json|xml|yaml|x-yaml|toml|javascript|typescript|sql|rtf|csv|msword|vnd\.ms-(excel|powerpoint)"
    r"|vnd\.openxmlformats-officedocument\..*|vnd\.oasis\.opendocument\.(text|spreadsheet|presentation))\Z"
)
"""Types that ``input_file`` takes: PDF, text and code, documents, presentations, spreadsheets."""


@dataclass(frozen=True, slots=True)
class ResponsesTarget:
    """Where a message goes."""

    origin: str
    model: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    """:func:`map_provider_ids`."""

    def encode_call_id(self, call_id: str) -> str:
        """The id of a call as it goes out, the same for call and result."""
        return self.ids.get(call_id) or encode_call_id(call_id, MAX_RESPONSES_CALL_ID)

    def get_model_opaque(self, part: TextPart | ThinkingPart | ToolCallPart | OpaquePart) -> dict[str, Any] | None:
        """The opaque data that this model gave; {} where another model of the origin did; None from elsewhere."""
        data = get_own_opaque(part, self.origin)
        if data is None:
            return None
        return data if data.get("model") in (None, self.model) else {}


def encode_request(request: ModelRequest, *, origin: str, encrypted: bool = True) -> bytes:
    """The body of ``POST /responses``: ``request`` in order, streamed.

    ``encrypted``: ask for the reasoning, which then can be sent back.
    """
    target = ResponsesTarget(origin, request.model, request.files, map_provider_ids(request.messages, origin))
    fragments = [fragment for message in request.messages if (fragment := encode_message(message, target))]
    head: dict[str, Any] = {"model": request.model, "stream": True, "store": False}
    if encrypted:
        head["include"] = [ENCRYPTED_REASONING]
    if request.tools:
        head["tools"] = [encode_tool(spec) for spec in request.tools]
    if request.tool_choice:
        head["tool_choice"] = {"type": "function", "name": request.tool_choice}
    head |= encode_settings(request.settings)
    _merge_options(head, request.provider_options)
    if request.system:
        head["instructions"] = request.system
    return b"".join((encode_json(head)[:-1], b',"input":[', b",".join(fragments), b"]}"))


def encode_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings under their wire names."""
    given = {key: value for key, value in settings.items() if value is not None}
    if "max_tokens" in given:
        given["max_output_tokens"] = given.pop("max_tokens")
    if "reasoning_effort" in given:
        given["reasoning"] = {"effort": given.pop("reasoning_effort")}
    return given


def _merge_options(head: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Options go in unchanged; three of them are lists and objects that we fill too, and add to ours."""
    for key, value in options.items():
        if key == "include":
            value = list(dict.fromkeys([*head.get(key, ()), *value]))
        elif key == "tools":
            value = [*head.get(key, ()), *value]
        elif key == "reasoning":
            value = head.get(key, {}) | value
        head[key] = value


def encode_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool's definition.

    Not strict, and that has to be said: left out, ``strict`` is true here, and the API refuses, or silently rewrites, a
    schema with an optional field.
    """
    about = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", **about, "strict": False}


def encode_message(message: Message, target: ResponsesTarget) -> bytes:
    """The message's fragment: its items as JSON objects, joined by commas. Empty where nothing of it can be sent."""
    name = FRAGMENT_KEY
    if message.role == "assistant":
        name = f"{FRAGMENT_KEY} {target.origin} {target.model}"
    elif message.role == "tool":
        name = f"{FRAGMENT_KEY} {target.origin}"
    fragment = message.wire(name)
    if fragment is None:
        fragment = b",".join(map(encode_json, encode_items(message, target)))
        message.remember_wire(name, fragment)
    return fragment


def encode_items(message: Message, target: ResponsesTarget) -> list[dict[str, Any]]:
    """The message's items."""
    match message.role:
        case "system" | "user":
            return [
                {"type": "message", "role": message.role, "content": _encode_responses_content(message.parts, target)}
            ]
        case "assistant":
            return _encode_responses_assistant(message, target)
        case "tool":
            return [_encode_responses_result(result, target) for result in message.tool_results]
        case never:
            assert_never(never)


def _encode_responses_content(parts: tuple[Part, ...], target: ResponsesTarget) -> str | list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "input_text", "text": require_loaded_text(part.text, part)})
        elif isinstance(part, FilePart):
            content.append(_encode_responses_file(part, target))
    if all(entry["type"] == "input_text" for entry in content) and len(content) <= 1:
        return str(content[0]["text"]) if content else ""
    return content


def _encode_responses_file(file: FilePart, target: ResponsesTarget) -> dict[str, Any]:
    kind = file.media_type.partition(";")[0].strip().lower()
    if kind in _RESPONSES_IMAGE_TYPES:
        return {"type": "input_image", "detail": "auto", "image_url": build_data_url(file, target.files) or file.url}
    if _RESPONSES_FILE_TYPES.match(kind):
        if (data := build_data_url(file, target.files)) is not None:
            return {"type": "input_file", "filename": _build_file_name(file, kind), "file_data": data}
        return {"type": "input_file", "file_url": file.url}
    return {"type": "input_text", "text": render_file_text(file, target.files)}


def _build_file_name(file: FilePart, kind: str) -> str:
    """The API goes by the name's ending."""
    name = file.name or "file"
    return name if "." in name else name + (mimetypes.guess_extension(kind) or ".txt")


def _encode_responses_result(result: ToolResultPart, target: ResponsesTarget) -> dict[str, Any]:
    output: str | list[dict[str, Any]] = require_loaded_text(result.content, result)
    if result.files:
        text = [{"type": "input_text", "text": output}] if output else []
        output = text + [_encode_responses_file(file, target) for file in result.files]
    return {"type": "function_call_output", "call_id": target.encode_call_id(result.call_id), "output": output}


def _encode_responses_assistant(message: Message, target: ResponsesTarget) -> list[dict[str, Any]]:
    whole = _can_send_whole(message, target)
    items: list[dict[str, Any]] = []
    for key, group in groupby(message.parts, lambda part: _get_item_group(part, target, whole)):
        parts = list(group)
        match parts[0]:
            case TextPart() | FilePart():
                items.extend(_encode_responses_message(parts, target, whole))
            case ToolCallPart():
                items.extend(
                    _encode_responses_call(part, target, whole) for part in parts if isinstance(part, ToolCallPart)
                )
            case ThinkingPart() | OpaquePart():
                items.extend(_restore_responses_item(part, target) for part in parts if key == "kept")
            case ToolResultPart():
                pass  # has no place here
            case never:
                assert_never(never)
    while items and items[-1]["type"] == "reasoning":
        items.pop()  # a reply that ended in its reasoning: the API refuses reasoning that nothing follows
    return items


def _can_send_whole(message: Message, target: ResponsesTarget) -> bool:
    for part in message.parts:
        if isinstance(part, FilePart | ToolResultPart) or (data := target.get_model_opaque(part)) is None:
            continue
        if not data:
            return False
        item = data.get("item", {})
        if isinstance(part, ThinkingPart) and not (item.get("encrypted_content") or item.get("content")):
            return False
    return True


def _get_item_group(part: Part, target: ResponsesTarget, whole: bool) -> str:
    """What neighbouring parts have in common that become one item, or are left out together."""
    match part:
        case TextPart():
            return f"message {(target.get_model_opaque(part) or {}).get('id', '') if whole else ''}"
        case FilePart():
            return "message "
        case ToolCallPart():
            return "call"
        case ThinkingPart() | OpaquePart():
            return "kept" if whole and (target.get_model_opaque(part) or {}).get("item") else "left out"
        case ToolResultPart():
            return "left out"
        case never:
            assert_never(never)


def _encode_responses_message(parts: list[Part], target: ResponsesTarget, whole: bool) -> Iterator[dict[str, Any]]:
    first = parts[0]
    data = (target.get_model_opaque(first) if whole and isinstance(first, TextPart) else None) or {}
    if "id" in data:
        content = [_encode_responses_text(part, target) for part in parts if isinstance(part, TextPart)]
        kept = {key: data[key] for key in MESSAGE_KEYS if key in data}
        yield {"type": "message", "role": "assistant", "status": "completed", **kept, "content": content}
        return
    # Without an id the API takes an assistant's message as plain text alone.
    text = "".join(
        require_loaded_text(part.text, part) if isinstance(part, TextPart) else render_file_text(part, target.files)
        for part in parts
        if isinstance(part, TextPart | FilePart)
    )
    if text:
        yield {"type": "message", "role": "assistant", "content": text}


def _encode_responses_text(part: TextPart, target: ResponsesTarget) -> dict[str, Any]:
    data = target.get_model_opaque(part) or {}
    text = require_loaded_text(part.text, part)
    if data.get("refusal"):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": []} | {k: data[k] for k in CONTENT_KEYS if k in data}


def _encode_responses_call(part: ToolCallPart, target: ResponsesTarget, whole: bool) -> dict[str, Any]:
    data = (target.get_model_opaque(part) if whole else None) or {}
    # Malformed arguments go back as {}: the API wants JSON, and the result that follows says what was wrong.
    arguments = encode_arguments(part.arguments, data.get("keys", ()))
    if "arguments" in data and parse_arguments(data["arguments"]) == part.arguments:
        arguments = data["arguments"]
    kept = {key: data[key] for key in CALL_KEYS if key in data}
    name = _NOT_IN_RESPONSES_NAME.sub("_", part.name)[:64] or "_"
    return {
        "type": "function_call",
        **kept,
        "call_id": target.encode_call_id(part.id),
        "name": name,
        "arguments": arguments,
    }


def _restore_responses_item(part: Part, target: ResponsesTarget) -> dict[str, Any]:
    assert isinstance(part, ThinkingPart | OpaquePart)
    item = (target.get_model_opaque(part) or {})["item"]
    if isinstance(part, ThinkingPart):
        # The API refuses keys of a reasoning item that are null, and its status, although it gives both.
        return {key: value for key, value in item.items() if value is not None and key != "status"}
    return dict(item)
