"""Messages with typed parts, and the files in them.

The format is the engine's own; every provider adapter converts it to its wire format and back. The transcript chain
hashes the canonical bytes of a message (``encode_canonical``), so fields are only ever added, with defaults that are
left out of the bytes.
"""

import base64
import binascii
import json
import mimetypes
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, runtime_checkable
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter
from pydantic_core import from_json, to_json

from ..errors import InvalidInputError

Role = Literal["system", "user", "assistant", "tool"]


class Data(BaseModel):
    """Base of all stored and sent data: unknown fields of a newer version are ignored, not refused.

    With ``defer_build`` pydantic builds the schema of a model, or of an adapter, at its first use: a program uses few
    of them, and starts sooner. :mod:`perdure.workflows` builds all.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


def copy_shared(source: BaseModel, target: type[BaseModel], **changes: Any) -> dict[str, Any]:
    """Return the fields that ``source`` and ``target`` both have, with the values of ``source``, and ``changes``."""
    return {name: getattr(source, name) for name in _list_shared_fields(type(source), target)} | changes


@cache
def _list_shared_fields(source: type[BaseModel], target: type[BaseModel]) -> tuple[str, ...]:
    return tuple(name for name in target.model_fields if name in source.model_fields)


class BlobRef(Data):
    """Reference to bytes in the store that are too large for a message or for history."""

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 of the bytes, hexadecimal."""
    size: int
    """Bytes."""


class TextPart(Data):
    """Text; ``blob`` instead of ``text`` if it is stored separately."""

    type: Literal["text"] = "text"
    text: str = ""
    blob: BlobRef | None = None
    provider: str | None = None
    opaque: dict[str, Any] | None = None
    """Data for the provider only, for instance a thought signature or citations."""


class FilePart(Data):
    """An image or another file. Exactly one of ``blob``, ``url`` and ``data`` has its bytes."""

    type: Literal["file"] = "file"
    media_type: str
    """For instance ``image/png`` or ``application/pdf``."""
    name: str | None = None
    blob: BlobRef | None = None
    """The bytes, in the store."""
    url: str | None = None
    """URL from which the provider fetches it."""
    data: str | None = None
    """The bytes in base64, in input only: a transcript has them as a blob."""

    @property
    def is_image(self) -> bool:
        """Whether it is an image."""
        return self.media_type.startswith("image/")


class ThinkingPart(Data):
    """A model's thinking. ``opaque`` goes back to the provider that gave it, unread and unchanged."""

    type: Literal["thinking"] = "thinking"
    text: str = ""
    provider: str | None = None
    opaque: dict[str, Any] | None = None


NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools, in the form that every provider accepts; also names of agents and toolsets, which become names of
tools."""
NAME_CHARS = 200
"""Most characters of names that senders choose: ids of messages and turns, senders, agents and scopes."""
RUN_ID_CHARS = 2000
"""Most characters of a run's id."""
CALL_ID_CHARS = 100
"""Most characters of a tool call's id in a request. A run's own ids have 40 at most (``loop.tool_calls``)."""


class ToolCallPart(Data):
    """A tool call of a model's reply."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    """Unique in the conversation: the provider's own id, or a new one if that was taken or invalid."""
    provider_id: str | None = None
    """The provider's id, if ``id`` is another: ``provider`` gets it in place of ``id``."""
    name: str
    arguments: dict[str, Any] = {}
    malformed: str | None = None
    """The raw text of the arguments, if it was not a JSON object; ``arguments`` is then empty."""
    provider: str | None = None
    opaque: dict[str, Any] | None = None
    """Data for the provider only, for instance a thought signature."""


class ToolResultPart(Data):
    """The result of a tool call; ``blob`` instead of ``content`` if it is stored separately."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    content: str = ""
    blob: BlobRef | None = None
    is_error: bool = False
    files: tuple[FilePart, ...] = ()
    """Images and files that the tool returned besides its text."""
    given_by: str | None = None
    """Who gave the result, if it is not what the conversation's own call returned: it came with a fork or an imported
    history, or from a client that ran the call; empty if unknown. Models are not told."""


class OpaquePart(Data):
    """A piece of a reply that only its provider understands (redacted thinking, a search by its servers).

    It goes back to the same provider, unread and unchanged; requests to other providers omit it.
    """

    type: Literal["opaque"] = "opaque"
    provider: str
    data: dict[str, Any]


Part = Annotated[
    TextPart | FilePart | ThinkingPart | ToolCallPart | ToolResultPart | OpaquePart, Field(discriminator="type")
]

ContentPart = Annotated[TextPart | FilePart, Field(discriminator="type")]
"""Parts of a user's message, if it is not only text."""


