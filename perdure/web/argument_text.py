"""The JSON text of a call's arguments: whole, and the rest of a text that was streamed in pieces.

A reply is recorded with its arguments as values, and the pieces that were not read by then are gone. So the rest is
made from the values: whatever place of whatever spelling of the JSON the pieces end at, escapes and numbers included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

_BLANKS = re.compile(r"[ \t\n\r]*")
_CHARS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_HIGH_SURROGATE = re.compile(r"(?:^|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$")
_NUMBER = re.compile(r"[-+.0-9eE]*")
_SEPARATORS = (",", ":"), (", ", ": ")
_LITERALS = {True: "true", False: "false", None: "null"}
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def dump_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Encode the arguments of a call."""
    return _dump(arguments or {})


def find_rest(text: str, arguments: Mapping[str, Any] | None) -> str | None:
    """Return what completes ``text`` to JSON of ``arguments``, "" if nothing is missing or they are not known; None if
    ``text`` does not begin such JSON."""
    if not text or arguments is None:
        return "" if text else dump_arguments(arguments)
    for separators in _SEPARATORS:  # as models write it, mostly: their own text, and a hundred times as quick
        for is_ascii in (False, True):
            whole = json.dumps(arguments, ensure_ascii=is_ascii, separators=separators)
            if whole.startswith(text):
                return whole[len(text) :]
    reader = _Reader(text)
    try:
        rest = reader.read(dict(arguments)) or ""
        return rest if json.loads(text + rest, strict=False) == arguments else None
    except (_OtherTextError, ValueError, RecursionError):
        return None


class _OtherTextError(Exception):
    """The text is not the beginning of the value's JSON."""


class _Reader:
    """Reads the beginning of a value's JSON. Each method returns the rest of it, None if it was read whole."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def read(self, value: Any) -> str | None:
        if self._is_at_end():
            return _dump(value)
        match value:
            case dict():
                return self._read_object(value)
            case list() | tuple():
                return self._read_list(value)
            case str():
                return self._read_text(value)
            case bool() | None:
                return self._read_literal(_LITERALS[value])
            case _:
                return self._read_number(value)

    def _is_at_end(self) -> bool:
        blanks = _BLANKS.match(self._text, self._at)
        self._at = blanks.end() if blanks else self._at
        return self._at == len(self._text)

    def _take(self, marks: str) -> str:
        mark = self._text[self._at]
        if mark not in marks:
            raise _OtherTextError
        self._at += 1
        return mark

    def _read_object(self, value: Mapping[str, Any]) -> str | None:
        self._take("{")
        left, mark = dict(value), "{"
        while True:
            if self._is_at_end():
                return _join("," if mark == "value" else "", left)
            if mark == "value":
                mark = self._take(",}")
            elif mark == "{" and self._text[self._at] == "}":
                mark = self._take("}")
            if mark == "}":
                if left:
                    raise _OtherTextError
                return None
            if self._is_at_end():
                if not left:
                    raise _OtherTextError
                return _join("", left)
            if (rest := self._read_member(left)) is not None:
                return rest + _join(",", left)
            mark = "value"

    def _read_member(self, left: dict[str, Any]) -> str | None:
        """Read a name and its value, and take it out of ``left``."""
        begin = self._at
        self._take('"')
        found = _CHARS.match(self._text, self._at)
        end = found.end() if found else self._at
        if end < len(self._text) and self._text[end] == '"':
            name, rest = _decode(self._text[self._at : end]), None
            self._at = end + 1
            if name not in left:
                raise _OtherTextError
        else:
            name, rest = self._find_name(begin, left)
        value = left.pop(name)
        if rest is not None:
            return f"{rest}:{_dump(value)}"
        if self._is_at_end():
            return f":{_dump(value)}"
        self._take(":")
        return self.read(value)

    def _find_name(self, begin: int, left: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return a name that begins as the text does, and the rest of it. There may be many names, and much text."""
        self._at = begin
        known, cut = self._scan_text()
        for name in left:
            with suppress(_OtherTextError):
                return name, _complete_text(known, cut or "", name)
        raise _OtherTextError

    def _read_list(self, values: list[Any] | tuple[Any, ...]) -> str | None:
        self._take("[")
        for place, value in enumerate(values):
            if place:
                if self._is_at_end():
                    return "".join(f",{_dump(each)}" for each in values[place:]) + "]"
                self._take(",")
            if (rest := self.read(value)) is not None:
                return rest + "".join(f",{_dump(each)}" for each in values[place + 1 :]) + "]"
        if self._is_at_end():
            return "]"
        self._take("]")
        return None

    def _read_text(self, value: str) -> str | None:
        known, cut = self._scan_text()
        if cut is not None:
            return _complete_text(known, cut, value)
        if known != value:
            raise _OtherTextError
        return None

    def _scan_text(self) -> tuple[str, str | None]:
        """Read a text, and return it with the escape that it was cut in, "" for none; None if the text is whole."""
        self._take('"')
        found = _CHARS.match(self._text, self._at)
        raw = found[0] if found else ""
        self._at += len(raw)
        if self._at < len(self._text) and self._text[self._at] == '"':
            self._at += 1
            return _decode(raw), None
        cut = self._text[self._at :]
        self._at = len(self._text)
        if cut and not _CUT_ESCAPE.fullmatch(cut):
            raise _OtherTextError
        if pair := _HIGH_SURROGATE.search(raw):  # half of a character
            raw, cut = raw[: pair.start(1)], pair[1] + cut
        return _decode(raw), cut

    def _read_literal(self, word: str) -> str | None:
        begun = self._text[self._at : self._at + len(word)]
        if not word.startswith(begun):
            raise _OtherTextError
        self._at += len(begun)
        return word[len(begun) :] or None

    def _read_number(self, value: float) -> str | None:
        found = _NUMBER.match(self._text, self._at)
        token = found[0] if found else ""
        self._at += len(token)
        if self._at == len(self._text):
            return _complete_number(token, value)
        if json.loads(token) != value:
            raise _OtherTextError
        return None


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _join(separator: str, left: Mapping[str, Any]) -> str:
    members = ",".join(f"{_dump(name)}:{_dump(value)}" for name, value in left.items())
    return (separator if left else "") + members + "}"


