"""A message as content blocks of the Messages API: encoded once in its life, for one origin."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Literal, assert_never

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
from .conversation import Conversation, Wire, imported_file, without_nulls
from .encoding import encode_json, file_base64, file_bytes, loaded, own, rendered, wire_id

Block = dict[str, Any]

_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_ID = 64
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def role_of(message: Message) -> Literal["user", "assistant"]:
    """Under which of the two roles that there are its blocks go."""
    return "assistant" if message.role == "assistant" else "user"


def fragment(message: Message, origin: str, files: Mapping[str, bytes], ids: Mapping[str, str]) -> bytes:
    """The message's blocks, joined by commas; empty where the API takes nothing of it.

    ``origin`` says whose opaque data may go out, ``files`` has the bytes of its blobs, ``ids`` the ids that calls have
    there (:func:`provider_ids`).
    """
    key = f"anthropic:{origin}"
    known = message.wire(key)
    if known is None:
        known = b",".join(map(encode_json, blocks(message, origin, files, ids)))
        if not any(_holds_bytes(part) for part in message.parts):
            # A file's base64 would stay in memory as long as the message; making it again is quick.
            message.remember_wire(key, known)
    return known


def blocks(message: Message, origin: str, files: Mapping[str, bytes], ids: Mapping[str, str]) -> Iterator[Block]:
    """The message's blocks in the order of its parts. Raises ``BadRequestError`` for content that was not loaded."""
    for part in message.parts:
        if message.role == "assistant":
            yield from _assistant(part, origin, files, ids)
        else:
            yield from _user(part, files, ids, system=message.role == "system")


def with_unique_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """``messages`` with every call under an id that no call before it has.

    The API wants that of the whole conversation. The engine's ids are so; those of an imported one need not be.
    """
    given: set[str] = set()
    renamed: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            renamed = {call.id: _free(call.id, given) for call in message.tool_calls if call.id in given}
            given.update(renamed.get(call.id, call.id) for call in message.tool_calls)
        if renamed and message.role in ("assistant", "tool"):
            parts = tuple(_renamed(part, renamed) for part in message.parts)
            message = message.model_copy(update={"parts": parts})  # forgets the encoding of the other id
        yield message


def _free(id: str, given: set[str]) -> str:
    return next(name for number in count(2) if (name := f"{id}_{number}") not in given)


def _renamed(part: Part, renamed: Mapping[str, str]) -> Part:
    match part:
        case ToolCallPart():
            return part.model_copy(update={"id": renamed.get(part.id, part.id)})
        case ToolResultPart():
            return part.model_copy(update={"call_id": renamed.get(part.call_id, part.call_id)})
        case _:
            return part


def _holds_bytes(part: Part) -> bool:
    match part:
        case FilePart():
            return part.url is None
        case ToolResultPart():
            return any(map(_holds_bytes, part.files))
        case _:
            return False


def _assistant(part: Part, origin: str, files: Mapping[str, bytes], ids: Mapping[str, str]) -> Iterator[Block]:
    match part:
        case TextPart():
            yield from (block | (own(part, origin) or {}) for block in _text(loaded(part.text, part)))
        case ThinkingPart():
            if signed := own(part, origin):
                yield {"type": "thinking", "thinking": part.text, **signed}
        case ToolCallPart():
            # Malformed arguments go back as {}: the API wants an object, and the result says what was wrong.
            call = {"id": _id(part.id, ids), "name": tool_name(part.name), "input": part.arguments}
            yield {"type": "tool_use"} | call | (own(part, origin) or {})
        case OpaquePart():
            if data := own(part, origin):
                yield data
        case FilePart():
            yield from _text(rendered(part, files))  # the API takes files from the user alone
        case ToolResultPart():
            pass  # has its place in a message of its own
        case never:
            assert_never(never)


def _user(part: Part, files: Mapping[str, bytes], ids: Mapping[str, str], *, system: bool) -> Iterator[Block]:
    match part:
        case TextPart():
            text = loaded(part.text, part)
            yield from _text(f"<system>\n{text}\n</system>" if system and text.strip() else text)
        case FilePart():
            yield from _file(part, files)
        case ToolResultPart():
            yield _result(part, files, ids)
        case ThinkingPart() | ToolCallPart() | OpaquePart():
            pass  # are an assistant's
        case never:
            assert_never(never)


def _text(text: str) -> Iterator[Block]:
    if text.strip():  # the API refuses blank ones
        yield {"type": "text", "text": text}


def _result(part: ToolResultPart, files: Mapping[str, bytes], ids: Mapping[str, str]) -> Block:
    text = loaded(part.content, part)
    block: Block = {"type": "tool_result", "tool_use_id": _id(part.call_id, ids)}
    if part.is_error:
        # An error holds text alone, and some of it.
        text = "\n".join(filter(str.strip, (text, *(rendered(file, files) for file in part.files)))) or "Error."
        return block | {"content": text, "is_error": True}
    if part.files:
        return block | {"content": [*_text(text), *(inner for file in part.files for inner in _file(file, files))]}
    return block | ({"content": text} if text.strip() else {})