class Usage(Data):
    """Tokens of one model call, or the sum of many."""

    input_tokens: int = 0
    """All input, including cached tokens."""
    output_tokens: int = 0
    """All output, including reasoning."""
    cached_tokens: int = 0
    """Part of the input: read from the provider's cache."""
    reasoning_tokens: int = 0
    """Part of the output."""
    cache_write_tokens: int = 0
    """Part of the input: written to the provider's cache."""

    @property
    def total_tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: tokens + getattr(other, name) for name, tokens in self})

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(**{name: tokens - getattr(other, name) for name, tokens in self})


NO_USAGE = Usage.model_construct()
"""Default of a field, made without validation: an import builds no schema."""

FinishReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "veto", "other"]
"""Why a reply ended. ``veto``: a hook answered in the model's place."""


class Replaced(Data):
    """An earlier form of the conversation, which stays in the store: the messages that a summary replaces, or a
    conversation before a step policy edited it."""

    head: str
    """Its head."""
    messages: int
    """How many messages it has."""
    kept: int
    """How many of its last messages follow the summary again; 0 for an edited conversation."""
    repeated: int = Field(default=0, exclude_if=operator.not_)
    """How many messages stand between the summary and those, which are among the replaced ones too: the messages that
    began the turn."""


class Withheld(Data):
    """Content that a model's API refused, and that requests omit."""

    key: str
    """Identifies it in the conversation: a digest of its content and position."""
    kind: Literal["file", "message", "result"]
    """A file of a message or result; a user's whole message; a tool's whole result."""
    what: str
    """For people: ``image/png cat.png``, ``message``, ``result of lookup``."""
    id: str | None = None
    """The sender's id of the user's message that it is, or is part of."""
    call_id: str | None = None
    """The call whose result it is, or is part of."""
    reason: str = ""
    """The error's class name and the beginning of its message."""


