"""Toolsets: tools that are known when a run begins and not when its agent is defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import ToolError
from .model import ToolSpec

OnChange = Literal["refuse", "refresh"]
ON_CHANGE_VALUES: tuple[str, ...] = get_args(OnChange)


@dataclass(frozen=True, slots=True)
class ListedTool(ToolSpec):
    """A tool of a toolset: as a model sees it, and how a call of it acts."""

    idempotent: bool = False
    """Running a call twice does no harm."""
    inline: bool = False
    """It is quick: a call may run inside the model's activity."""
    timeout: float | None = None
    """Seconds that one attempt may take; None is the toolset's."""


class Toolset:
    """Where tools come from: ``Agent(toolsets=[…])``. A subclass says which there are, and runs their calls.

        class Crm(Toolset):
            name = "crm"

            async def list(self, ctx):
                return [ListedTool("find", "Find a customer.", {"type": "object", …}, idempotent=True)]

            async def call(self, name, arguments, ctx):
                return await ctx.resources.crm.post(name, arguments)

    The list is taken once for a run, before its first model call, and recorded: the model is shown the same tools at
    every call. A call of one whose definition is another by then is refused, and the model is told so. What is here
    runs on the author's side, as tools do.
    """

    name: str = ""
    """Tells toolsets of an agent apart."""
    prefix: str = ""
    """Put before the names of its tools (``"github_"``), where two toolsets have tools of one name."""
    on_change: OnChange = "refuse"
    """``"refresh"``: a run takes the new list at its next model call. By default it keeps the one that it took."""
    timeout: float = 600.0
    """Seconds that one attempt of a call may take, where the tool does not say."""
    recheck: float = 30.0
    """Seconds for which a worker takes a list for the present one."""
    changes: int = 0
    """How often :meth:`changed` was called."""

    async def list(self, ctx: Any) -> Sequence[ToolSpec | Any]:
        """Its tools at present, each a ``ToolSpec``, a :class:`ListedTool` or a ``Tool``. ``ctx`` is a ``RunContext``.

        Whatever it raises counts as "cannot be reached": a model call is tried again for a minute.
        """
        raise NotImplementedError

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Any) -> Any:
        """Run the tool ``name`` (as it was listed, without prefix): whatever a tool may return. ``ctx`` is a
        ``ToolContext``. What it raises is told to the model. Calls of a ``Tool`` do not come here."""
        raise ToolError(f"toolset {self.name!r} lists {name!r} and has no method `call` to run it")

    def audience(self, ctx: Any) -> Any:
        """Whom the list is for, where not all runs have the same: hashable, equal values share one. May be async."""
        return None

    def changed(self) -> None:
        """Say that the list is another now: workers look again before the next call."""
        self.changes += 1

    async def close(self) -> None:
        """The worker stops. It may be used again afterwards."""
