"""Where two conversations part: what both have, and what each has alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .types.messages import Message


@dataclass(frozen=True)
class Difference:
    """Two conversations side by side."""

    shared: tuple[Message, ...]
    """What both begin with."""
    left: tuple[Message, ...]
    """What the first has behind it."""
    right: tuple[Message, ...]
    """What the second has behind it."""

    @property
    def same(self) -> bool:
        """They do not part."""
        return not self.left and not self.right

    @property
    def iteration(self) -> int:
        """The last iteration that both have, as ``perdure show`` numbers them; 0 before the first."""
        return sum(message.role == "assistant" for message in self.shared)


def difference(left: Iterable[Message], right: Iterable[Message]) -> Difference:
    """Compares who says what; ids, senders, tokens and prices do not count."""
    one, other = tuple(left), tuple(right)
    shared = 0
    while shared < min(len(one), len(other)) and _same(one[shared], other[shared]):
        shared += 1
    return Difference(one[:shared], one[shared:], other[shared:])


def _same(one: Message, other: Message) -> bool:
    return (one.role, one.parts) == (other.role, other.parts)