def _file(part: FilePart, files: Mapping[str, bytes]) -> Iterator[Block]:
    kind = part.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    title = {"title": part.name} if part.name else {}
    if kind in _IMAGES and (source := _source(part, kind, files)):
        yield {"type": "image", "source": source}
    elif kind == "application/pdf" and (source := _source(part, kind, files)):
        yield {"type": "document", "source": source, **title}
    elif kind.startswith("text/") and (text := _decoded(part, files)):
        yield {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    else:
        yield from _text(rendered(part, files))


def _source(part: FilePart, kind: str, files: Mapping[str, bytes]) -> Block | None:
    data = file_base64(part, files)
    if data is not None:
        return {"type": "base64", "media_type": kind, "data": data} if data else None
    return {"type": "url", "url": part.url} if (part.url or "").startswith("https://") else None


def _decoded(part: FilePart, files: Mapping[str, bytes]) -> str:
    try:
        text = (file_bytes(part, files) or b"").decode()
    except UnicodeDecodeError:
        return ""
    return text if text.strip() else ""


def _id(call_id: str, ids: Mapping[str, str]) -> str:
    """A call's id as the API takes it, the same for call and result."""
    return ids.get(call_id) or wire_id(call_id, _LONGEST_ID, _ID)


def tool_name(name: str) -> str:
    """A tool's name as the API takes it: models make up some that no tool could have."""
    return _NOT_IN_NAME.sub("_", name)[:64] or "unknown"


# ---
# Messages of the Messages API's wire format, read back: what a request says, or a transcript kept elsewhere.


def decode(messages: Iterable[Wire], conversation: Conversation) -> None:
    """Read a request's ``messages``.

    A user message with tool results becomes two: a tool message and, if it says more, a user message. Cache breakpoints
    are left out.
    """
    for message in messages:
        content = _blocks(message.get("content"))
        match message["role"]:
            case "assistant":
                conversation.add_reply(_decode_assistant(block, conversation.origin) for block in content)
            case "user":
                _decode_user(content, conversation)
            case "system":
                texts = [part.text for part in map(_content, content) if isinstance(part, TextPart)]
                conversation.add_system("\n\n".join(texts))
            case role:
                raise ValueError(f"its role is {role!r:.100}, and not user or assistant")


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list) and all(isinstance(block, Mapping) and "type" in block for block in content):
        return [
            {key: value for key, value in without_nulls(block).items() if key != "cache_control"} for block in content
        ]
    raise ValueError("its content is neither text nor a list of blocks")


def _decode_user(content: list[dict[str, Any]], conversation: Conversation) -> None:
    results = [block for block in content if block["type"] == "tool_result"]
    for block in results:
        inner = _blocks(block.get("content") or "")
        conversation.add_result(
            block["tool_use_id"],
            "\n".join(entry["text"] for entry in inner if entry["type"] == "text"),
            files=[part for entry in inner if isinstance(part := _content(entry), FilePart)],
            is_error=bool(block.get("is_error")),
        )
    said = [_content(block) for block in content if block["type"] != "tool_result"]
    if said or not results:
        conversation.add_user(said)


def _decode_assistant(block: Wire, origin: str) -> Part:
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
        case "tool_result":
            raise ValueError("a tool_result is a block of the user")
        case _:
            return OpaquePart(provider=origin, data=dict(block))


def _rest(block: Wire, *known: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in ("type", *known)}


def _content(block: Wire) -> ContentPart:
    kind, source = block["type"], block.get("source")
    if kind == "text":
        return TextPart(text=block["text"])
    if kind not in ("image", "document") or not isinstance(source, Mapping):
        raise ValueError(f"a block of type {kind!r:.100} is not understood")
    return _decode_file(kind, source, block.get("title"))


def _decode_file(kind: str, source: Wire, title: str | None) -> FilePart:
    match source.get("type"):
        case "base64":
            return imported_file(source["media_type"], name=title, data=source["data"])
        case "url":
            # Neither says what it is: the API finds out when it fetches it.
            media_type = "application/pdf" if kind == "document" else _image_type(source["url"])
            return imported_file(media_type, name=title, url=source["url"])
        case "text":
            return imported_file("text/plain", name=title, data=_base64(source["data"]))
        case other:
            raise ValueError(f"its {kind} is from a source of type {other!r:.100}, which is not understood")


def _image_type(url: str) -> str:
    ending = url.partition("?")[0].rpartition(".")[2].lower().replace("jpg", "jpeg")
    return f"image/{ending}" if ending in ("jpeg", "png", "gif", "webp") else "image/png"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