class Message(Data):
    """One message. Assistant messages also have the model, its usage and cost, and the reason why it stopped."""

    role: Role
    parts: tuple[Part, ...] = ()
    id: str | None = None
    """The sender's id of a user message."""
    by: str | None = None
    """The sender of a user message, as given by the sender."""
    model: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    replaces: Replaced | None = None
    """For the first message of a rewritten conversation: the conversation before."""
    request_id: str | None = Field(default=None, exclude_if=operator.not_)
    """For a reply: the API's id of the request, which its support asks for."""
    withheld: tuple[Withheld, ...] = ()
    """For a reply: all earlier content that the model was not given, because its API had refused it."""

    _wire: dict[str, bytes] = PrivateAttr(default_factory=dict)

    @classmethod
    def system(cls, text: str) -> "Message":
        """Create a system message."""
        return cls(role="system", parts=(TextPart(text=text),))

    @classmethod
    def user(cls, content: "Content", *, id: str | None = None, by: str | None = None) -> "Message":
        """Create a user message from text, or a list of texts and ``File``. Raises ``InvalidInputError``."""
        parts = (TextPart(text=content),) if isinstance(content, str) else build_content_parts(content)
        return cls(role="user", parts=parts, id=id, by=by)

    @classmethod
    def assistant(cls, text: str = "", *calls: ToolCallPart) -> "Message":
        """Create an assistant message with text, calls or both."""
        return cls(role="assistant", parts=((TextPart(text=text),) if text else ()) + calls)

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls of the message."""
        return tuple([part for part in self.parts if isinstance(part, ToolCallPart)])

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        """The tool results of the message."""
        return tuple([part for part in self.parts if isinstance(part, ToolResultPart)])

    def wire(self, format: str) -> bytes | None:
        """Return the message's encoding in a wire format, if :meth:`remember_wire` stored one: a transcript is encoded
        once."""
        private = self.__pydantic_private__  # self._wire takes 2 µs, 25 times as long, for each message of a call
        encodings: dict[str, bytes] = private["_wire"] if private else {}
        return encodings.get(format)

    def remember_wire(self, format: str, encoded: bytes) -> None:
        """Store the message's encoding in a wire format for the next call."""
        self._wire[format] = encoded

    def forget_wire(self) -> None:
        """Drop the encodings: they are part of a longer one now."""
        if self._wire:
            self._wire = {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """See pydantic. A copy drops the encodings: it may differ, and must not be sent as the original."""
        copy = super().model_copy(update=update, deep=deep)
        copy._wire = {}
        return copy


_SLICE_BYTES, _SLICE_MESSAGES = 128 * 1024, 500
_messages_adapter: TypeAdapter[list[Message]] = TypeAdapter(list[Message], config=ConfigDict(defer_build=True))


def encode_canonical(messages: Sequence[Message]) -> bytes:
    """Encode messages as the bytes that are hashed and stored: JSON, sorted keys, no blanks, UTF-8, defaults left out.

    Raises ``UnicodeEncodeError`` for a lone surrogate: call :func:`clean_text` before text becomes a message.
    """
    plain = []
    for message in messages:
        fields = message.model_dump(exclude_defaults=True) | {"role": message.role}
        parts = zip(fields.get("parts", ()), message.parts, strict=True)
        fields["parts"] = [plain_part | {"type": part.type} for plain_part, part in parts]
        plain.append(fields)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def iter_file_parts(messages: Iterable[Message]) -> Iterator[FilePart]:
    """Iterate over the files in ``messages``, including those of tool results, in order."""
    for message in messages:
        for part in message.parts:
            if part.type == "file":
                yield part
            elif part.type == "tool_result" and part.files:
                yield from part.files


def parse_messages(body: bytes) -> list[Message]:
    """Parse messages from their canonical bytes: many in slices, as no thread runs beside the validation of one."""
    if len(body) > _SLICE_BYTES and isinstance(plain := from_json(body), list):
        slices = (plain[at : at + _SLICE_MESSAGES] for at in range(0, len(plain), _SLICE_MESSAGES))
        return [m for each in slices for m in _messages_adapter.validate_json(to_json(each, inf_nan_mode="constants"))]
    return _messages_adapter.validate_json(body)


_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL in JSON, but not an escaped backslash that is followed by digits."""


def clean_text(text: str) -> str:
    """Return ``text`` with U+FFFD in place of characters that not every system can store: lone surrogates, which
    neither UTF-8 nor JSON allows, and NUL, which PostgreSQL and some providers refuse."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


INLINE_BYTES = 32 * 1024
"""Text up to this size is part of history; larger text is a blob in the store and a reference in history."""


def is_large_text(text: str) -> bool:
    """Whether ``text`` has more than ``INLINE_BYTES`` as UTF-8: then a blob has it, and history a reference."""
    return len(text) * 4 > INLINE_BYTES and len(text.encode()) > INLINE_BYTES


def clean_json_text(text: str) -> str:
    """Apply :func:`clean_text` to every string in ``text``, JSON that was written without ASCII escapes."""
    return clean_text(_ESCAPED_NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text)


# ---
# Files: images and others, as an author gives them, and the checks of every file that is sent.


MAX_FILE_BYTES = 100 * 1024 * 1024
"""Most bytes of one file, and of all files of one tool result. No model's API accepts as much."""
MAX_FILE_NAME_CHARS = 255
MAX_FILE_URL_CHARS = 8192

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_FETCHABLE_URL = re.compile(r"(?!(?i:file|data):)[A-Za-z][A-Za-z0-9+.-]*://\S+")

_MEDIA_TYPES_BY_MAGIC = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"....ftyp(?:heic|heix|hevc)", re.DOTALL), "image/heic"),
    (re.compile(rb"....ftypavif", re.DOTALL), "image/avif"),
    (re.compile(rb"%PDF-"), "application/pdf"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"ID3|\xff[\xf2\xf3\xfb]"), "audio/mpeg"),
    (re.compile(rb"fLaC"), "audio/flac"),
)
"""Types that APIs accept; they trust the bytes over the file's name."""
_MEDIA_TYPES_BY_SUFFIX = {
    ".avif": "image/avif",
    ".heic": "image/heic",
    ".heif": "image/heif",
    ".webp": "image/webp",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".ogg": "audio/ogg",
    ".opus": "audio/opus",
    ".wav": "audio/wav",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
"""Additions to Python's own table, which is the same on every machine."""


class File:
    """An image or another file: in a message (``["What is this?", File.read("cat.png")]``), or returned by a tool.

    ``media_type`` (``"image/png"``) is detected from the bytes, or guessed from ``name``, if it is not given. Exactly
    one of ``data`` and ``url`` is set. Raises ``InvalidInputError`` for invalid values.
    """

    # Not a dataclass: a tool's JSON must refuse a file, and would contain the bytes of a dataclass.
    __slots__ = ("data", "media_type", "name", "url")
    data: bytes | None
    url: str | None
    media_type: str
    name: str | None

    def __init__(self, data: bytes, media_type: str | None = None, name: str | None = None) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            hint = "For a file on disk: File.read(path). For one that the model's API fetches: File.at(url)."
            raise InvalidInputError(f"a file's data is bytes, not {type(data).__name__}", hint=hint)
        data = bytes(data)
        if not data:
            raise InvalidInputError(
                f"the file{f' {name}' if name else ''} is empty", hint="Models refuse empty files; leave it out."
            )
        self._assign_fields(data, None, media_type or _guess_media_type(data, name), name)

    @classmethod
    def read(cls, path: str | PathLike[str], media_type: str | None = None, name: str | None = None) -> "File":
        """Read the file at ``path``; ``name`` is its own name by default. Raises ``InvalidInputError`` if it cannot be
        read."""
        file_path = Path(path)
        try:
            if (size := file_path.stat().st_size) > MAX_FILE_BYTES:
                raise InvalidInputError(_describe_oversized_file(str(file_path), size))
            return cls(file_path.read_bytes(), media_type, name or file_path.name)
        except OSError as error:
            raise InvalidInputError(f"cannot read {str(file_path)!r}: {error.strerror or error}") from error

    @classmethod
    def at(cls, url: str, media_type: str | None = None, name: str | None = None) -> "File":
        """Refer to a file that the model's API fetches for each call; not every API does."""
        known_type = media_type or _guess_type_from_name(unquote(urlsplit(url).path)) if isinstance(url, str) else "x/x"
        if known_type is None:
            raise InvalidInputError(
                f"cannot tell the media type of {url!r:.200}", hint='Give it: File.at(url, media_type="image/png").'
            )
        file = cls.__new__(cls)
        file._assign_fields(None, url, known_type, name)
        return file

    def _assign_fields(self, data: bytes | None, url: str | None, media_type: str, name: str | None) -> None:
        for field, text in (("media_type", media_type), ("url", url), ("name", name)):
            if text is not None and not isinstance(text, str):
                raise InvalidInputError(f"a file's {field} is text, not {type(text).__name__}")
        name = clean_text(name) if name else None
        if why := _find_file_field_flaw(media_type, url, name):
            raise InvalidInputError(f"File: {why}")
        self.data, self.url, self.media_type, self.name = data, url, media_type.lower(), name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and all(
            getattr(self, field) == getattr(other, field) for field in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.data, self.url, self.media_type, self.name))

    def __repr__(self) -> str:
        where = self.url if self.data is None else f"{len(self.data):,} bytes"
        return f"<File {self.name + ' ' if self.name else ''}{self.media_type} {where}>"

    @property
    def part(self) -> FilePart:
        """The file as a part of a message, with its bytes."""
        data = None if self.data is None else base64.b64encode(self.data).decode()
        return FilePart(media_type=self.media_type, name=self.name, url=self.url, data=data)


