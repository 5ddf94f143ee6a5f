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
from .encoding import (
    encode_call_id,
    encode_file_base64,
    encode_json,
    get_own_opaque,
    read_file_bytes,
    render_file_text,
    require_loaded_text,
)

Block = dict[str, Any]

_ANTHROPIC_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_ANTHROPIC_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_ANTHROPIC_CALL_ID = 64
_NOT_IN_ANTHROPIC_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def get_wire_role(message: Message) -> Literal["user", "assistant"]:
    """Under which of the two roles that there are its blocks go."""
    return "assistant" if message.role == "assistant" else "user"


def encode_message(message: Message, origin: str, files: Mapping[str, bytes], ids: Mapping[str, str]) -> bytes:
    """The message's blocks, joined by commas; empty where the API takes nothing of it.

    ``origin`` says whose opaque data may go out, ``files`` has the bytes of its blobs, ``ids`` the ids that calls have
    there (:func:`map_provider_ids`).
    """
    key = f"anthropic:{origin}"
    known = message.wire(key)
    if known is None:
        known = b",".join(map(encode_json, encode_blocks(message, origin, files, ids)))
        if not any(_has_inline_bytes(part) for part in message.parts):
            # A file's base64 would stay in memory as long as the message; making it again is quick.
            message.remember_wire(key, known)
    return known


def encode_blocks(message: Message, origin: str, files: Mapping[str, bytes], ids: Mapping[str, str]) -> Iterator[Block]:
    """The message's blocks in the order of its parts. Raises ``BadRequestError`` for content that was not loaded."""
    for part in message.parts:
        if message.role == "assistant":
            yield from _encode_assistant_blocks(part, origin, files, ids)
        else:
            yield from _encode_user_blocks(part, files, ids, system=message.role == "system")


def make_call_ids_unique(messages: Iterable[Message]) -> Iterator[Message]:
    """``messages`` with every call under an id that no call before it has.

    The API wants that of the whole conversation. The engine's ids are so; those of an imported one need not be.
    """
    given: set[str] = set()
    renamed: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            renamed = {call.id: _find_free_call_id(call.id, given) for call in message.tool_calls if call.id in given}
            given.update(renamed.get(call.id, call.id) for call in message.tool_calls)
        if renamed and message.role in ("assistant", "tool"):
            parts = tuple(_rename_call(part, renamed) for part in message.parts)
            message = message.model_copy(update={"parts": parts})  # forgets the encoding of the other id
        yield message


def _find_free_call_id(id: str, given: set[str]) -> str:
    return next(name for number in count(2) if (name := f"{id}_{number}") not in given)


def _rename_call(part: Part, renamed: Mapping[str, str]) -> Part:
    match part:
        case ToolCallPart():
            return part.model_copy(update={"id": renamed.get(part.id, part.id)})
        case ToolResultPart():
            return part.model_copy(update={"call_id": renamed.get(part.call_id, part.call_id)})
        case _:
            return part


def _has_inline_bytes(part: Part) -> bool:
    match part:
        case FilePart():
            return part.url is None
        case ToolResultPart():
            return any(map(_has_inline_bytes, part.files))
        case _:
            return False


def _encode_assistant_blocks(
    part: Part, origin: str, files: Mapping[str, bytes], ids: Mapping[str, str]
) -> Iterator[Block]:
    match part:
        case TextPart():
            yield from (
                block | (get_own_opaque(part, origin) or {})
                for block in _encode_text_blocks(require_loaded_text(part.text, part))
            )
        case ThinkingPart():
            if signed := get_own_opaque(part, origin):
                yield {"type": "thinking", "thinking": part.text, **signed}
        case ToolCallPart():
            # Malformed arguments go back as {}: the API wants an object, and the result says what was wrong.
            call = {
                "id": _encode_anthropic_call_id(part.id, ids),
                "name": encode_anthropic_tool_name(part.name),
                "input": part.arguments,
            }
            yield {"type": "tool_use"} | call | (get_own_opaque(part, origin) or {})
        case OpaquePart():
            if data := get_own_opaque(part, origin):
                yield data
        case FilePart():
            yield from _encode_text_blocks(render_file_text(part, files))  # the API takes files from the user alone
        case ToolResultPart():
            pass  # has its place in a message of its own
        case never:
            assert_never(never)


def _encode_user_blocks(
    part: Part, files: Mapping[str, bytes], ids: Mapping[str, str], *, system: bool
) -> Iterator[Block]:
    match part:
        case TextPart():
            text = require_loaded_text(part.text, part)
            yield from _encode_text_blocks(f"<system>\n{text}\n</system>" if system and text.strip() else text)
        case FilePart():
            yield from _encode_file_blocks(part, files)
        case ToolResultPart():
            yield _encode_result_block(part, files, ids)
        case ThinkingPart() | ToolCallPart() | OpaquePart():
            pass  # are an assistant's
        case never:
            assert_never(never)


def _encode_text_blocks(text: str) -> Iterator[Block]:
    if text.strip():  # the API refuses blank ones
        yield {"type": "text", "text": text}


def _encode_result_block(part: ToolResultPart, files: Mapping[str, bytes], ids: Mapping[str, str]) -> Block:
    text = require_loaded_text(part.content, part)
    block: Block = {"type": "tool_result", "tool_use_id": _encode_anthropic_call_id(part.call_id, ids)}
    if part.is_error:
        # An error holds text alone, and some of it.
        text = "\n".join(filter(str.strip, (text, *(render_file_text(file, files) for file in part.files)))) or "Error."
        return block | {"content": text, "is_error": True}
    if part.files:
        return block | {
            "content": [
                *_encode_text_blocks(text),
                *(inner for file in part.files for inner in _encode_file_blocks(file, files)),
            ]
        }
    return block | ({"content": text} if text.strip() else {})


