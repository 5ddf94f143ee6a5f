"""A conversation with all that was ever said in it: what summaries and edits stand for is still in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..loop.compacting import SUMMARY_ID
from ..ports import Transcripts
from ..types.messages import Message, Replaced, canonical, parse_messages
from .chain import Chain


async def whole(transcripts: Transcripts, head: str | None) -> list[Message]:
    """The conversation up to ``head`` as it was said. A summary stands before the messages that it left alone.

    Raises ``StoreError``, and ``TranscriptCorruptedError`` for what is missing or altered.
    """
    chain = Chain(transcripts)
    forms: list[tuple[list[Message], int]] = []
    """The conversation's forms, the present one first, each with the number of messages in its first node."""
    replaced: Replaced | None = None
    while head is not None:
        messages = await chain.load(head)
        found = [message.replaces for message in messages[:2] if message.replaces is not None]
        replaced = found[0] if found else None
        root = 0
        if replaced is not None and not replaced.kept:
            root = len(parse_messages((await transcripts.nodes(head))[0].body))
        forms.append((messages, root))
        head = replaced.head if replaced is not None else None
    said: list[Message] = []
    for messages, root in reversed(forms):
        said = _added(said, messages, root)
    return said


def _added(said: list[Message], messages: list[Message], root: int) -> list[Message]:
    """``said`` with what is new in the form of it that ``messages`` are."""
    place = next((place for place, message in enumerate(messages[:2]) if message.replaces is not None), None)
    if place is None:
        return [*said, *messages]
    marker = messages[place]
    kept = marker.replaces.kept if marker.replaces is not None else 0
    if kept:
        return [*said[:-kept], marker, *said[-kept:], *messages[place + 1 + kept :]]
    if marker.id != SUMMARY_ID:  # a message like any other, which an edit has marked
        marker = _plain(marker)
    edited = [*messages[:place], marker, *messages[place + 1 : root]]
    return [*said, *_unknown(edited, said), *messages[root:]]


def _unknown(edited: Sequence[Message], said: Sequence[Message]) -> list[Message]:
    """Those of ``edited`` that are not among ``said``; one that was said twice is known twice."""
    known = Counter(canonical([_plain(message)]) for message in said)
    new = []
    for message in edited:
        name = canonical([_plain(message)])
        if known[name]:
            known[name] -= 1
        else:
            new.append(message)
    return new


def _plain(message: Message) -> Message:
    return message.model_copy(update={"replaces": None}) if message.replaces is not None else message
