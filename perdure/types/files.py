"""``File``: an image or another file, as an author gives it; and what every file that is sent must be like."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from ..errors import InvalidInputError
from .messages import ContentPart, FilePart, TextPart, clean_text

MAX_FILE_BYTES = 100 * 1024 * 1024
"""Of one file, and of all files of one tool result. No model's API takes as much."""
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
"""Of what APIs take; where a name says something else, they believe the bytes."""
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
"""Beside what Python's own table has on every machine."""


class File:
    """An image or another file: in a message (``["What is this?", File.read("cat.png")]``), or returned by a tool.

    ``media_type`` (``"image/png"``) is read from the bytes or guessed from ``name`` where it is not given. Exactly one
    of ``data`` and ``url`` is there. Raises ``InvalidInputError`` for what is no file.
    """

    # No dataclass: inside a tool's JSON it would be written out, bytes and all, where it must be refused.
    __slots__ = ("data", "media_type", "name", "url")
    data: bytes | None
    url: str | None
    media_type: str
    name: str | None

    def __init__(self, data: bytes, media_type: str | None = None, name: str | None = None) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInputError(
                f"a file's data is bytes, not {type(data).__name__}",
                hint="Of a file on disk: File.read(path). Of one that the model's API is to fetch: File.at(url).",
            )
        data = bytes(data)
        if not data:
            raise InvalidInputError(f"the file{f' {name}' if name else ''} is empty", hint="No model takes such a one.")
        self._assign_fields(
            data,
            None,
            media_type
            or _guess_type_from_bytes(data)
            or _guess_type_from_name(name)
            or _guess_type_from_text(data, name),
            name,
        )

    @classmethod
    def read(cls, path: str | PathLike[str], media_type: str | None = None, name: str | None = None) -> File:
        """The file at ``path``, under its own name. Raises ``InvalidInputError`` where it cannot be read."""
        at = Path(path)
        try:
            if (size := at.stat().st_size) > MAX_FILE_BYTES:
                raise InvalidInputError(describe_oversized_file(str(at), size))
            return cls(at.read_bytes(), media_type, name or at.name)
        except OSError as error:
            raise InvalidInputError(f"cannot read {str(at)!r}: {error.strerror or error}") from error

    @classmethod
    def at(cls, url: str, media_type: str | None = None, name: str | None = None) -> File:
        """A file that the model's API fetches by itself, each time that it is asked; not every API does."""
        known = media_type or _guess_type_from_name(unquote(urlsplit(url).path)) if isinstance(url, str) else "x/x"
        if known is None:
            raise InvalidInputError(
                f"cannot tell the media type of {url!r:.200}", hint='Say it: File.at(url, media_type="image/png").'
            )
        file = cls.__new__(cls)
        file._assign_fields(None, url, known, name)
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
        return isinstance(other, File) and all(getattr(self, at) == getattr(other, at) for at in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.data, self.url, self.media_type, self.name))

    def __repr__(self) -> str:
        where = self.url if self.data is None else f"{len(self.data):,} bytes"
        return f"<File {self.name + ' ' if self.name else ''}{self.media_type} {where}>"

    @property
    def part(self) -> FilePart:
        """As a part of a message, its bytes in it."""
        data = None if self.data is None else base64.b64encode(self.data).decode()
        return FilePart(media_type=self.media_type, name=self.name, url=self.url, data=data)


Content = str | Sequence[str | File]
"""What may be said: text, or texts and files in order."""


@runtime_checkable
class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


MessageInput = Content | Mapping[str, Any] | BaseModel | Dataclass
"""What may be sent: content, or a value of the agent's input type."""


def build_content_parts(content: Content) -> tuple[ContentPart, ...]:
    """``content`` as parts of a message, the bytes of files in them. Raises ``InvalidInputError``."""
    if isinstance(content, str):
        return (TextPart(text=clean_text(content)),)
    return tuple(
        piece.part if isinstance(piece, File) else TextPart(text=clean_text(piece))
        for piece in normalize_content(content)
    )


def normalize_content(content: Sequence[str | File]) -> list[str | File]:
    """``content``, a list of texts and files, without empty texts. Raises ``InvalidInputError``."""
    expected = 'A message is text, or a list: ["What is this?", File.read("cat.png")].'
    if isinstance(content, bytes | File) or not isinstance(content, Sequence):
        raise InvalidInputError(f"a message must be text or a list, not {type(content).__name__}", hint=expected)
    for piece in content:
        if not isinstance(piece, str | File):
            raise InvalidInputError(f"a message has texts and Files in it, not {type(piece).__name__}", hint=expected)
        if isinstance(piece, File) and piece.data is not None and len(piece.data) > MAX_FILE_BYTES:
            raise InvalidInputError(describe_oversized_file(piece.name or "the file", len(piece.data)))
    said = [piece for piece in content if piece != ""]
    if not said:
        raise InvalidInputError("the message has nothing in it", hint=expected)
    return said


def describe_oversized_file(name: str, size: int) -> str:
    """What is said of a file over the limit."""
    return f"{name} has {size:,} bytes; a file may have {MAX_FILE_BYTES:,}"


def find_file_flaw(part: FilePart) -> str | None:
    """Why ``part`` is no file that may be sent, if so."""
    given = [name for name in ("blob", "url", "data") if getattr(part, name) is not None]
    if len(given) != 1:
        return f"a file has exactly one of blob, url and data, this one has {' and '.join(given) or 'none'}"
    if part.data is not None:
        try:
            if not decode_file_data(part):
                return "data: the file is empty"
        except InvalidInputError as error:
            return error.message
    return _find_file_field_flaw(part.media_type, part.url, part.name)


def decode_file_data(part: FilePart) -> bytes:
    """The bytes of a part that has ``data``. Raises ``InvalidInputError``."""
    try:
        return base64.b64decode((part.data or "").encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidInputError(f"data: it is not base64: {error}") from None


def _find_file_field_flaw(media_type: str, url: str | None, name: str | None) -> str | None:
    if not _MEDIA_TYPE.fullmatch(media_type):
        return f"media_type: {media_type!r:.100} is none; one is like 'image/png', without parameters"
    if url is not None and (not _FETCHABLE_URL.fullmatch(url) or len(url) > MAX_FILE_URL_CHARS):
        return f"url: {url!r:.100} is none that a model's API can fetch; one is like 'https://example.com/cat.png'"
    if name is not None and len(name) > MAX_FILE_NAME_CHARS:
        return f"name: it has {len(name):,} characters and may have {MAX_FILE_NAME_CHARS}"
    return None


def _guess_type_from_bytes(data: bytes) -> str | None:
    return next((found for magic, found in _MEDIA_TYPES_BY_MAGIC if magic.match(data)), None)


def _guess_type_from_name(name: str | None) -> str | None:
    if not isinstance(name, str):
        return None
    suffix = PurePosixPath(name).suffix.lower()
    return _MEDIA_TYPES_BY_SUFFIX.get(suffix) or _load_python_mime_types().get(suffix)


@cache
def _load_python_mime_types() -> dict[str, str]:
    """Python's own table: that of the system is another one on each machine."""
    return mimetypes.MimeTypes().types_map[True]


def _guess_type_from_text(data: bytes, name: str | None) -> str:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidInputError(
            f"cannot tell the media type of {f'{name!r:.200}' if name else f'{len(data):,} bytes'}",
            hint='Say it: File(data, media_type="image/png").',
        ) from None
    return "text/plain"
