"""What a person would see: as much of a terminal as prompt_toolkit and plain lines need, with what scrolled away."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[(?P<given>[0-?]*)[ -/]*(?P<kind>[@-~])|\x1b\][^\x07]*\x07|\x1b[^\[\]]")


class Screen:
    """Characters by row and column; ``feed`` draws."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._wraps = True

    @property
    def text(self) -> str:
        """Its lines, without spaces at their ends."""
        return "\n".join("".join(row).rstrip() for row in self._rows)

    @property
    def line(self) -> str:
        """The line that the cursor is in."""
        return "".join(self._rows[self._row]).rstrip()

    def feed(self, drawn: str) -> str:
        """Draw; returns what is left of a sequence that has not wholly arrived."""
        at = 0
        while at < len(drawn):
            if drawn[at] != "\x1b":
                self._put(drawn[at])
                at += 1
            elif found := _SEQUENCE.match(drawn, at):
                self._control(found["kind"], found["given"] or "")
                at = found.end()
            else:
                return drawn[at:]
        return ""

    def _put(self, char: str) -> None:
        if char == "\n":
            self._down(1)
        elif char == "\r":
            self._column = 0
        elif char == "\b":
            self._column = max(self._column - 1, 0)
        elif char >= " ":
            if self._column >= self._columns and self._wraps:
                self._column = 0
                self._down(1)
            row = self._rows[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = char
            self._column += 1

    def _down(self, count: int) -> None:
        self._row += count
        self._rows.extend([] for _ in range(self._row + 1 - len(self._rows)))

    def _control(self, kind: str | None, given: str) -> None:
        count = int(given) if given.isdecimal() else 1
        match kind:
            case "A":
                self._row = max(self._row - count, 0)
            case "B":
                self._down(count)
            case "C":
                self._column += count
            case "D":
                self._column = max(self._column - count, 0)
            case "J":
                del self._rows[self._row + 1 :]
                del self._rows[self._row][self._column :]
            case "K":
                del self._rows[self._row][self._column :]
            case "h" | "l" if given == "?7":
                self._wraps = kind == "h"