Content = str | Sequence[str | File | FilePart]
"""Content of a message: text, or texts and files in order. A ``FilePart`` is a file that the store has."""


@runtime_checkable
class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


MessageInput = Content | Mapping[str, Any] | BaseModel | Dataclass
"""Content, or a value of the agent's input type."""


def build_content_parts(content: Content) -> tuple[ContentPart, ...]:
    """Convert ``content`` into parts of a message, with the bytes of its files. Raises ``InvalidInputError``."""
    if isinstance(content, str):
        return (TextPart(text=clean_text(content)),)
    return tuple(
        piece if isinstance(piece, FilePart) else piece.part if isinstance(piece, File) else _build_text_part(piece)
        for piece in normalize_content(content)
    )


def _build_text_part(text: str) -> TextPart:
    return TextPart(text=clean_text(text))


def normalize_content(content: Sequence[str | File | FilePart]) -> list[str | File | FilePart]:
    """Return ``content``, a list of texts and files, without empty texts. Raises ``InvalidInputError``."""
    expected = 'A message is text, or a list: ["What is this?", File.read("cat.png")].'
    if isinstance(content, bytes | File) or not isinstance(content, Sequence):
        raise InvalidInputError(f"a message must be text or a list, not {type(content).__name__}", hint=expected)
    for piece in content:
        if not isinstance(piece, str | File | FilePart):
            raise InvalidInputError(f"a message has texts and Files in it, not {type(piece).__name__}", hint=expected)
        if isinstance(piece, FilePart) and (flaw := find_file_flaw(piece)):
            raise InvalidInputError(flaw)
        if isinstance(piece, File) and piece.data is not None and len(piece.data) > MAX_FILE_BYTES:
            raise InvalidInputError(_describe_oversized_file(piece.name or "the file", len(piece.data)))
    pieces = [piece for piece in content if piece != ""]
    if not pieces:
        raise InvalidInputError("the message has nothing in it", hint=expected)
    return pieces


