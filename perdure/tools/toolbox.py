"""The tools of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perdure.errors import DefinitionError
from perdure.ports import ToolSpec
from perdure.tools.tool import Tool, as_tool


class Toolbox:
    """Tools by name, in the order in which they were given: the model sees the same list each time."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        """Raises ``DefinitionError`` for two tools of one name, naming both, and for what is no tool."""
        self._tools: dict[str, Tool] = {}
        for one in map(as_tool, tools):
            other = self._tools.get(one.name)
            if other is not None:
                raise DefinitionError(
                    f"two tools are called {one.name!r}: {other.where} and {one.where}",
                    hint='Give one of them another name: @tool(name="…").',
                )
            self._tools[one.name] = one
        self.specs: tuple[ToolSpec, ...] = tuple(one.spec for one in self)
        """The tools as the model sees them."""

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools
