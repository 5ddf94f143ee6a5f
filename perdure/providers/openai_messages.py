"""Messages of OpenAI's two wire formats, read back: ``messages`` of chat completions, and ``input`` of Responses."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..types.messages import FilePart, Part, TextPart, ThinkingPart, ToolCallPart
from .conversation import Conversation, Wire, imported_file, without_nulls
from .encoding import parse_arguments
from .openai_chat_request import THINKING_FIELDS
from .openai_responses_request import read_item

_DATA_URL = re.compile(r"data:(?P<type>[^;,]+)(?:;[^;,]+)*;base64,(?P<data>.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}

Content = list[TextPart | FilePart]


def decode_chat(messages: Iterable[Wire], conversation: Conversation) -> None:
    """Read ``messages`` of chat completions. Files after results go back to the tools that gave them."""
    for plain in messages:
        match plain["role"]:
            case "system" | "developer":
                conversation.add_system(_text(_chat_content(plain.get("content"))))
            case "user":
                content = _chat_content(plain.get("content"))
                if (rest := conversation.take_back_files(content)) or not content:
                    conversation.add_user(rest)
            case "assistant":
                parts = _chat_reply(plain, conversation.origin)
                conversation.add_reply(parts, finish_reason="refusal" if plain.get("refusal") else None)
            case "tool":
                conversation.add_result(plain["tool_call_id"], _text(_chat_content(plain.get("content"))))
            case role:
                raise ValueError(f"its role is {role!r:.100}, and not system, developer, user, assistant or tool")


def _chat_reply(plain: Wire, origin: str) -> Iterator[Part]:
    if plain.get("function_call"):
        raise ValueError("it has a function_call, as the API had it before tool_calls")
    if isinstance(details := plain.get("reasoning_details"), list):
        shown = "".join(d["text"] for d in details if isinstance(d, dict) and isinstance(d.get("text"), str))
        yield ThinkingPart(text=shown, provider=origin, opaque={"reasoning_details": details})
    else:
        # Also an empty one: servers that want it back want it with every call.
        for field in THINKING_FIELDS:
            if plain.get(field) is not None:
                yield ThinkingPart(text=plain[field], provider=origin, opaque={"field": field})
    for part in _chat_content(plain.get("content")):
        if isinstance(part, TextPart) and part.text:
            yield part
    if plain.get("refusal"):
        yield TextPart(text=plain["refusal"], provider=origin, opaque={"refusal": True})
    for call in plain.get("tool_calls") or ():
        yield _chat_call(without_nulls(call), origin)


def _chat_call(plain: Wire, origin: str) -> ToolCallPart:
    function = plain["function"]
    text = function.get("arguments") or ""
    text = text if isinstance(text, str) else json.dumps(text)
    arguments = parse_arguments(text)
    extra = plain.get("extra_content")
    return ToolCallPart(
        id=plain["id"],
        name=function["name"],
        arguments=arguments or {},
        malformed=text if arguments is None else None,
        provider=None if extra is None else origin,
        opaque=None if extra is None else {"extra_content": extra},
    )


def _text(content: Iterable[Part]) -> str:
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _chat_content(content: Any) -> Content:
    if isinstance(content, str) or content is None:
        return [TextPart(text=content or "")]
    return [_chat_piece(piece) for piece in content]


def _chat_piece(piece: Wire) -> TextPart | FilePart:
    match piece["type"]:
        case "text" | "refusal" as kind:
            return TextPart(text=piece[kind])
        case "image_url":
            url = piece["image_url"]["url"]
            # The format does not say what a URL leads to, other than that it is a picture.
            guessed = mimetypes.guess_type(url.partition("?")[0])[0] or ""
            return _file(url, None, guessed if guessed.startswith("image/") else "image/jpeg")
        case "file":
            file = piece["file"]
            if not _DATA_URL.fullmatch(file["file_data"]):
                raise ValueError("file_data of a file in it is no data URL")
            return _file(file["file_data"], file.get("filename"), "")
        case "input_audio":
            sound = piece["input_audio"]
            return imported_file(_AUDIO.get(sound["format"], f"audio/{sound['format']}"), data=sound["data"])
        case other:
            raise ValueError(f"content of type {other!r:.100} is not understood")


def _file(url: str, name: str | None, media_type: str) -> FilePart:
    """The file of a data URL, or that of ``media_type`` to which another URL leads."""
    if inline := _DATA_URL.fullmatch(url):
        return imported_file(inline["type"], name=name, data=inline["data"])
    return imported_file(media_type, name=name, url=url)


# ---
# Input of the Responses format.


_BY_ENDING = {"png": "image/png", "webp": "image/webp", "gif": "image/gif"}


def decode_responses(items: Iterable[Wire], conversation: Conversation) -> None:
    """Read ``input`` of Responses. Neighbouring items of the model become one message."""
    for item in items:
        kind = item.get("type", "message" if "role" in item else None)
        match kind, item.get("role"):
            case None, _:
                raise ValueError("it has neither a type nor a role")
            case "item_reference", _:
                raise ValueError("it only names an item that the API keeps")
            case "function_call_output", _:
                output = _responses_content(item.get("output"))
                files = [part for part in output if isinstance(part, FilePart)]
                conversation.add_result(item["call_id"], _text(output), files=files)
            case "message", "system" | "developer":
                conversation.add_system(_text(_responses_content(item.get("content"))))
            case "message", "user":
                conversation.add_user(_responses_content(item.get("content")))
            case "message", role if role != "assistant":
                raise ValueError(f"its role is {role!r:.100}, and not system, developer, user or assistant")
            case _:
                whole = {**item, "type": kind}
                parts = read_item(whole, origin=conversation.origin, model=conversation.model)
                conversation.add_reply(parts, joined=True)


def _responses_content(content: Any) -> Content:
    if isinstance(content, str) or content is None:
        return [TextPart(text=content or "")]
    return [_responses_piece(piece) for piece in content]


def _responses_piece(piece: Wire) -> TextPart | FilePart:
    match piece["type"]:
        case "input_text" | "output_text":
            return TextPart(text=piece["text"])
        case "input_image" if isinstance(url := piece.get("image_url"), str):
            ending = url.partition("?")[0].rpartition(".")[2].lower()
            return _file(url, None, _BY_ENDING.get(ending, "image/jpeg"))
        case "input_file" if isinstance(url := piece.get("file_data") or piece.get("file_url"), str):
            return _file(url, piece.get("filename"), "application/pdf")
        case other:
            raise ValueError(f"content of type {other!r:.100} cannot be taken over without what the API keeps")
