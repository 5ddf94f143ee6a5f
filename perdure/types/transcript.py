"""A transcript in memory: one tuple of messages, and what was computed of its older segments.

Each call of a model works on the whole transcript, which only grows. What is computed of its messages (their wire
encoding, the ids of their calls, their files) is kept for a segment of it: a call then costs what is new since the
last one, and not what the conversation has by now. Messages that are edited, or given in another order, are a plain
sequence, of which everything is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Self, TypeVar

from .messages import Message

T = TypeVar("T")


class Segment:
    """Messages that follow each other, and what was computed of them.

    It begins and ends with a message of a user or a model. So its neighbours change nothing of its encoding: results
    of tools depend on the calls before them.
    """

    __slots__ = ("messages", "values")

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self.messages = messages
        self.values: dict[str, Any] = {}
        """What was computed of the messages, by a key."""

    def compute(self, key: str, function: Callable[[Sequence[Message]], T]) -> T:
        """Apply ``function`` to the messages, and keep its result under ``key``."""
        if key not in self.values:
            self.values[key] = function(self.messages)
        value: T = self.values[key]
        return value


Piece = Segment | Sequence[Message]
"""A segment, or messages between two of them."""


class Transcript(tuple[Message, ...]):
    """Messages, some of them in segments."""

    segments: Sequence[tuple[int, Segment]] = ()
    """The segments in order, each with its place among the messages."""

    @classmethod
    def join(cls, pieces: Iterable[Piece]) -> Self:
        """Join ``pieces``."""
        messages: list[Message] = []
        segments: list[tuple[int, Segment]] = []
        for piece in pieces:
            if isinstance(piece, Segment):
                segments.append((len(messages), piece))
                messages += piece.messages
            else:
                messages += piece
        transcript = cls(messages)
        transcript.segments = segments
        return transcript


def iter_pieces(*parts: Sequence[Message]) -> Iterator[Piece]:
    """Iterate over the segments of ``parts``, one after the other, and over the messages between them."""
    for messages in parts:
        place = 0
        for start, segment in messages.segments if isinstance(messages, Transcript) else ():
            if start > place:
                yield messages[place:start]
            yield segment
            place = start + len(segment.messages)
        if place < len(messages):
            yield messages[place:] if place else messages


def map_pieces(messages: Sequence[Message], key: str, compute: Callable[[Sequence[Message]], T]) -> Iterator[T]:
    """Apply ``compute`` to the pieces of ``messages`` in order, once in the life of a segment: its result is kept under
    ``key``."""
    for piece in iter_pieces(messages):
        yield piece.compute(key, compute) if isinstance(piece, Segment) else compute(piece)


def split_segments(messages: Iterable[Message]) -> list[Piece]:
    """Split ``messages``, which will always follow each other, into segments and the messages between them: system
    prompts, which requests do not have among their messages, and results at the ends of a segment."""
    pieces: list[Piece] = []
    for is_system, group in groupby(messages, lambda message: message.role == "system"):
        run = tuple(group)
        inner = [] if is_system else [place for place, message in enumerate(run) if message.role != "tool"]
        if not inner:
            pieces.append(run)
            continue
        start, end = inner[0], inner[-1] + 1
        pieces += [piece for piece in (run[:start], Segment(run[start:end]), run[end:]) if piece]
    return pieces


def drop_system_messages(*parts: Sequence[Message]) -> Transcript:
    """Join ``parts`` without their system prompts, which a request has separately."""
    return Transcript.join(
        piece if isinstance(piece, Segment) else [message for message in piece if message.role != "system"]
        for piece in iter_pieces(*parts)
    )


def find_last_system_message(messages: Sequence[Message]) -> Message | None:
    """Find the last system prompt in ``messages``."""
    loose = [message for piece in iter_pieces(messages) if not isinstance(piece, Segment) for message in piece]
    return next((message for message in reversed(loose) if message.role == "system"), None)
