"""A turn as it happens, in lines: what is written so far of the last one is the prompt's to show."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..conversation import printable, styled
from ..event_lines import called, retracted, subagent

if TYPE_CHECKING:
    from ...types.events import Event


class LiveTurn:
    """Events of one turn in, lines out."""

    def __init__(self, *, colour: bool) -> None:
        from ...following import LiveText

        self._live = LiveText()
        self._colour = colour
        self.rest = ""
        """The line that is being written."""
        self.shown = False
        """Whether any of the reply was shown."""
        self.over = False
        """Whether the turn has its answer; one that is extended goes on."""

    def feed(self, event: Event) -> Iterator[str]:
        """Whole lines of text, and what else a person wants to know of it."""
        if event.path:
            yield from self._of_subagent(event)
            return
        self.over = event.type == "turn" and event.state != "started"
        if piece := self._live.feed(event):
            self.shown = True
            *whole, self.rest = (self.rest + piece).split("\n")
            yield from (printable(line).rstrip() for line in whole)
            yield from self._wrapped()
        match event.type:
            case "model.completed":
                yield from self.last()
                for call in called(event):
                    yield styled(call, "blue", on=self._colour)
            case "model.retracted":
                yield from self.last()
                if event.reason != "Interrupted":  # the end of the turn says so
                    yield styled(retracted(event.reason), "yellow", on=self._colour)
            case "tool.progress":
                yield styled(f"… {printable(event.name)}: {printable(event.message)}", "dim", on=self._colour)

    def _of_subagent(self, event: Event) -> Iterator[str]:
        """The calls it makes, a line each, and no word of what it says: that is for the agent that asked."""
        if event.type == "model.completed" and event.calls:
            yield from self.last()
            for call in called(event):
                yield styled(f"[{subagent(event)}] {call}", "dim", on=self._colour)

    def last(self) -> Iterator[str]:
        """The line that is being written, as it stands."""
        if self.rest:
            yield printable(self.rest).rstrip()
            self.rest = ""

    def _wrapped(self) -> Iterator[str]:
        """The beginning of a line that is longer than the terminal is wide: it cannot change any more."""
        columns = max(shutil.get_terminal_size((100, 24)).columns - 1, 20)
        while len(self.rest) > columns:
            at = self.rest.rfind(" ", 1, columns)
            at = columns if at < 0 else at
            yield printable(self.rest[:at])
            self.rest = self.rest[at:].removeprefix(" ")
