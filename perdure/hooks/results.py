"""``Results``: what the tool calls of the last reply came to, as a step policy sees and changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from typing import Any, cast, overload

from ..errors import DefinitionError
from ..types.messages import Message, ToolResultPart


class Results(MutableSequence[ToolResultPart]):
    """The results of the last reply's calls, where they stand in the conversation. Their number is fixed."""

    def __init__(self, messages: list[Message], result: Callable[[ToolResultPart, Any], ToolResultPart]) -> None:
        self._messages = messages
        self._result = result

    def _places(self) -> list[tuple[int, int]]:
        last = max((n for n, one in enumerate(self._messages) if one.role == "assistant"), default=-1)
        return [
            (at, place)
            for at in range(last + 1, len(self._messages))
            for place, part in enumerate(self._messages[at].parts)
            if isinstance(part, ToolResultPart)
        ]

    def _parts(self) -> list[ToolResultPart]:
        return [cast(ToolResultPart, self._messages[at].parts[place]) for at, place in self._places()]

    def __len__(self) -> int:
        return len(self._places())

    def __iter__(self) -> Iterator[ToolResultPart]:
        return iter(self._parts())

    @overload
    def __getitem__(self, index: int) -> ToolResultPart: ...
    @overload
    def __getitem__(self, index: slice) -> list[ToolResultPart]: ...
    def __getitem__(self, index: int | slice) -> ToolResultPart | list[ToolResultPart]:
        return self._parts()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """``value``: a part of the same call, or anything that a tool may return."""
        if isinstance(index, slice):
            raise self._fixed()
        at, place = self._places()[index]
        message = self._messages[at]
        parts = list(message.parts)
        parts[place] = self._result(cast(ToolResultPart, parts[place]), value)
        self._messages[at] = message.model_copy(update={"parts": tuple(parts)})

    def __delitem__(self, index: Any) -> None:
        raise self._fixed()

    def insert(self, index: int, value: Any) -> None:
        """Refused: every call has one result."""
        raise self._fixed()

    def __repr__(self) -> str:
        return repr(self._parts())

    def _fixed(self) -> DefinitionError:
        return DefinitionError(
            "every call has one result: step.results can be changed one by one, not made longer or shorter",
            hint='For instance step.results[0] = "(left out)".',
        )
