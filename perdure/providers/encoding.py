"""What the requests of all wire formats have in common: JSON, ids, names, files, opaque data.

JSON and text go over the wire in UTF-8, with finite numbers, without lone surrogates and NUL.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from ..errors import BadRequestError, MalformedReplyError
from ..ports.model import ModelRequest
from ..types import messages
from ..types.messages import (
    BlobRef,
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
from ..types.plain_json import parse_json
from ..types.transcript import Piece, Segment, map_pieces
from .errors import describe_error

T = TypeVar("T")

_encode_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def encode_json(value: object) -> bytes:
    """Compact JSON in UTF-8, its texts cleaned by :func:`clean_text`.

    Raises ``BadRequestError`` for numbers that JSON does not have, and for values that are nested too deep.
    """
    return encode_json_text(value).encode()


def encode_json_text(value: object, *, sort_keys: bool = False) -> str:
    """The same as ``str``, for JSON within a text."""
    try:
        text = (_encode_sorted if sort_keys else _encode_compact)(value)
    except RecursionError:
        raise _build_unsendable_error("a value that is nested too deep to be written as JSON") from None
    except ValueError as error:  # NaN or an infinity, or a value that contains itself
        raise _build_unsendable_error(f"a value that JSON does not have ({error})") from None
    return messages.clean_json_text(text)


def _build_unsendable_error(part: str) -> BadRequestError:
    return BadRequestError(
        f"The request cannot be sent: the conversation, a tool's schema or an option has {part}.",
        hint="Remove it from the transcript (a fork, or compaction), the tool or provider_options.",
    )


def parse_reply_json(text: str | bytes, endpoint: str) -> Any:
    """The JSON value that ``endpoint`` sent.

    Raises ``MalformedReplyError`` for invalid JSON, too deep nesting and numbers of too many digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({describe_error(error)})") from None


def strip_parameters(media_type: str) -> str:
    """``"Text/CSV; charset=utf-8"`` → ``"text/csv"``: the type of a file or of a body, without its parameters."""
    return media_type.partition(";")[0].strip().lower()


_MAX_ARGUMENT_VALUES = 4
"""Most JSON values in the text of one call's arguments."""


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call; None for JSON of another kind or that is not plain.

    No text, ``null`` and ``[]`` are no arguments, a string that holds an object is the object, an empty object in front
    of another one is left out, and an object that is there twice counts once.
    """
    if not text.strip():
        return {}
    if (whole := _parse_argument_value(text)) is not None:
        return whole
    values = [_parse_argument_value(value) for value in _split_objects(text)]
    filled = [value for value in values if value]
    if not filled or None in values:
        return None
    first = json.dumps(filled[0], sort_keys=True)
    return filled[0] if all(json.dumps(value, sort_keys=True) == first for value in filled[1:]) else None


def _split_objects(text: str) -> list[str]:
    """The JSON objects that stand in ``text`` one after the other; [] if it has anything else."""
    values, rest = list[str](), text.strip()
    try:
        while rest.startswith("{") and len(values) < _MAX_ARGUMENT_VALUES:
            end = json.JSONDecoder().raw_decode(rest)[1]
            values.append(rest[:end])
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError):
        return []
    return [] if rest else values


def _parse_argument_value(text: str, *, nested: bool = False) -> dict[str, Any] | None:
    try:
        value = parse_json(text)
        if "\\u0000" in text:  # NUL, which no store can keep
            value = json.loads(messages.clean_json_text(json.dumps(value, ensure_ascii=False)))
    except ValueError:
        return None
    if value is None or value == []:
        return {}
    if isinstance(value, str) and not nested:
        return _parse_argument_value(value, nested=True) if value.strip() else {}
    return value if isinstance(value, dict) else None


def is_object_text(text: str) -> bool:
    """Whether ``text`` is one JSON object, or a string that holds one."""
    stripped = text.strip()
    if stripped[:1] + stripped[-1:] not in ("{}", '""') or len(stripped) < 2:  # a pair
        return False
    return _parse_argument_value(stripped) is not None and stripped != '""'


def clean_json_value(value: Any) -> Any:
    """``value`` (plain JSON) with its texts cleaned by :func:`clean_text`: for opaque data that is kept."""
    text = json.dumps(value, ensure_ascii=False)
    cleaned = messages.clean_json_text(text)
    return value if cleaned == text else json.loads(cleaned)


def build_tool_call(id: str, name: str, arguments: str, opaque: dict[str, Any]) -> ToolCallPart:
    """A call whose ``arguments`` are JSON text; ``opaque`` is from :func:`keep_opaque`."""
    parsed = parse_arguments(arguments)
    malformed = arguments if parsed is None else None
    return ToolCallPart(id=id, name=name, arguments=parsed or {}, malformed=malformed, **opaque)


def keep_opaque(origin: str, data: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a part that keep ``data`` for ``origin``; {} without data."""
    return {"provider": origin, "opaque": data} if data else {}