def _describe_oversized_file(name: str, size: int) -> str:
    return f"{name} has {size:,} bytes; a file may have {MAX_FILE_BYTES:,}"


def find_file_flaw(part: FilePart) -> str | None:
    """Return why ``part`` is not a file that may be sent; None if it is valid."""
    sources = [name for name in ("blob", "url", "data") if getattr(part, name) is not None]
    if len(sources) != 1:
        return f"a file has exactly one of blob, url and data, this one has {' and '.join(sources) or 'none'}"
    if part.data is not None:
        try:
            if not decode_file_data(part):
                return "data: the file is empty"
        except InvalidInputError as error:
            return error.message
    return _find_file_field_flaw(part.media_type, part.url, part.name)


def decode_file_data(part: FilePart) -> bytes:
    """Decode the bytes of a part with ``data``. Raises ``InvalidInputError``."""
    try:
        return base64.b64decode((part.data or "").encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidInputError(f"data is not base64: {error}") from None


def _find_file_field_flaw(media_type: str, url: str | None, name: str | None) -> str | None:
    if not _MEDIA_TYPE.fullmatch(media_type):
        return f"media_type: {media_type!r:.100} is not a media type like 'image/png', without parameters"
    if url is not None and (not _FETCHABLE_URL.fullmatch(url) or len(url) > MAX_FILE_URL_CHARS):
        return f"url: {url!r:.100} is not a URL that a model's API can fetch, like 'https://example.com/cat.png'"
    if name is not None and len(name) > MAX_FILE_NAME_CHARS:
        return f"name has {len(name):,} characters and may have {MAX_FILE_NAME_CHARS}"
    return None


def _guess_type_from_name(name: str | None) -> str | None:
    suffix = PurePosixPath(name).suffix.lower() if isinstance(name, str) else ""
    return _MEDIA_TYPES_BY_SUFFIX.get(suffix) or _load_python_mime_types().get(suffix)


@cache
def _load_python_mime_types() -> dict[str, str]:
    """Load Python's own table: the system's table differs between machines."""
    return mimetypes.MimeTypes().types_map[True]


def detect_media_type(data: bytes) -> str | None:
    """Return the media type that the first bytes of a file show; None if they show none."""
    return next((media_type for magic, media_type in _MEDIA_TYPES_BY_MAGIC if magic.match(data)), None)


def _guess_media_type(data: bytes, name: str | None) -> str:
    if (detected := detect_media_type(data)) is not None:
        return detected
    if (guessed := _guess_type_from_name(name)) is not None:
        return guessed
    try:
        data.decode()
    except UnicodeDecodeError:
        problem = f"cannot tell the media type of {f'{name!r:.200}' if name else f'{len(data):,} bytes'}"
        raise InvalidInputError(problem, hint='Give it: File(data, media_type="image/png").') from None
    return "text/plain"
