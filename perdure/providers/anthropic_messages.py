"""Messages as content blocks of the Messages API, and content blocks as messages.

A message is encoded once in its life, for one origin.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, assert_never

from ..ports.model import ModelRequest
from ..types.engine_texts import enclose_text
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
from ..types.transcript import Piece, Segment, iter_pieces, map_pieces
from .conversation import Conversation, WireObject, build_imported_file, drop_nulls, guess_image_type
from .dialects import Dialect, find_signer
from .encoding import (
    MessageEncoder,
    encode_file_base64,
    encode_json,
    encode_tool_name,
    join_fragments,
    keep_opaque,
    read_file_bytes,
    render_file_text,
    require_loaded_text,
    strip_parameters,
)

Block = dict[str, Any]

_NO_THINKING = " "
"""For a server that demands thinking with calls that were made elsewhere."""
_ANTHROPIC_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


class AnthropicEncoder(MessageEncoder):
    """Encodes the messages of one request."""

    call_id_pattern = re.compile(r"[a-zA-Z0-9_-]+")

    def __init__(self, request: ModelRequest, origin: str, dialect: Dialect) -> None:
        super().__init__(request, origin)
        self._thinking = dialect.thinking
        self.key = f"anthropic:{origin}"
        """The name under which messages and segments keep their encoding."""
        if origin != "anthropic":  # whose models all read, or leave out, what any of them signed
            self.signer = find_signer(request.model)
            self.key += f":{self.signer}:{self._thinking}"

    def encode_message(self, message: Message) -> bytes:
        """The message's blocks as JSON objects, joined by commas; empty if nothing of it can be sent.

        Raises ``BadRequestError`` for content that was not loaded.
        """
        fragment = message.wire(self.key)
        if fragment is None:
            if message.role == "assistant":
                blocks = self._encode_assistant(message.parts)
            else:
                is_system = message.role == "system"
                blocks = [block for part in message.parts for block in self._encode_user_part(part, is_system)]
            if any(map(_has_inline_bytes, message.parts)):
                # A file's base64 would stay in memory as long as the message; encoding it again is quick.
                return b",".join(map(encode_json, blocks))
            fragment = join_fragments(message, self.key, blocks)
        return fragment

    def _encode_assistant(self, parts: Sequence[Part]) -> list[Block]:
        blocks = [block for part in parts for block in self._encode_assistant_part(part)]
        kinds = {block["type"] for block in blocks}
        if self._thinking == "demanded" and "tool_use" in kinds and not kinds & {"thinking", "redacted_thinking"}:
            blocks.insert(0, {"type": "thinking", "thinking": _NO_THINKING, "signature": ""})
        return blocks

    def _encode_thinking(self, part: ThinkingPart) -> Iterator[Block]:
        """Signed thinking goes back to who signed it, unsigned to a server that gives and takes it."""
        opaque = self.get_opaque(part)
        # A Claude signs what it has thought to the end, and takes nothing else.
        takes_unsigned = self._thinking in ("returned", "demanded") and self.signer not in (None, "claude")
        is_unsigned = part.provider == self.origin and not (part.opaque or {}).get("signature")
        if self._thinking != "refused" and (opaque.get("signature") or (is_unsigned and takes_unsigned)):
            yield {"type": "thinking", "thinking": part.text, **opaque}

    def _encode_assistant_part(self, part: Part) -> Iterator[Block]:
        match part:
            case TextPart():
                for block in _encode_text(require_loaded_text(part)):
                    yield block | self.get_opaque(part)
            case ThinkingPart():
                yield from self._encode_thinking(part)
            case ToolCallPart():
                # Malformed arguments are sent as {}: the API wants an object, and the result says what was wrong.
                name = encode_tool_name(part.name or "unknown")
                call = {"id": self.encode_call_id(part.id), "name": name, "input": part.arguments}
                yield {"type": "tool_use", **call, **self.get_opaque(part)}
            case OpaquePart():
                data = self.get_opaque(part)
                if data and not (self._thinking == "refused" and data.get("type") == "redacted_thinking"):
                    yield data
            case FilePart():
                yield from _encode_text(render_file_text(part, self.files))  # the API takes files only from the user
            case ToolResultPart():
                pass  # only in messages of its own
            case never:
                assert_never(never)

    def _encode_user_part(self, part: Part, is_system: bool) -> Iterator[Block]:
        match part:
            case TextPart():
                text = require_loaded_text(part)
                yield from _encode_text(enclose_text("system", text) if is_system and text.strip() else text)
            case FilePart():
                yield from self._encode_file(part)
            case ToolResultPart():
                yield self._encode_result(part)
            case ThinkingPart() | ToolCallPart() | OpaquePart():
                pass  # only in a model's messages
            case never:
                assert_never(never)

    def _encode_result(self, part: ToolResultPart) -> Block:
        text = require_loaded_text(part)
        block: Block = {"type": "tool_result", "tool_use_id": self.encode_call_id(part.call_id)}
        if part.is_error:
            # An error must have text, and nothing but text.
            texts = (text, *(render_file_text(file, self.files) for file in part.files))
            return block | {"content": "\n".join(filter(str.strip, texts)) or "Error.", "is_error": True}
        if part.files:
            files = [inner for file in part.files for inner in self._encode_file(file)]
            return block | {"content": [*_encode_text(text), *files]}
        return block | ({"content": text} if text.strip() else {})

    def _encode_file(self, part: FilePart) -> Iterator[Block]:
        media_type = strip_parameters(part.media_type).replace("image/jpg", "image/jpeg")
        title = {"title": part.name} if part.name else {}
        if media_type in _ANTHROPIC_IMAGE_TYPES and (source := self._encode_source(part, media_type)):
            yield {"type": "image", "source": source}
        elif media_type == "application/pdf" and (source := self._encode_source(part, media_type)):
            yield {"type": "document", "source": source, **title}
        elif media_type.startswith("text/") and (text := self._decode_text_file(part)).strip():
            yield {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
        else:
            yield from _encode_text(render_file_text(part, self.files))

    def _encode_source(self, part: FilePart, media_type: str) -> Block | None:
        data = encode_file_base64(part, self.files)
        if data is not None:
            return {"type": "base64", "media_type": media_type, "data": data} if data else None
        return {"type": "url", "url": part.url} if (part.url or "").startswith("https://") else None

    def _decode_text_file(self, part: FilePart) -> str:
        try:
            return (read_file_bytes(part, self.files) or b"").decode()
        except UnicodeDecodeError:
            return ""


def _encode_text(text: str) -> Iterator[Block]:
    if text.strip():  # the API refuses blank ones
        yield {"type": "text", "text": text}


def _has_inline_bytes(part: Part) -> bool:
    match part:
        case FilePart():
            return part.url is None
        case ToolResultPart():
            return any(map(_has_inline_bytes, part.files))
        case _:
            return False


def _have_inline_bytes(messages: Sequence[Message]) -> bool:
    return any(_has_inline_bytes(part) for message in messages for part in message.parts)


def iter_unique_pieces(messages: Sequence[Message]) -> Iterator[Piece]:
    """The pieces of ``messages``, with every call under an id that no call before it has. A segment with files is given
    as messages, whose base64 is not kept."""
    call_ids, count_of_calls = set[str](), 0
    for listed in map_pieces(messages, "listed call ids", _list_call_ids):
        call_ids.update(listed)
        count_of_calls += len(listed)
    if len(call_ids) < count_of_calls:
        yield list(_make_call_ids_unique(messages))
        return
    for piece in iter_pieces(messages):
        has_files = isinstance(piece, Segment) and piece.compute("inline bytes", _have_inline_bytes)
        yield piece.messages if isinstance(piece, Segment) and has_files else piece


def _list_call_ids(messages: Sequence[Message]) -> list[str]:
    return [call.id for message in messages if message.role == "assistant" for call in message.tool_calls]


def _make_call_ids_unique(messages: Iterable[Message]) -> Iterator[Message]:
    """``messages`` with every call under an id that no call before it has.

    The API requires that of the whole conversation. The engine's ids are unique; those of an import need not be.
    """
    used_ids: set[str] = set()
    renamed: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            repeated = {call.id for call in message.tool_calls} & used_ids
            renamed = {old: next(new for n in count(2) if (new := f"{old}_{n}") not in used_ids) for old in repeated}
            used_ids.update(renamed.get(call.id, call.id) for call in message.tool_calls)
        if renamed and message.role in ("assistant", "tool"):
            parts = tuple(_rename_call(part, renamed) for part in message.parts)
            message = message.model_copy(update={"parts": parts})  # forgets the encoding with the other id
        yield message


def _rename_call(part: Part, renamed: Mapping[str, str]) -> Part:
    match part:
        case ToolCallPart():
            return part.model_copy(update={"id": renamed.get(part.id, part.id)})
        case ToolResultPart():
            return part.model_copy(update={"call_id": renamed.get(part.call_id, part.call_id)})
        case _:
            return part


# ---
# Decodes the messages of a request.


def decode_messages(messages: Iterable[WireObject], conversation: Conversation) -> None:
    """Decode a request's ``messages``.

    A user message with tool results becomes two: a tool message and, if it has more, a user message. Cache breakpoints
    are omitted.
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
                raise ValueError(f"its role must be user or assistant, not {role!r:.100}")


