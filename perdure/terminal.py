"""Text on a terminal. What models, tools, users and servers wrote must not steer it, nor look like lines of ours.

Everything that a command prints goes through :func:`print_line`, :func:`print_text` or :func:`print_json`.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from typing import Any, TextIO

_STYLE_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_STYLE_MARK = f"\x1b{secrets.token_hex(8)}"
"""Stands for the beginning of a colour until the line is printed: no text from outside can have it."""
_MARKED_STYLE = re.compile(rf"{_STYLE_MARK}(\d+)m")
# C0, DEL and C1 controls, separators of lines, what changes the direction of writing, and lone surrogates.
_CONTROL_CHARS = re.compile(
    rf"{_STYLE_MARK}\d+m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_JSON_CONTROL_CHARS = re.compile(_CONTROL_CHARS.pattern.partition("|")[2])


def escape_line(line: str) -> str:
    """``line`` as one line, with escapes that are seen (``\\x1b``, ``\\n``) for what would steer the terminal."""
    return _CONTROL_CHARS.sub(_escape_control, line.expandtabs(4)).replace("\n", "\\n")


def render_text(text: str) -> str:
    """``text`` as it is written: escaped like :func:`escape_line`, its line feeds and tabs kept, in colours."""
    return _MARKED_STYLE.sub("\033[\\1m", _CONTROL_CHARS.sub(_escape_control, text.replace("\r\n", "\n")))


def style_text(text: str, style: str, *, on: bool) -> str:
    """``text`` in a colour or weight, where ``on``, once it is printed."""
    return f"{_STYLE_MARK}{_STYLE_CODES[style]}m{text}{_STYLE_MARK}0m" if on and text else text


def print_line(text: str = "", *, error: bool = False) -> None:
    """Print one line, on stderr for an ``error`` or what stands beside the output."""
    _write_line(escape_line(text), sys.stderr if error else sys.stdout)


def print_text(text: str, *, error: bool = False) -> None:
    """Print what may have several lines: an answer, a report, a message of an error."""
    _write_line(text, sys.stderr if error else sys.stdout)


def print_json(value: Any, *, lines: bool = False) -> None:
    """Print ``value`` as JSON; with ``lines``, each item of a list on a line of its own."""
    items = value if lines and isinstance(value, list) else [value]
    for item in items:
        text = json.dumps(item, indent=None if lines else 2, ensure_ascii=False, default=str)
        _write_line(_JSON_CONTROL_CHARS.sub(lambda found: f"\\u{ord(found[0]):04x}", text), sys.stdout)


class LogFormatter(logging.Formatter):
    """Records as they may be printed: they have ids, and texts of failures."""

    def format(self, record: logging.LogRecord) -> str:
        """See base class."""
        return render_text(super().format(record))


def _write_line(text: str, stream: TextIO) -> None:
    stream.write(f"{render_text(text)}\n")
    stream.flush()


def _escape_control(found: re.Match[str]) -> str:
    char = found[0]
    if len(char) > 1:  # a style of ours
        return char
    named = {"\r": "\\r"}.get(char)
    return named or (f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}")
