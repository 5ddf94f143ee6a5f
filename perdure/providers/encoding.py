"""JSON and text as they go over the wire, in every format: UTF-8, finite numbers, no lone surrogates and no NUL."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import BadRequestError, MalformedReplyError
from ..ports.model import NAME_PATTERN
from ..types import messages
from ..types.messages import (
    BlobRef,
    ContentPart,
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    clean_text,
)
from ..types.plain_json import parse_json
from .errors import describe_error

_encode_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def encode_json(value: object) -> bytes:
    """Compact JSON in UTF-8; what texts cannot carry (:func:`clean_text`) is replaced.

    Raises ``BadRequestError`` for numbers that JSON does not have, and for values that are nested too deep.
    """
    return encode_json_text(value).encode()


def encode_json_text(value: object, *, sort_keys: bool = False) -> str:
    """The same as text, for JSON within a text."""
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
    """The JSON value that ``endpoint`` has sent.

    Raises ``MalformedReplyError`` for what is not JSON, is nested too deep, or has a number of too many digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({describe_error(error)})") from None


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The JSON object of ``text``; {} for blank text; None for anything else, and for what is not plain JSON."""
    if not text.strip():
        return {}
    try:
        value = parse_json(text)
        if "\\u0000" in text:  # which no store can keep
            value = json.loads(messages.clean_json_text(json.dumps(value, ensure_ascii=False)))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def clean_json_value(value: Any) -> Any:
    """``value`` (plain JSON) with every text in it :func:`clean_text`: for opaque data that is kept."""
    text = json.dumps(value, ensure_ascii=False)
    cleaned = messages.clean_json_text(text)
    return value if cleaned == text else json.loads(cleaned)


class StreamedText:
    """Text that arrives in pieces, a piece perhaps ending between the halves of a surrogate pair."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """What can be shown of ``piece``, with the half that was kept back before."""
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        piece = clean_text(piece)
        self._pieces.append(piece)
        return piece

    def join_text(self) -> str:
        """All of it."""
        return "".join(self._pieces) + clean_text(self._half)


# ---
# The data of server-sent events, of a body that comes in pieces.
#
# https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation


_SSE_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventStreamParser:
    """One stream under reading. Names, ids and times of events are left out."""

    def __init__(self) -> None:
        self._line_start: list[bytes] = []  # of a line that has not ended: joined once, however many pieces it comes in
        self._after_cr = False
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """The data of the events that end in ``piece``. Raises ``UnicodeDecodeError``."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        elif not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        first, *more = _SSE_LINE_END.split(piece)
        self._line_start.append(first)
        if not more:
            return
        lines = [b"".join(self._line_start), *more[:-1]]
        self._line_start = [more[-1]]
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data).decode()
                self._data = []


# ---
# What an encoder does with parts that its format, or this API, cannot take as they are: leave out, render or move.


_NOT_IN_TOOL_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_MOVED_FILES_TITLE = re.compile(r"\[files? from the result of .*, call (?P<call>.*)\]", re.DOTALL)
_TEXT_MEDIA_TYPE = re.compile(
    r"text/.*|application/(json|jsonl|x-ndjson|xml|yaml|x-yaml|toml|javascript|x-sh|sql|.*\+(json|xml))\Z"
)


def get_own_opaque(part: TextPart | ThinkingPart | ToolCallPart | OpaquePart, origin: str) -> dict[str, Any] | None:
    """The part's opaque data where it may be sent to ``origin``, which is where it came from; else None."""
    if part.provider != origin:
        return None
    return part.data if isinstance(part, OpaquePart) else part.opaque


def map_provider_ids(messages: Iterable[Message], origin: str) -> dict[str, str]:
    """The ids that calls of ``messages`` have at ``origin``, where these are other ones than here."""
    return {
        part.id: part.provider_id
        for message in messages
        if message.role == "assistant"
        for part in message.parts
        if isinstance(part, ToolCallPart) and part.provider_id is not None and part.provider == origin
    }


def encode_call_id(id: str, longest: int, allowed: re.Pattern[str] | None = None) -> str:
    """``id`` of a call, as a format takes it: at most ``longest`` characters (20 or more), all matched by ``allowed``.

    What does not fit becomes a digest that is the same for the call and its result, in every process.
    """
    if id and len(id) <= longest and (allowed is None or allowed.fullmatch(id)):
        return id
    return f"call_{hashlib.sha256(id.encode()).hexdigest()}"[: min(longest, 37)]


def encode_tool_name(name: str) -> str:
    """``name`` of a tool that was called, as every format takes it: letters, digits, ``_`` and ``-``, at most 64."""
    return name if NAME_PATTERN.fullmatch(name) else (_NOT_IN_TOOL_NAME.sub("_", name)[:64] or "_")


def require_loaded_text(text: str, part: TextPart | ToolResultPart) -> str:
    """``text`` of the part. Raises ``BadRequestError`` where it was kept apart and not loaded."""
    if part.blob is not None and not text:
        # Sending an empty text in its place would silently change the conversation.
        raise _build_not_loaded_error(part.blob)
    return text


def read_file_bytes(file: FilePart, files: Mapping[str, bytes]) -> bytes | None:
    """The bytes of ``file``; None where only a URL says where they are.

    ``files`` is the request's. Raises ``BadRequestError`` for a blob that is not there, or data that is not base64.
    """
    if file.blob is not None:
        if file.blob.hash not in files:
            raise _build_not_loaded_error(file.blob)
        return files[file.blob.hash]
    if file.data is None:
        return None
    try:
        return base64.b64decode(file.data, validate=True)
    except binascii.Error:
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

    A file of text is given whole under a line with its name. Of any other the line says that it cannot be read.
    """
    content = read_file_bytes(file, files)
    facts = [file.media_type]
    if content is not None:
        facts.append(f"{len(content):,} bytes")
    title = f"file {file.name} ({', '.join(facts)})" if file.name else f"file ({', '.join(facts)})"
    if content is not None and _TEXT_MEDIA_TYPE.match(file.media_type.partition(";")[0].strip().lower()):
        try:
            return f"[{title}]\n{content.decode()}"
        except UnicodeDecodeError:
            pass
    where = f" at {file.url}" if file.url else ""
    return f"[{title}{where}: this model cannot read it]"


def build_moved_file_parts(results: Iterable[ToolResultPart]) -> tuple[ContentPart, ...]:
    """The files of ``results`` as content of a user message that follows, each tool's under a line that names it.

    For formats whose tool results hold text alone. Empty where there are no files.
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
    """What :func:`build_moved_file_parts` did, undone: ``results`` with their files, and what else is in
    ``content``."""
    found = {result.call_id: result for result in results}
    rest: list[ContentPart] = []
    current: str | None = None
    for part in content:
        if isinstance(part, FilePart):
            if current is None:
                rest.append(part)
            else:
                result = found[current]
                found[current] = result.model_copy(update={"files": (*result.files, part)})
            continue
        marked = _MOVED_FILES_TITLE.fullmatch(part.text)
        current = marked["call"] if marked and marked["call"] in found else None
        if current is None:
            rest.append(part)
    return tuple(found.values()), tuple(rest)


def _build_not_loaded_error(blob: BlobRef) -> BadRequestError:
    return BadRequestError(f"Content {blob.hash[:12]}… of a message was not loaded from the store.")
