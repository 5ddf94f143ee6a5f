"""A transcript in memory: its messages, and what was computed of its older segments.

Each call of a model works on the whole transcript, which only grows. What is computed of its messages (their wire
encoding, the ids of their calls, their files) is kept for a segment of it: a call then costs what is new since the
last one, and not what the conversation has by now. Messages that are edited, or given in another order, are a plain
sequence, of which everything is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, SupportsIndex, TypeVar, overload

from .messages import Message

T = TypeVar("T")


class Segment:
    """Messages that follow each other, and what was computed of them.

    It begins and ends with a message of a user or a model. So its neighbours change nothing of its encoding: results
    of tools depend on the calls before them.
    """

    __slots__ = ("messages", "pieces", "values")

    def __init__(self, pieces: Sequence[Segment | Sequence[Message]]) -> None:
        self.pieces = pieces
        """The shorter segments that it takes the place of, and the messages between them."""
        self.messages = tuple(_iter_messages(pieces))
        self.values: dict[str, Any] = {}
        """What was computed of the messages, by a key."""

    def forget_pieces(self) -> None:
        """Drop the encodings of pieces and messages, once the segment has its own."""
        for piece in self.pieces:
            if not isinstance(piece, Segment):  # a segment's own messages have none
                for message in piece:
                    message.forget_wire()
        self.pieces = (self.messages,)

    def compute(self, key: str, function: Callable[[Sequence[Message]], T]) -> T:
        """Apply ``function`` to the messages, and keep its result under ``key``."""
        if key not in self.values:
            self.values[key] = function(self.messages)
        value: T = self.values[key]
        return value


Piece = Segment | Sequence[Message]
"""A segment, or messages between two of them."""


class Transcript(Sequence[Message]):
    """Messages, some of them in segments. To join its pieces takes no look at the messages, of which there may be
    thousands: each call of a model does so several times."""

    __slots__ = ("_length", "_messages", "pieces")

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self.pieces: list[Piece] = []
        """Its segments, and the messages between two of them; none is empty."""
        loose: list[Message] = []
        length = 0
        for piece in pieces:
            if isinstance(piece, Segment):
                if loose:
                    self.pieces.append(loose)
                    length += len(loose)
                    loose = []
                self.pieces.append(piece)
                length += len(piece.messages)
            else:
                loose += piece
        if loose:
            self.pieces.append(loose)
        self._length = length + len(loose)
        self._messages: tuple[Message, ...] | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Message]:
        return _iter_messages(self.pieces)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Message | tuple[Message, ...]:
        if place == -1 and self.pieces:
            return _get_messages(self.pieces[-1])[-1]
        if self._messages is None:
            self._messages = tuple(self)
        return self._messages[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as a list: it is compared by its messages

    def __repr__(self) -> str:
        return f"Transcript({list(self)!r})"


def _get_messages(piece: Piece) -> Sequence[Message]:
    return piece.messages if isinstance(piece, Segment) else piece


def _iter_messages(pieces: Iterable[Piece]) -> Iterator[Message]:
    return chain.from_iterable(map(_get_messages, pieces))


def iter_pieces(*parts: Sequence[Message]) -> Iterator[Piece]:
    """Iterate over the segments of ``parts``, one after the other, and over the messages between them."""
    for messages in parts:
        if isinstance(messages, Transcript):
            yield from messages.pieces
        elif messages:
            yield messages


def map_pieces(messages: Sequence[Message], key: str, compute: Callable[[Sequence[Message]], T]) -> Iterator[T]:
    """Apply ``compute`` to the pieces of ``messages`` in order, once in the life of a segment: its result is kept under
    ``key``."""
    for piece in iter_pieces(messages):
        yield piece.compute(key, compute) if isinstance(piece, Segment) else compute(piece)


def merge_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Make ``pieces``, which will always follow each other, few segments. Between these are system prompts, which
    requests do not have among their messages, and results of tools."""
    merged: list[Piece] = []
    for is_system, group in groupby(_iter_unmixed(pieces), _is_system_prompt):
        run = list(group)
        inner = [] if is_system else [place for place, piece in enumerate(run) if not _is_tool_result(piece)]
        if not inner:
            merged += run
            continue
        start, end = inner[0], inner[-1] + 1
        merged += [*run[:start], Segment(run[start:end]), *run[end:]]
    return merged


def _iter_unmixed(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Iterate over the segments of ``pieces``, and over each message between them."""
    for piece in pieces:
        if isinstance(piece, Segment):
            yield piece
        else:
            for message in piece:
                yield (message,)


def _is_system_prompt(piece: Piece) -> bool:
    return not isinstance(piece, Segment) and piece[0].role == "system"


def _is_tool_result(piece: Piece) -> bool:
    return not isinstance(piece, Segment) and piece[0].role == "tool"


def drop_system_messages(*parts: Sequence[Message]) -> Transcript:
    """Join ``parts`` without their system prompts, which a request has separately."""
    return Transcript(
        piece if isinstance(piece, Segment) else [message for message in piece if message.role != "system"]
        for piece in iter_pieces(*parts)
    )


def find_last_system_message(messages: Sequence[Message]) -> Message | None:
    """Find the last system prompt in ``messages``."""
    loose = [message for piece in iter_pieces(messages) if not isinstance(piece, Segment) for message in piece]
    return next((message for message in reversed(loose) if message.role == "system"), None)
