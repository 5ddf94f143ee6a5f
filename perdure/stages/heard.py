"""What whoever follows is told of users' messages where hooks may change them: what they have become, and not before.

A message that a hook withholds, or fails at, must not be read in the events either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..ports import NewEvent
from ..types.events import MessageInjected
from ..types.messages import FilePart, Message
from ..types.wire import INLINE_BYTES


def taken_out(events: list[NewEvent]) -> list[NewEvent]:
    """Take the events of users' messages out of ``events``."""
    said = [one for one in events if isinstance(one.event, MessageInjected)]
    events[:] = [one for one in events if not isinstance(one.event, MessageInjected)]
    return said


def as_heard(said: Sequence[NewEvent], messages: Sequence[Message]) -> list[NewEvent]:
    """The events of ``messages``, which are those of ``said`` in their order, or some of them."""
    return list(_paired(list(said), messages))


def _paired(said: list[NewEvent], messages: Sequence[Message]) -> Iterator[NewEvent]:
    for message in messages:
        while said and _id(said[0]) != message.id:  # the conversation had heard it before
            said.pop(0)
        if said:
            yield _of(said.pop(0), message)


def _id(new: NewEvent) -> str | None:
    return new.event.id if isinstance(new.event, MessageInjected) else None


def _of(new: NewEvent, message: Message) -> NewEvent:
    """The same event, saying what the message says now; of a text that is large, its beginning."""
    event = new.event
    assert isinstance(event, MessageInjected), "no other was taken out"
    text = message.text
    if event.blob is not None and len(text.encode()) == event.blob.size:
        return new  # as it was sent
    if len(text) * 4 > INLINE_BYTES and len(text.encode()) > INLINE_BYTES:
        text = text.encode()[:INLINE_BYTES].decode(errors="ignore") + "…"
    files = tuple(part for part in message.parts if isinstance(part, FilePart))
    return replace(new, event=event.model_copy(update={"content": text, "blob": None, "files": files}))
