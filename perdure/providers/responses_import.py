"""Input of the Responses format as messages: what a conversation that began elsewhere is taken over with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from ..errors import InvalidInputError
from ..types.messages import FilePart, Message, Part, TextPart, ToolResultPart
from .encoding import clean_json
from .responses_items import read_item

_DATA = re.compile(r"data:(?P<type>[^,]+?);base64,(?P<data>.*)\Z", re.DOTALL)
_BY_ENDING = {"png": "image/png", "webp": "image/webp", "gif": "image/gif"}


def decode(
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
                messages.append(Message(role="system", parts=tuple(_content(members[0].get("content")))))
            case _:
                messages.append(Message(role="user", parts=tuple(_content(members[0].get("content")))))
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
    parts = list(_content(item.get("output")))
    return ToolResultPart(
        call_id=call_id,
        name=names.get(call_id, ""),
        content="".join(part.text for part in parts if isinstance(part, TextPart)),
        files=tuple(part for part in parts if isinstance(part, FilePart)),
    )


def _content(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        yield TextPart(text=content)
        return
    for entry in content if isinstance(content, list) else ():
        match entry.get("type"):
            case "input_text" | "output_text":
                yield TextPart(text=str(entry.get("text", "")))
            case "input_image" if isinstance(url := entry.get("image_url"), str):
                yield _file(url, None, _BY_ENDING.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/jpeg"))
            case "input_file" if isinstance(where := entry.get("file_data") or entry.get("file_url"), str):
                yield _file(where, entry.get("filename"), "application/pdf")
            case kind:
                raise InvalidInputError(f"Content of type {kind!r} cannot be taken over: {str(entry)[:200]}")


def _file(where: str, name: str | None, media_type: str) -> FilePart:
    if (data := _DATA.match(where)) is not None:
        return FilePart(media_type=data["type"], name=name, data=data["data"])
    return FilePart(media_type=media_type, name=name, url=where)
