"""Arguments of a tool call, and with them structured output, as far as they have streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jiter import from_json

from ..types.events import Event, ModelCompleted, ModelDelta, ModelRetracted, ModelStarted

Earlier = Callable[[ModelDelta], Awaitable[list[ModelDelta]]]
"""Reads the deltas that may stand before one."""


class Partials:
    """Gives every delta of a tool call what can be read of its arguments so far.

    Whoever begins to follow in the middle of a call has not seen its beginning: ``earlier`` reads it.
    """

    def __init__(self, earlier: Earlier) -> None:
        self._earlier = earlier
        self._arguments: dict[int, str] = {}

    async def read(self, event: Event) -> Event:
        """``event``, of a tool call's delta with ``partial``."""
        if isinstance(event, ModelStarted | ModelCompleted | ModelRetracted):
            self._arguments.clear()
        if not isinstance(event, ModelDelta) or event.kind != "tool_call":
            return event
        known: str | None = self._arguments.get(event.index, "")
        if len(known or "") != event.offset:
            known = joined(await self._earlier(event), event)
        if known is None:  # its beginning is gone: the reply is complete by now, and says it all
            return event
        self._arguments[event.index] = text = known + event.text
        found = partial(text)
        if event.inside is not None:
            found = found.get(event.inside) if isinstance(found, dict) else None
        return event.model_copy(update={"partial": found})


def joined(before: list[ModelDelta], event: ModelDelta) -> str | None:
    """The text before ``event``, from deltas of the same call; None where some of it is missing."""
    text = ""
    for delta in before:
        if (delta.kind, delta.index, delta.attempt) != (event.kind, event.index, event.attempt):
            continue
        if delta.offset == 0:
            text = ""
        if delta.offset == len(text):
            text += delta.text
    return text if len(text) == event.offset else None


def partial(text: str) -> Any:
    """The JSON of ``text`` as far as it goes, a text in it cut where it ends; None where nothing can be read yet."""
    try:
        return from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return None