def bind_opaque(part: Part, signer: str) -> Part:
    """``part``, its opaque data bound to the models that can read it."""
    match part:
        case OpaquePart():
            return part.model_copy(update={"data": {**part.data, MODEL_KEY: signer}})
        case TextPart() | ThinkingPart() | ToolCallPart() if part.opaque:
            return part.model_copy(update={"opaque": {**part.opaque, MODEL_KEY: signer}})
        case _:
            return part


def get_own_opaque(part: TextPart | ThinkingPart | ToolCallPart | OpaquePart, origin: str) -> dict[str, Any] | None:
    """The part's opaque data if it came from ``origin``, the only server that it may be sent back to; else None."""
    if part.provider != origin:
        return None
    return part.data if isinstance(part, OpaquePart) else part.opaque


# ---
# What an encoder does with parts that its format cannot take as they are: omit, render or move them.


_NOT_IN_TOOL_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_MOVED_FILES_TITLE = re.compile(r"\[files? from the result of .*, call (?P<call>(?:(?!, call ).)*)\]", re.DOTALL)
_TEXT_MEDIA_TYPE = re.compile(
    r"text/.*|application/(json|jsonl|x-ndjson|xml|yaml|x-yaml|toml|javascript|x-sh|sql|.*\+(json|xml))\Z"
)