def _decode(raw: str) -> str:
    return str(json.loads(f'"{raw}"', strict=False))


def _complete_text(known: str, cut: str, value: str) -> str:
    """Return the rest of ``value``, with its quote, behind what is ``known`` and a ``cut`` escape."""
    if not value.startswith(known):
        raise _OtherTextError
    missing = value[len(known) :]
    return _complete_escape(cut, missing[:1]) + _dump(missing[1:])[1:] if cut else _dump(missing)[1:]


def _complete_escape(cut: str, char: str) -> str:
    """Return the rest of an escape of ``char`` that begins with ``cut``."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    spellings = (_SHORT_ESCAPES.get(char, ""), "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)))
    for spelling in spellings:
        if spelling.lower().startswith(cut.lower()):
            return spelling[len(cut) :]
    raise _OtherTextError


def _complete_number(begun: str, value: float) -> str:
    """Return the rest of a spelling of ``value`` that begins so."""
    if (plain := _dump(value)).startswith(begun):
        return plain[len(begun) :]
    if begun == "-" and value == 0:
        return "0"
    try:
        if json.loads(begun) == value:
            return ""
    except ValueError:
        pass
    mantissa, mark, exponent = begun.replace("E", "e").partition("e")
    try:
        digits = "".join(map(str, Decimal(plain).normalize().as_tuple().digits))
        rest = "" if mark else _complete_mantissa(mantissa, digits)
        power = Decimal(plain).adjusted() - Decimal(mantissa + rest).adjusted()
    except (InvalidOperation, ValueError, OverflowError):
        raise _OtherTextError from None
    if not mark:
        return f"{rest}e{power}"
    known = exponent.lstrip("+-").lstrip("0")
    if not str(abs(power)).startswith(known) or (exponent and power and exponent.startswith("-") != (power < 0)):
        raise _OtherTextError
    return ("" if exponent or power >= 0 else "-") + str(abs(power))[len(known) :]


def _complete_mantissa(begun: str, digits: str) -> str:
    present = re.sub(r"[-.]", "", begun).lstrip("0")
    missing = digits[len(present) :]
    if "." not in begun:
        return f".{missing}" if missing else ""
    return missing or ("0" if begun.endswith(".") else "")
