"""A message as content blocks of the Messages API: encoded once in its life, for one origin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Literal, assert_never

from ..types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from .encoding import encode_json
from .foreign import file_base64, file_bytes, loaded, own, rendered, wire_id

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