CONTINUE_TEXT = "Go on."
"""A message of the user for APIs that do not answer a conversation that ends with the model's."""
OPENING_TEXT = "(The conversation begins with the assistant's message.)"
"""A message of the user for APIs that want one first."""
MODEL_KEY = "model"
"""In opaque data: who can read what a model signed (``dialects.find_signer``). It is not sent."""
SHORT_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""The ids that Mistral takes."""


def build_tool_demand(name: str) -> str:
    """A message of the user for models that take no ``tool_choice``."""
    return f"Now call the tool {name}, and write nothing else."


class MessageEncoder:
    """Encodes the messages of one request. Each wire format has a subclass.

    ``origin`` is the server that the request goes to: opaque data of other servers is omitted.
    """

    max_call_id: ClassVar[int] = 64
    """Characters that the format takes of a call's id."""
    call_id_pattern: ClassVar[re.Pattern[str] | None] = None
    """Characters that it takes, if not all."""
    signer: str | None = None
    """The models that read the opaque data (``dialects.find_signer``), if the format binds it to models, too."""

    def __init__(self, request: ModelRequest, origin: str) -> None:
        self.origin = origin
        self.files = request.files
        self.messages = request.messages
        self.preceding: Message | None = None
        """The last message before the piece that is encoded."""

    @cached_property
    def provider_ids(self) -> dict[str, str]:
        """Ids that calls have at ``origin``, where these differ from ours."""
        return {
            call.id: call.provider_id
            for calls in map_pieces(self.messages, "provider ids", _list_renamed_calls)
            for call in calls
            if call.provider_id is not None and call.provider == self.origin
        }

    def encode_pieces(
        self,
        pieces: Iterable[Piece],
        key: str,
        encode: Callable[[Sequence[Message]], list[T]],
        merge: Callable[[list[T]], list[T]],
    ) -> list[T]:
        """Encode the pieces of a transcript in order. A segment is encoded once in its life: ``merge`` makes its
        encodings few, which it keeps under ``key`` in the place of those that its messages and parts keep."""
        encoded: list[T] = []
        for piece in pieces:
            if not isinstance(piece, Segment):
                encoded += encode(piece)
                self.preceding = piece[-1]
                continue
            if key not in piece.values:
                piece.values[key] = merge(self.encode_pieces(piece.pieces, key, encode, merge))
                piece.forget_pieces()
            encoded += piece.values[key]
            self.preceding = piece.messages[-1]
        return encoded

    def encode_call_id(self, call_id: str) -> str:
        """The id as it is sent, the same for a call and its result."""
        return self.provider_ids.get(call_id) or encode_call_id(call_id, self.max_call_id, self.call_id_pattern)

    def get_opaque(self, part: TextPart | ThinkingPart | ToolCallPart | OpaquePart) -> dict[str, Any]:
        """The part's opaque data if it came from this server, and its model can read it; else {}."""
        data = get_own_opaque(part, self.origin) or {}
        if self.signer is None or MODEL_KEY not in data:
            return data
        if data[MODEL_KEY] != self.signer:
            return {}
        return {key: value for key, value in data.items() if key != MODEL_KEY}

    def join_text(self, parts: Iterable[Part]) -> str:
        """The texts and files of ``parts`` as one text."""
        return "".join(
            require_loaded_text(part) if isinstance(part, TextPart) else render_file_text(part, self.files)
            for part in parts
            if isinstance(part, TextPart | FilePart)
        )


def _list_renamed_calls(messages: Sequence[Message]) -> list[ToolCallPart]:
    """List the calls that have another id at their provider."""
    replies = [message.parts for message in messages if message.role == "assistant"]
    calls = [part for parts in replies for part in parts if isinstance(part, ToolCallPart)]
    return [call for call in calls if call.provider_id is not None]


def merge_fragments(fragments: list[bytes]) -> list[bytes]:
    """Join JSON values by commas; none of them is empty."""
    return [b",".join(fragments)] if fragments else []


def build_body(head: Mapping[str, Any], list_name: str, fragments: Iterable[bytes]) -> bytes:
    """Build a request of ``head`` and, last, the list ``list_name`` of JSON values. Copies each of them once."""
    values = list(fragments)
    body = [b","] * (2 * len(values))
    body[1::2] = values
    body[:1] = [encode_json({**head, list_name: []})[:-2]]  # in the place of the first comma
    return b"".join((*body, b"]}"))


def join_fragments(message: Message, key: str, values: Iterable[object]) -> bytes:
    """``values`` as JSON, joined by commas, and kept on ``message`` under ``key``: it is encoded once in its life."""
    fragment = b",".join(map(encode_json, values))
    message.remember_wire(key, fragment)
    return fragment


def encode_call_id(id: str, longest: int, allowed: re.Pattern[str] | None = None) -> str:
    """``id`` of a call in at most ``longest`` characters (20 or more), all matched by ``allowed``.

    An id that does not fit becomes a digest that is the same for the call and its result, in every process.
    """
    if id and len(id) <= longest and (allowed is None or allowed.fullmatch(id)):
        return id
    return f"call_{hashlib.sha256(id.encode()).hexdigest()}"[: min(longest, 37)]


def shorten_call_id(id: str) -> str:
    """``id`` in nine letters or digits: itself, or a digest that is the same for the call and its result."""
    return id if SHORT_CALL_ID.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]


def encode_tool_name(name: str) -> str:
    """``name`` of a called tool as every format takes it (letters, digits, ``_``, ``-``, at most 64): models make up
    names that no tool could have."""
    return _NOT_IN_TOOL_NAME.sub("_", name)[:64] or "_"


