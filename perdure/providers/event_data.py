"""The data of server-sent events, of a body that comes in pieces.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventData:
    """One stream under reading. Names, ids and times of events are left out."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # of a line that has not ended: joined once, however many pieces it comes in
        self._after_cr = False
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """The data of the events that end in ``piece``. Raises ``UnicodeDecodeError``."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        elif not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        first, *more = _LINE_END.split(piece)
        self._begun.append(first)
        if not more:
            return
        lines = [b"".join(self._begun), *more[:-1]]
        self._begun = [more[-1]]
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data).decode()
                self._data = []