def _list_wire_blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list) and all(isinstance(block, Mapping) and "type" in block for block in content):
        return [{key: value for key, value in drop_nulls(block).items() if key != "cache_control"} for block in content]
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
    parts = [_decode_content_block(block) for block in content if block["type"] != "tool_result"]
    if parts or not results:
        conversation.add_user(parts)


def _decode_assistant_block(block: WireObject, origin: str) -> Part:
    match block["type"]:
        case "text":
            cited = {"citations": block["citations"]} if block.get("citations") else None
            return TextPart(text=block["text"], **keep_opaque(origin, cited))
        case "thinking":
            opaque = _collect_extra_fields(block, "thinking")
            return ThinkingPart(text=block["thinking"], provider=origin, opaque=opaque or None)
        case "tool_use":
            opaque = keep_opaque(origin, _collect_extra_fields(block, "id", "name", "input"))
            return ToolCallPart(id=block["id"], name=block["name"], arguments=block["input"], **opaque)
        case "tool_result":
            raise ValueError("a tool_result must be in a message of the user")
        case _:
            return OpaquePart(provider=origin, data=dict(block))


def _collect_extra_fields(block: WireObject, *known: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in ("type", *known)}


def _decode_content_block(block: WireObject) -> ContentPart:
    kind, source, name = block["type"], block.get("source"), block.get("title")
    if kind == "text":
        return TextPart(text=block["text"])
    if kind not in ("image", "document") or not isinstance(source, Mapping):
        raise ValueError(f"a block of type {kind!r:.100} cannot be imported")
    match source.get("type"):
        case "base64":
            return build_imported_file(source["media_type"], name=name, data=source["data"])
        case "url":
            # The format does not say what a URL leads to: the API finds out when it fetches it.
            media_type = "application/pdf" if kind == "document" else guess_image_type(source["url"], "image/png")
            return build_imported_file(media_type, name=name, url=source["url"])
        case "text":
            data = base64.b64encode(source["data"].encode()).decode()
            return build_imported_file("text/plain", name=name, data=data)
        case other:
            raise ValueError(f"the source of its {kind} is of type {other!r:.100}, which cannot be imported")