def require_loaded_text(part: TextPart | ToolResultPart) -> str:
    """The text of the part. Raises ``BadRequestError`` if it is in a blob that was not loaded."""
    text = part.text if isinstance(part, TextPart) else part.content
    if part.blob is not None and not text:
        # Sending an empty text in its place would silently change the conversation.
        raise _build_not_loaded_error(part.blob)
    return text


def read_file_bytes(file: FilePart, files: Mapping[str, bytes]) -> bytes | None:
    """The bytes of ``file``; None for a file that is a URL.

    ``files`` is the request's. Raises ``BadRequestError`` for a blob that was not loaded, and for invalid base64.
    """
    if file.blob is not None:
        if file.blob.hash not in files:
            raise _build_not_loaded_error(file.blob)
        return files[file.blob.hash]
    if file.data is None:
        return None
    try:
        return base64.b64decode(file.data, validate=True)
    except ValueError:
        raise BadRequestError(f"The data of file {file.name or file.media_type!r} is not base64.") from None


def encode_file_base64(file: FilePart, files: Mapping[str, bytes]) -> str | None:
    """The bytes of ``file`` in base64; else as :func:`read_file_bytes`."""
    content = read_file_bytes(file, files)
    return None if content is None else base64.b64encode(content).decode()


def build_data_url(file: FilePart, files: Mapping[str, bytes]) -> str | None:
    """The bytes of ``file`` as a ``data:`` URL; else as :func:`read_file_bytes`."""
    content = encode_file_base64(file, files)
    return None if content is None else f"data:{file.media_type};base64,{content}"


def render_file_text(file: FilePart, files: Mapping[str, bytes]) -> str:
    """``file`` as text, for a model that cannot take it as a file.

    A text file is rendered whole, under a line with its name. Of any other file, the line says that it cannot be read.
    """
    content = read_file_bytes(file, files)
    facts = [file.media_type]
    if content is not None:
        facts.append(f"{len(content):,} bytes")
    title = f"file {file.name} ({', '.join(facts)})" if file.name else f"file ({', '.join(facts)})"
    if content is not None and _TEXT_MEDIA_TYPE.match(strip_parameters(file.media_type)):
        try:
            return f"[{title}]\n{content.decode()}"
        except UnicodeDecodeError:
            pass
    where = f" at {file.url}" if file.url else ""
    return f"[{title}{where}: this model cannot read it]"


def build_moved_file_parts(results: Iterable[ToolResultPart]) -> tuple[ContentPart, ...]:
    """The files of ``results`` as content of a following user message, each tool's under a line that names it.

    For formats whose tool results hold only text. Empty if there are no files.
    """
    parts: list[ContentPart] = []
    for result in results:
        if result.files:
            noun = "file" if len(result.files) == 1 else "files"
            parts.append(TextPart(text=f"[{noun} from the result of {result.name}, call {result.call_id}]"))
            parts.extend(result.files)
    return tuple(parts)


def restore_moved_files(
    results: Iterable[ToolResultPart], content: Iterable[ContentPart]
) -> tuple[tuple[ToolResultPart, ...], tuple[ContentPart, ...]]:
    """Reverses :func:`build_moved_file_parts`: ``results`` with their files, and the rest of ``content``."""
    by_call = {result.call_id: result for result in results}
    rest: list[ContentPart] = []
    current: str | None = None
    for part in content:
        if isinstance(part, FilePart):
            if current is None:
                rest.append(part)
            else:
                result = by_call[current]
                by_call[current] = result.model_copy(update={"files": (*result.files, part)})
            continue
        title = _MOVED_FILES_TITLE.fullmatch(part.text)
        current = title["call"] if title and title["call"] in by_call else None
        if current is None:
            rest.append(part)
    return tuple(by_call.values()), tuple(rest)


def _build_not_loaded_error(blob: BlobRef) -> BadRequestError:
    return BadRequestError(f"Content {blob.hash[:12]}… of a message was not loaded from the store.")
