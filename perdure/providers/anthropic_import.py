"""Messages of the Messages API's wire format, read back: what a request says, or a transcript kept elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import InvalidInputError
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

Wire = Mapping[str, Any]


def decode(messages: Iterable[Wire], *, origin: str = "anthropic") -> list[Message]:
    """The messages of a request's ``messages``; the system prompt is not among them.

    ``origin`` is kept with what only the API understands. A user message with tool results becomes two: a tool message
    and, if it says more, a user message. Cache breakpoints are left out. Raises ``InvalidInputError`` for what is no
    message of the format.
    """
    names: dict[str, str] = {}
    decoded: list[Message] = []
    for message in messages:
        role, content = message.get("role"), _blocks(message.get("content"))
        if role == "assistant":
            parts = tuple(_assistant(block, origin) for block in content)
            names |= {part.id: part.name for part in parts if isinstance(part, ToolCallPart)}
            decoded.append(Message(role="assistant", parts=parts))
        elif role in ("user", "system"):
            decoded.extend(_user(role, content, names))
        else:
            raise InvalidInputError(f"a message of the Messages API has no role {role!r}")
    return decoded


def decode_system(system: str | Iterable[Wire] | None) -> str | None:
    """The system prompt of a request as text."""
    if system is None or isinstance(system, str):
        return system or None
    return "\n\n".join(block["text"] for block in system) or None


def _blocks(content: object) -> list[Wire]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list) and all(isinstance(block, Mapping) and "type" in block for block in content):
        return [{key: value for key, value in block.items() if key != "cache_control"} for block in content]
    raise InvalidInputError("the content of a message of the Messages API is text or a list of blocks")


def _user(role: Any, content: list[Wire], names: Mapping[str, str]) -> Iterator[Message]:
    results = tuple(_result(block, names) for block in content if block["type"] == "tool_result")
    said = tuple(_content(block) for block in content if block["type"] != "tool_result")
    if results:
        yield Message(role="tool", parts=results)
    if said or not results:
        yield Message(role=role, parts=said)


def _assistant(block: Wire, origin: str) -> Part:
    match block["type"]:
        case "text":
            cited = {"citations": block["citations"]} if block.get("citations") else None
            return TextPart(text=block["text"], provider=origin if cited else None, opaque=cited)
        case "thinking":
            opaque = _rest(block, "thinking")
            return ThinkingPart(text=block["thinking"], provider=origin, opaque=opaque or None)
        case "tool_use":
            opaque = _rest(block, "id", "name", "input")
            return ToolCallPart(
                id=block["id"],
                name=block["name"],
                arguments=block["input"],
                provider=origin if opaque else None,
                opaque=opaque or None,
            )
        case _:
            return OpaquePart(provider=origin, data=dict(block))


def _rest(block: Wire, *known: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in ("type", *known)}


def _result(block: Wire, names: Mapping[str, str]) -> ToolResultPart:
    content = _blocks(block.get("content") or "")
    texts = "\n".join(inner["text"] for inner in content if inner["type"] == "text")
    files = tuple(part for inner in content if isinstance(part := _content(inner), FilePart))
    call_id = block["tool_use_id"]
    return ToolResultPart(
        call_id=call_id,
        name=names.get(call_id, ""),
        content=texts,
        is_error=bool(block.get("is_error")),
        files=files,
    )


def _content(block: Wire) -> ContentPart:
    kind, source = block["type"], block.get("source")
    if kind == "text":
        return TextPart(text=block["text"])
    if kind not in ("image", "document") or not isinstance(source, Mapping):
        raise InvalidInputError(f"a block of type {kind!r} is not understood")
    return _file(kind, source, block.get("title"))


def _file(kind: str, source: Wire, title: str | None) -> FilePart:
    match source.get("type"):
        case "base64":
            return FilePart(media_type=source["media_type"], name=title, data=source["data"])
        case "url":
            # Neither says what it is: the API finds out when it fetches it.
            media_type = "application/pdf" if kind == "document" else _image_type(source["url"])
            return FilePart(media_type=media_type, name=title, url=source["url"])
        case "text":
            return FilePart(media_type="text/plain", name=title, data=_base64(source["data"]))
        case other:
            raise InvalidInputError(f"a {kind} from a source of type {other!r} is not understood")


def _image_type(url: str) -> str:
    ending = url.partition("?")[0].rpartition(".")[2].lower().replace("jpg", "jpeg")
    return f"image/{ending}" if ending in ("jpeg", "png", "gif", "webp") else "image/png"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
