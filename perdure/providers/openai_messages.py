"""Decodes the messages of OpenAI's requests: ``messages`` of chat completions, ``input`` of Responses."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..types.messages import FilePart, Part, TextPart, ThinkingPart, ToolCallPart
from .conversation import Conversation, WireObject, build_imported_file, drop_nulls, guess_image_type
from .encoding import build_tool_call, keep_opaque
from .openai_chat_request import THINKING_FIELDS
from .openai_responses_request import read_item

_DATA_URL = re.compile(r"data:(?P<type>[^;,]+)(?:;[^;,]+)*;base64,(?P<data>.*)", re.DOTALL)
_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def decode_chat_messages(messages: Iterable[WireObject], conversation: Conversation) -> None:
    """Decode ``messages`` of chat completions. Files after results return to the results that they came from."""
    for message in messages:
        content = _decode_content(message.get("content"))
        match message["role"]:
            case "system" | "developer":
                conversation.add_system(_join_text(content))
            case "user":
                if (rest := conversation.take_back_files(content)) or not content:
                    conversation.add_user(rest)
            case "assistant":
                parts = _decode_chat_reply(message, content, conversation.origin)
                conversation.add_reply(parts, finish_reason="refusal" if message.get("refusal") else None)
            case "tool":
                conversation.add_result(message["tool_call_id"], _join_text(content))
            case role:
                raise ValueError(f"its role must be system, developer, user, assistant or tool, not {role!r:.100}")


def decode_responses_items(items: Iterable[WireObject], conversation: Conversation) -> None:
    """Decode ``input`` of Responses. Neighbouring items of the model become one message."""
    for item in items:
        kind = item.get("type", "message" if "role" in item else None)
        match kind, item.get("role"):
            case None, _:
                raise ValueError("it has neither a type nor a role")
            case "item_reference", _:
                raise ValueError("it only names an item that the API keeps")
            case "function_call_output", _:
                output = _decode_content(item.get("output"))
                files = [part for part in output if isinstance(part, FilePart)]
                conversation.add_result(item["call_id"], _join_text(output), files=files)
            case "message", "system" | "developer":
                conversation.add_system(_join_text(_decode_content(item.get("content"))))
            case "message", "user":
                conversation.add_user(_decode_content(item.get("content")))
            case "message", role if role != "assistant":
                raise ValueError(f"its role must be system, developer, user or assistant, not {role!r:.100}")
            case _:
                parts = read_item({**item, "type": kind}, origin=conversation.origin, model=conversation.model)
                conversation.add_reply(parts, joined=True)


def _decode_chat_reply(message: WireObject, content: Iterable[Part], origin: str) -> Iterator[Part]:
    if message.get("function_call"):
        raise ValueError("it has a function_call, which the API had before tool_calls")
    if isinstance(details := message.get("reasoning_details"), list):
        texts = (detail.get("text") for detail in details if isinstance(detail, dict))
        text = "".join(text for text in texts if isinstance(text, str))
        yield ThinkingPart(text=text, provider=origin, opaque={"reasoning_details": details})
    else:
        # Also an empty one: servers that want it back want it with every call.
        for field in THINKING_FIELDS:
            if message.get(field) is not None:
                yield ThinkingPart(text=message[field], provider=origin, opaque={"field": field})
    for part in content:
        if isinstance(part, TextPart) and part.text:
            yield part
    if message.get("refusal"):
        yield TextPart(text=message["refusal"], provider=origin, opaque={"refusal": True})
    for call in message.get("tool_calls") or ():
        yield _decode_chat_call(drop_nulls(call), origin)


def _decode_chat_call(call: WireObject, origin: str) -> ToolCallPart:
    arguments = call["function"].get("arguments") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    extra = {"extra_content": call["extra_content"]} if "extra_content" in call else None
    return build_tool_call(call["id"], call["function"]["name"], text, keep_opaque(origin, extra))


def _join_text(content: Iterable[Part]) -> str:
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _decode_content(content: Any) -> list[TextPart | FilePart]:
    if isinstance(content, str) or content is None:
        return [TextPart(text=content or "")]
    return [_decode_content_part(part) for part in content]


def _decode_content_part(part: WireObject) -> TextPart | FilePart:
    """A part of the content of a message, or of a result, in either format."""
    match part["type"]:
        case "text" | "refusal" as kind:
            return TextPart(text=part[kind])
        case "input_text" | "output_text":
            return TextPart(text=part["text"])
        case "image_url":
            url = part["image_url"]["url"]
            guessed = mimetypes.guess_type(url.partition("?")[0])[0] or ""
            fallback = guessed if guessed.startswith("image/") else "image/jpeg"
            return _decode_file(url, None, guess_image_type(url, fallback))
        case "input_image" if isinstance(url := part.get("image_url"), str):
            return _decode_file(url, None, guess_image_type(url, "image/jpeg"))
        case "file":
            file = part["file"]
            if not _DATA_URL.fullmatch(file["file_data"]):
                raise ValueError("file_data of a file in it must be a data URL")
            return _decode_file(file["file_data"], file.get("filename"), "")
        case "input_file" if isinstance(url := part.get("file_data") or part.get("file_url"), str):
            return _decode_file(url, part.get("filename"), "application/pdf")
        case "input_audio":
            audio = part["input_audio"]
            media_type = _AUDIO_TYPES.get(audio["format"], f"audio/{audio['format']}")
            return build_imported_file(media_type, data=audio["data"])
        case "input_image" | "input_file" as kind:
            raise ValueError(f"content of type {kind!r} cannot be imported without the file, which the API keeps")
        case kind:
            raise ValueError(f"content of type {kind!r:.100} cannot be imported")


def _decode_file(url: str, name: str | None, media_type: str) -> FilePart:
    """The file of a data URL, or the one of ``media_type`` at any other URL."""
    if inline := _DATA_URL.fullmatch(url):
        return build_imported_file(inline["type"], name=name, data=inline["data"])
    return build_imported_file(media_type, name=name, url=url)