def _encode_file_blocks(part: FilePart, files: Mapping[str, bytes]) -> Iterator[Block]:
    kind = part.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    title = {"title": part.name} if part.name else {}
    if kind in _ANTHROPIC_IMAGE_TYPES and (source := _encode_file_source(part, kind, files)):
        yield {"type": "image", "source": source}
    elif kind == "application/pdf" and (source := _encode_file_source(part, kind, files)):
        yield {"type": "document", "source": source, **title}
    elif kind.startswith("text/") and (text := _decode_text_file(part, files)):
        yield {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    else:
        yield from _encode_text_blocks(render_file_text(part, files))


def _encode_file_source(part: FilePart, kind: str, files: Mapping[str, bytes]) -> Block | None:
    data = encode_file_base64(part, files)
    if data is not None:
        return {"type": "base64", "media_type": kind, "data": data} if data else None
    return {"type": "url", "url": part.url} if (part.url or "").startswith("https://") else None


def _decode_text_file(part: FilePart, files: Mapping[str, bytes]) -> str:
    try:
        text = (read_file_bytes(part, files) or b"").decode()
    except UnicodeDecodeError:
        return ""
    return text if text.strip() else ""


def _encode_anthropic_call_id(call_id: str, ids: Mapping[str, str]) -> str:
    """A call's id as the API takes it, the same for call and result."""
    return ids.get(call_id) or encode_call_id(call_id, _MAX_ANTHROPIC_CALL_ID, _ANTHROPIC_CALL_ID)


def encode_anthropic_tool_name(name: str) -> str:
    """A tool's name as the API takes it: models make up some that no tool could have."""
    return _NOT_IN_ANTHROPIC_NAME.sub("_", name)[:64] or "unknown"


# ---
# Messages of the Messages API's wire format, read back: what a request says, or a transcript kept elsewhere.


def decode_messages(messages: Iterable[Wire], conversation: Conversation) -> None:
    """Read a request's ``messages``.

    A user message with tool results becomes two: a tool message and, if it says more, a user message. Cache breakpoints
    are left out.
    """
    for message in messages:
        content = _list_wire_blocks(message.get("content"))
        match message["role"]:
            case "assistant":
                conversation.add_reply(_decode_assistant_block(block, conversation.origin) for block in content)
            case "user":
                _decode_user_messages(content, conversation)
            case "system":
                texts = [part.text for part in map(_decode_content_block, content) if isinstance(part, TextPart)]
                conversation.add_system("\n\n".join(texts))
            case role:
                raise ValueError(f"its role is {role!r:.100}, and not user or assistant")


def _list_wire_blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list) and all(isinstance(block, Mapping) and "type" in block for block in content):
        return [
            {key: value for key, value in without_nulls(block).items() if key != "cache_control"} for block in content
        ]
    raise ValueError("its content is neither text nor a list of blocks")


def _decode_user_messages(content: list[dict[str, Any]], conversation: Conversation) -> None:
    results = [block for block in content if block["type"] == "tool_result"]
    for block in results:
        inner = _list_wire_blocks(block.get("content") or "")
        conversation.add_result(
            block["tool_use_id"],
            "\n".join(entry["text"] for entry in inner if entry["type"] == "text"),
            files=[part for entry in inner if isinstance(part := _decode_content_block(entry), FilePart)],
            is_error=bool(block.get("is_error")),
        )
    said = [_decode_content_block(block) for block in content if block["type"] != "tool_result"]
    if said or not results:
        conversation.add_user(said)


def _decode_assistant_block(block: Wire, origin: str) -> Part:
    match block["type"]:
        case "text":
            cited = {"citations": block["citations"]} if block.get("citations") else None
            return TextPart(text=block["text"], provider=origin if cited else None, opaque=cited)
        case "thinking":
            opaque = _collect_extra_fields(block, "thinking")
            return ThinkingPart(text=block["thinking"], provider=origin, opaque=opaque or None)
        case "tool_use":
            opaque = _collect_extra_fields(block, "id", "name", "input")
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


def _collect_extra_fields(block: Wire, *known: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in ("type", *known)}


def _decode_content_block(block: Wire) -> ContentPart:
    kind, source = block["type"], block.get("source")
    if kind == "text":
        return TextPart(text=block["text"])
    if kind not in ("image", "document") or not isinstance(source, Mapping):
        raise ValueError(f"a block of type {kind!r:.100} is not understood")
    return _decode_file_source(kind, source, block.get("title"))


def _decode_file_source(kind: str, source: Wire, title: str | None) -> FilePart:
    match source.get("type"):
        case "base64":
            return imported_file(source["media_type"], name=title, data=source["data"])
        case "url":
            # Neither says what it is: the API finds out when it fetches it.
            media_type = "application/pdf" if kind == "document" else _guess_url_image_type(source["url"])
            return imported_file(media_type, name=title, url=source["url"])
        case "text":
            return imported_file("text/plain", name=title, data=_encode_text_base64(source["data"]))
        case other:
            raise ValueError(f"its {kind} is from a source of type {other!r:.100}, which is not understood")


def _guess_url_image_type(url: str) -> str:
    ending = url.partition("?")[0].rpartition(".")[2].lower().replace("jpg", "jpeg")
    return f"image/{ending}" if ending in ("jpeg", "png", "gif", "webp") else "image/png"


def _encode_text_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
