"""Text on a terminal. Text from models, tools, users and servers must not steer it, nor look like lines of perdure's.

All output of commands goes through :func:`print_line`, :func:`print_text` or :func:`print_json`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
from datetime import datetime
from typing import Any, TextIO

OUTPUT_NAME = "<output>"
"""File name of the errors of writes to stdout and stderr."""
_STYLE_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_STYLE_MARK = f"\x1b{secrets.token_hex(8)}"
"""Stands for the beginning of a colour until the line is printed. It is random, so text from outside cannot have it."""
_MARKED_STYLE = re.compile(rf"{_STYLE_MARK}(\d+)m")
# C0, DEL and C1 controls, line separators, what changes the direction of writing, and lone surrogates.
_CONTROL_CHARS = re.compile(
    rf"{_STYLE_MARK}\d+m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_JSON_CONTROL_CHARS = re.compile(_CONTROL_CHARS.pattern.partition("|")[2])


def escape_line(line: str) -> str:
    """``line`` as one line, with visible escapes (``\\x1b``, ``\\n``) for characters that would steer the terminal."""
    return _CONTROL_CHARS.sub(_escape_control, line.expandtabs(4)).replace("\n", "\\n")


def render_text(text: str) -> str:
    """``text`` as it is written: escaped like :func:`escape_line`, its line feeds and tabs kept, in colours."""
    return _MARKED_STYLE.sub("\033[\\1m", _CONTROL_CHARS.sub(_escape_control, text.replace("\r\n", "\n")))


def truncate_text(text: str, most: int) -> str:
    """The first ``most`` characters of ``text``, with ``…`` if there are more."""
    return text if len(text) <= most else f"{text[:most]}…"


def style_text(text: str, style: str, *, stream: TextIO | None = None) -> str:
    """``text`` in a colour or weight once it is printed, if ``stream`` (stdout by default) takes colours.

    A terminal does, unless ``NO_COLOR`` is set.
    """
    if not text or not (stream or sys.stdout).isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"{_STYLE_MARK}{_STYLE_CODES[style]}m{text}{_STYLE_MARK}0m"


def print_line(text: str = "", *, error: bool = False) -> None:
    """Print one line: on stdout, or with ``error`` on stderr, which also takes all that is not the output itself."""
    print_text(escape_line(text), error=error)


def print_text(text: str, *, error: bool = False) -> None:
    """Print text of any number of lines: an answer, a report, an error message."""
    _write_line(text, sys.stderr if error else sys.stdout)


def print_json(value: Any, *, lines: bool = False) -> None:
    """Print ``value`` as JSON; with ``lines``, each item of a list on a line of its own."""
    items = value if lines and isinstance(value, list) else [value]
    for item in items:
        text = json.dumps(item, indent=None if lines else 2, ensure_ascii=False, default=_encode_value)
        _write_line(_JSON_CONTROL_CHARS.sub(lambda match: f"\\u{ord(match[0]):04x}", text), sys.stdout)


def _encode_value(value: Any) -> Any:
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json")
    return value.isoformat() if isinstance(value, datetime) else str(value)


class LogFormatter(logging.Formatter):
    """Escapes records, which contain ids and error messages, for the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """See base class."""
        return render_text(super().format(record))


def _write_line(text: str, stream: TextIO) -> None:
    try:
        stream.write(f"{render_text(text)}\n")
        stream.flush()
    except OSError as error:  # a full disk: the error names no file
        error.filename = OUTPUT_NAME
        raise


def _escape_control(match: re.Match[str]) -> str:
    text = match[0]
    return text if len(text) > 1 else text.encode("unicode_escape").decode()  # longer: a style mark
