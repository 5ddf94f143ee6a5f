"""What the model sees of a tool's result or exception."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from ..errors import ToolError
from ..types.messages import MAX_FILE_BYTES, File, clean_text

MAX_ERROR_BYTES = 8 * 1024
CUT = "… (cut)"
"""Ends a text that was shortened."""
"""An exception's text is cut here: a page of HTML in it would be paid for in every later model call."""


MAX_FILES = 100
"""Of one result: each is a reference in history."""


class ResultError(ToolError):
    """The tool ran, but its result cannot be shown to the model."""


@dataclass(frozen=True, slots=True)
class ResultContent:
    """What a tool's result is to the model: text, and files beside it."""

    text: str
    files: tuple[File, ...] = ()


def read_result(value: Any) -> ResultContent:
    """``value`` as text and files: a ``File``, a list or tuple with some in it, or whatever :func:`serialise` takes.

    Of a list, every piece that is no file is text as it would be alone, on lines of its own. Raises ``ResultError``.
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
    """The text of ``value``. Raises ``ResultError`` for what has none, naming the type.

    Text, and bytes that are UTF-8, stand as they are. Everything else is compact JSON as pydantic writes it:
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
        raise ResultError("the tool returned an awaitable that nobody awaited", hint="Await it inside the tool.")
    try:
        return dump_result_json(value)
    except Exception as error:  # a type's own serialiser may raise anything
        raise ResultError(
            f"the tool ran, but its result ({_get_qualified_type_name(value)}) is not serialisable: "
            f"{_get_error_message(error)}",
            hint="Return text, plain data, a dataclass or a pydantic model; a File alone, or in a list or tuple.",
        ) from error


def format_error(error: BaseException) -> str:
    """``Type: message``, at most 8 KiB, never a traceback; of a group also the errors in it."""
    lines = [_format_error_line(error)]
    if isinstance(error, BaseExceptionGroup):
        lines += [f"- {format_error(inner)}" for inner in error.exceptions[:10]]
    return truncate_error_text("\n".join(lines))


def truncate_error_text(text: str) -> str:
    """``text`` as it can stand in history: at most 8 KiB, without lone surrogates."""
    text = clean_text(text)
    encoded = text.encode()
    if len(encoded) <= MAX_ERROR_BYTES:
        return text
    return encoded[: MAX_ERROR_BYTES - len(CUT.encode())].decode(errors="ignore") + CUT


def dump_result_json(value: Any) -> str:
    """JSON as pydantic writes it, so that it can be stored. Raises ``ValueError``, or what a type's code raises."""
    for bytes_mode in ("utf8", "base64"):
        try:
            return to_json(value, inf_nan_mode="strings", bytes_mode=bytes_mode).decode()
        except ValueError as error:
            if "utf-8" not in str(error).lower():
                raise
    # Not the bytes, then: some text holds a lone surrogate.
    plain = to_jsonable_python(value, bytes_mode="base64")
    cleaned = json.loads(clean_text(json.dumps(plain, ensure_ascii=False)))
    return to_json(cleaned, inf_nan_mode="strings").decode()


def _format_error_line(error: BaseException) -> str:
    text = _get_error_message(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _get_error_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of an exception is the author's code
        return ""


def _get_qualified_type_name(value: Any) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
