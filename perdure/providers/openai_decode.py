"""Messages of a chat completions request as messages of ours: the way back of ``chat_messages``."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..errors import InvalidInputError
from ..types.messages import (
    ContentPart,
    FilePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    clean,
)
from .encoding import clean_json, parse_arguments, take_back
from .openai_chat_request import THINKING_FIELDS
from .openai_responses_request import read_item

_DATA_URL = re.compile(r"data:(?P<type>[^;,]+)(?:;[^;,]+)*;base64,(?P<data>.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def decode_chat(messages: Sequence[Mapping[str, Any]], *, origin: str = "openai") -> tuple[str | None, list[Message]]:
    """The system prompt (what leads the list), and the conversation.

    ``origin`` is given to what only the server it came from understands. Results that follow each other become one
    message, and files that stand after them go back to the tools that gave them. Raises ``InvalidInputError`` for
    what is no such list.
    """
    prompts: list[str] = []
    decoded: list[Message] = []
    names: dict[str, str] = {}
    for index, plain in enumerate(messages):
        try:
            role = plain["role"]
            if role in ("system", "developer") and not decoded:
                prompts.append(_joined(plain.get("content")))
                continue
            _take(plain, role, decoded, names, origin)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InvalidInputError(
                f"messages[{index}] is no message of chat completions: {type(error).__name__}: {error}"
            ) from None
    return ("\n\n".join(filter(None, prompts)) or None), decoded


def _take(plain: Mapping[str, Any], role: str, decoded: list[Message], names: dict[str, str], origin: str) -> None:
    match role:
        case "system" | "developer":
            decoded.append(Message.system(_joined(plain.get("content"))))
        case "user":
            _user(tuple(_decode_chat_content(plain.get("content"))), decoded)
        case "assistant":
            message = _assistant(plain, origin)
            names.update({call.id: call.name for call in message.tool_calls})
            decoded.append(message)
        case "tool":
            call_id = plain["tool_call_id"]
            result = ToolResultPart(
                call_id=call_id, name=names.get(call_id) or "unknown", content=_joined(plain.get("content"))
            )
            before = decoded[-1].tool_results if decoded and decoded[-1].role == "tool" else ()
            if before:
                decoded.pop()
            decoded.append(Message(role="tool", parts=(*before, result)))
        case _:
            raise ValueError(f"role {role!r}")


def _user(content: tuple[ContentPart, ...], decoded: list[Message]) -> None:
    if decoded and decoded[-1].role == "tool":
        results, rest = take_back(decoded[-1].tool_results, content)
        decoded[-1] = Message(role="tool", parts=results)
        if content and not rest:
            return
        content = rest
    decoded.append(Message(role="user", parts=content))


def _assistant(plain: Mapping[str, Any], origin: str) -> Message:
    parts: list[Part] = []
    if isinstance(details := plain.get("reasoning_details"), list):
        opaque = {"reasoning_details": clean_json(details)}
        shown = "".join(d["text"] for d in details if isinstance(d, Mapping) and isinstance(d.get("text"), str))
        parts.append(ThinkingPart(text=clean(shown), provider=origin, opaque=opaque))
    else:
        # Also an empty one: servers that want it back want it with every call.
        given = [(field, plain[field]) for field in THINKING_FIELDS if plain.get(field) is not None]
        parts.extend(ThinkingPart(text=clean(text), provider=origin, opaque={"field": field}) for field, text in given)
    refusal = plain.get("refusal")
    parts.extend(
        part for part in _decode_chat_content(plain.get("content")) if isinstance(part, TextPart) and part.text
    )
    if refusal:
        parts.append(TextPart(text=clean(refusal), provider=origin, opaque={"refusal": True}))
    parts.extend(_call(call, origin) for call in plain.get("tool_calls") or ())
    return Message(role="assistant", parts=tuple(parts), finish_reason="refusal" if refusal else None)


def _call(plain: Mapping[str, Any], origin: str) -> ToolCallPart:
    function = plain["function"]
    text = function.get("arguments") or ""
    text = clean(text if isinstance(text, str) else json.dumps(text))
    arguments = parse_arguments(text)
    extra = plain.get("extra_content")
    return ToolCallPart(
        id=plain["id"],
        name=function["name"],
        arguments=arguments or {},
        malformed=text if arguments is None else None,
        provider=None if extra is None else origin,
        opaque=None if extra is None else {"extra_content": clean_json(extra)},
    )


def _joined(content: object) -> str:
    return "".join(part.text for part in _decode_chat_content(content) if isinstance(part, TextPart))


def _decode_chat_content(content: Any) -> Iterator[ContentPart]:
    if isinstance(content, str) or content is None:
        yield TextPart(text=clean(content or ""))
        return
    for piece in content:
        match piece["type"]:
            case "text" | "refusal":
                yield TextPart(text=clean(piece[piece["type"]]))
            case "image_url":
                yield _image(piece["image_url"]["url"])
            case "file":
                yield _decode_chat_file(piece["file"])
            case "input_audio":
                sound = piece["input_audio"]
                yield FilePart(media_type=_AUDIO.get(sound["format"], f"audio/{sound['format']}"), data=sound["data"])
            case other:
                raise ValueError(f"content of type {other!r}")


def _image(url: str) -> FilePart:
    if inline := _DATA_URL.fullmatch(url):
        return FilePart(media_type=inline["type"], data=inline["data"])
    # The format does not say what a URL leads to, other than that it is a picture.
    guessed = mimetypes.guess_type(url.partition("?")[0])[0] or ""
    return FilePart(media_type=guessed if guessed.startswith("image/") else "image/jpeg", url=url)


def _decode_chat_file(plain: Mapping[str, Any]) -> FilePart:
    inline = _DATA_URL.fullmatch(plain["file_data"])
    if inline is None:
        raise ValueError("file_data is no data URL")
    return FilePart(media_type=inline["type"], name=plain.get("filename"), data=inline["data"])


# ---
# Input of the Responses format as messages: what a conversation that began elsewhere is taken over with.


_DATA = re.compile(r"data:(?P<type>[^,]+?);base64,(?P<data>.*)\Z", re.DOTALL)
_BY_ENDING = {"png": "image/png", "webp": "image/webp", "gif": "image/gif"}


def decode_responses(
    items: Iterable[Mapping[str, Any]], *, origin: str = "openai-responses", model: str | None = None
) -> list[Message]:
    """The messages of ``input``; ``instructions`` are the system prompt, and stay apart.

    Neighbouring items of the model become one message, and neighbouring outputs of its calls another. ``origin`` and
    ``model`` say who gave the opaque data, see ``endpoint.origin``; without ``model`` every model is sent it back.
    Raises ``InvalidInputError`` for what is no input item, or only names one that the API keeps.
    """
    plain = [clean_json(_item(item)) for item in items]
    names = {item.get("call_id"): item.get("name", "") for item in plain if item.get("type") == "function_call"}
    messages: list[Message] = []
    for (role, _), group in groupby(enumerate(plain), lambda pair: _place(*pair)):
        members = [item for _, item in group]
        match role:
            case "assistant":
                parts = [part for item in members for part in read_item(item, origin=origin, model=model)]
                messages.append(Message(role="assistant", parts=tuple(parts), model=model))
            case "tool":
                messages.append(Message(role="tool", parts=tuple(_result(item, names) for item in members)))
            case "system":
                messages.append(
                    Message(role="system", parts=tuple(_decode_responses_content(members[0].get("content"))))
                )
            case _:
                messages.append(Message(role="user", parts=tuple(_decode_responses_content(members[0].get("content")))))
    return messages


def _item(item: object) -> dict[str, Any]:
    if not isinstance(item, Mapping) or not ("type" in item or "role" in item):
        raise InvalidInputError(f"This is no input item of the Responses format: {str(item)[:200]}")
    plain = {"type": "message"} | dict(item)
    if plain["type"] == "item_reference":
        raise InvalidInputError(f"The API keeps item {plain.get('id')!r} and only its id is here.")
    return plain


def _place(index: int, item: Mapping[str, Any]) -> tuple[str, int]:
    """The role of the message that the item is of; a number apart where it is a message of its own."""
    if item["type"] == "function_call_output":
        return "tool", -1
    role = item.get("role") if item["type"] == "message" else "assistant"
    if role == "assistant":
        return "assistant", -1
    return ("system" if role in ("system", "developer") else "user"), index


def _result(item: Mapping[str, Any], names: Mapping[Any, str]) -> ToolResultPart:
    call_id = str(item.get("call_id", ""))
    parts = list(_decode_responses_content(item.get("output")))
    return ToolResultPart(
        call_id=call_id,
        name=names.get(call_id, ""),
        content="".join(part.text for part in parts if isinstance(part, TextPart)),
        files=tuple(part for part in parts if isinstance(part, FilePart)),
    )


def _decode_responses_content(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        yield TextPart(text=content)
        return
    for entry in content if isinstance(content, list) else ():
        match entry.get("type"):
            case "input_text" | "output_text":
                yield TextPart(text=str(entry.get("text", "")))
            case "input_image" if isinstance(url := entry.get("image_url"), str):
                yield _decode_responses_file(
                    url, None, _BY_ENDING.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/jpeg")
                )
            case "input_file" if isinstance(where := entry.get("file_data") or entry.get("file_url"), str):
                yield _decode_responses_file(where, entry.get("filename"), "application/pdf")
            case kind:
                raise InvalidInputError(f"Content of type {kind!r} cannot be taken over: {str(entry)[:200]}")


def _decode_responses_file(where: str, name: str | None, media_type: str) -> FilePart:
    if (data := _DATA.match(where)) is not None:
        return FilePart(media_type=data["type"], name=name, data=data["data"])
    return FilePart(media_type=media_type, name=name, url=where)
