"""The result or the exception of a tool, as the model sees it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from ..errors import ToolError
from ..types.messages import MAX_FILE_BYTES, File, clean_text
from ..types.plain_json import dump_json_value

MAX_ERROR_BYTES = 8 * 1024
"""Size limit of an exception's text: a page of HTML in it would be paid for in every later model call."""
CUT = "… (cut)"
"""End of a text that was shortened."""
MAX_FILES = 100
"""Limit of files in one result: each is a reference in history."""


class ResultError(ToolError):
    """The tool ran, but its result cannot be shown to the model."""


@dataclass(frozen=True, slots=True)
class ResultContent:
    """A tool's result as the model sees it: text, and files beside it."""

    text: str
    files: tuple[File, ...] = ()


def read_result(value: Any) -> ResultContent:
    """Convert ``value`` to text and files: a ``File``, a list or tuple with files, or a value for :func:`serialise`.

    In a list with files, every other piece is converted to text of its own, on separate lines. Raises ``ResultError``.
    """
    pieces = [value] if isinstance(value, File) else value
    if not isinstance(pieces, list | tuple) or not any(isinstance(piece, File) for piece in pieces):
        return ResultContent(serialise(value))
    files = tuple(piece for piece in pieces if isinstance(piece, File))
    size = sum(len(file.data or b"") for file in files)
    if len(files) > MAX_FILES or size > MAX_FILE_BYTES:
        raise ResultError(
            f"the tool ran, but its result has {len(files):,} files of {size:,} bytes; "
            f"it may have {MAX_FILES} files, and {MAX_FILE_BYTES:,} bytes",
            hint="Return fewer or smaller ones, or a File.at(url).",
        )
    return ResultContent("\n".join(serialise(piece) for piece in pieces if not isinstance(piece, File)), files)


def serialise(value: Any) -> str:
    """Convert ``value`` to text. Raises ``ResultError`` that names the type of a value that cannot be converted.

    Text, and bytes that are UTF-8, stay as they are. Everything else becomes compact JSON as pydantic writes it:
    models, dataclasses, dates, enums, sets; NaN and infinities are strings, other bytes URL-safe base64.
    None is ``null``, as inside a structure: an empty text could not be told from an empty string, and some
    APIs refuse an empty block.
    """
    if isinstance(value, str):
        return clean_text(str.__str__(value))  # of a subclass or enum: the text itself
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            value = bytes(value)
    if inspect.isawaitable(value):
        raise ResultError("the tool returned an awaitable that was not awaited", hint="Await it inside the tool.")
    try:
        return dump_json_value(value)
    except Exception as error:  # a type's own serialiser may raise anything
        cls = type(value)
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        raise ResultError(
            f"the tool ran, but its result ({name}) is not serialisable: {_get_error_message(error)}",
            hint="Return text, plain data, a dataclass or a pydantic model; a File alone, or in a list or tuple.",
        ) from error


def format_error(error: BaseException) -> str:
    """Format ``Type: message``, at most 8 KiB, without a traceback; for a group also the errors in it."""
    text, name = _get_error_message(error), type(error).__name__
    lines = [f"{name}: {text}" if text else name]
    if isinstance(error, BaseExceptionGroup):
        lines += [f"- {format_error(inner)}" for inner in error.exceptions[:10]]
    return truncate_error_text("\n".join(lines))


def truncate_error_text(text: str) -> str:
    """Cut ``text`` to at most 8 KiB, without lone surrogates, as history can hold it."""
    text = clean_text(text)
    encoded = text.encode()
    if len(encoded) <= MAX_ERROR_BYTES:
        return text
    return encoded[: MAX_ERROR_BYTES - len(CUT.encode())].decode(errors="ignore") + CUT


def _get_error_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of an exception is the author's code
        return ""
