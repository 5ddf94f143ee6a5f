"""The port of toolsets: tools that are listed when a run starts and not when its agent is defined."""

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
    """A tool of a toolset: its spec for the model, and how its calls run."""

    idempotent: bool = False
    """Running a call twice does no harm."""
    inline: bool = False
    """Its calls are quick and may run inside the model's activity."""
    timeout: float | None = None
    """Seconds that one attempt may take; None is the toolset's."""
    provisional: bool = False
    """It stands in for tools that cannot be listed yet: a run takes the toolset's list again at each model call."""
    summary: str | None = None
    """One line that names a call to those who decide on it: ``"Pay {invoice_id}: {amount}"``."""


class Toolset:
    """A source of tools: ``Agent(toolsets=[…])``. A subclass lists the tools and runs their calls.

        class Crm(Toolset):
            name = "crm"

            async def list(self, ctx):
                return [ListedTool("find", "Find a customer.", {"type": "object", …}, idempotent=True)]

            async def call(self, name, arguments, ctx):
                return await ctx.resources.crm.post(name, arguments)

    The list is read once for a run, before its first model call, and recorded: the model gets the same tools at every
    call. A call of a tool whose definition has changed by then is refused with an error for the model. The methods run
    on the author's event loop, as tools do.
    """

    name: str = ""
    """Name that is unique among the toolsets of an agent."""
    prefix: str = ""
    """Prefix of the names of its tools (``"github_"``), for toolsets with tools of the same name."""
    on_change: OnChange = "refuse"
    """``"refresh"``: a run takes the new list at its next model call. ``"refuse"``: it keeps its first list."""
    timeout: float = 600.0
    """Seconds that one attempt of a call may take, if the tool has no timeout."""
    recheck: float = 30.0
    """Seconds for which a worker considers a list current."""
    changes: int = 0
    """Number of calls of :meth:`changed`."""

    async def list(self, ctx: Any) -> Sequence[ToolSpec | Any]:
        """Return the current tools, each a ``ToolSpec``, a :class:`ListedTool` or a ``Tool``. ``ctx`` is a
        ``RunContext``.

        Any exception counts as "cannot be reached": a model call is retried for a minute.
        """
        raise NotImplementedError

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Any) -> Any:
        """Run the tool ``name`` (as listed, without prefix) and return any value that a tool may return. ``ctx`` is a
        ``ToolContext``. Exceptions are reported to the model. Not called for tools listed as ``Tool``."""
        raise ToolError(f"toolset {self.name!r} lists {name!r} and has no method `call` to run it")

    def provisional_tools(self) -> Sequence[ListedTool]:
        """Return the tools that :meth:`list` returns while the real ones cannot be listed: their calls run also when
        these can be."""
        return ()

    def audience(self, ctx: Any) -> Any:
        """Return the audience of the list, if it differs between runs: hashable, equal values share one list. May be
        async."""
        return None

    def changed(self) -> None:
        """Mark the list as changed: workers read it again before the next call."""
        self.changes += 1

    async def close(self) -> None:
        """Release resources when the worker stops. The toolset may be used again afterwards."""
