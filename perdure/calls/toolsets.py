"""Tools that an agent's code does not have: those of its toolsets, and those that the client of a turn declares.

The pinned list of a run's toolset tools, and a turn's client tools, are blobs in the store; the run carries the
references. Each worker lists the present tools of a
toolset at most every ``Toolset.recheck`` seconds, or when the toolset reports a change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from ..agent.spec import AgentSpec
from ..errors import DefinitionError, PerdureError, ToolError, ToolsetError
from ..ports.grants import GrantAccess
from ..ports.store import Blob, Cache
from ..ports.toolset import Toolset
from ..tools import DeclaredTool, RunContext, Tool, Toolbox, format_error
from ..tools.tool import ToolsetTool, is_renamed, pin_tools, suffix_tool_name
from ..types.client_tools import ClientTool, build_client_tools_error, decode_client_tools, encode_client_tools
from ..types.interface import FINISH_TOOL
from ..types.messages import BlobRef
from ..types.tool_calls import PinnedTool, decode_pinned_tools, encode_pinned_tools
from .author_loop import AuthorLoop, OverdueError
from .call import ConversationCall, ToolCall

logger = logging.getLogger("perdure.worker")

TOOLSET_TIMEOUT = 60.0
"""Seconds that a toolset may take to list its tools, and to close."""
MAX_LISTS = 256
"""Maximum of present lists that a worker keeps, one for each toolset and audience."""
_PARSED_FACTOR = 8
"""Estimated memory of a parsed list, as a multiple of its JSON."""

MakeContext = Callable[[], Awaitable[RunContext[Any]]]
"""Returns the context of a tool call, with ``context`` as the agent's type."""


@dataclass(slots=True)
class _ToolList:
    """What a toolset lists for one audience."""

    toolset: Toolset
    until: float = 0.0
    changes: int = -1
    tools: dict[str, ToolsetTool | Tool] = field(default_factory=dict)
    """By the names that models call."""
    rows: tuple[PinnedTool, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    """Names of listed tools that no run gets, and the reasons."""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: int = 0
    """Number of times that the toolset was listed."""
    failed: ToolsetError | None = None
    """The error of the last listing, if it failed."""


class Toolsets:
    """The toolsets of the agents that a worker serves. Used from the worker's loop."""

    def __init__(
        self,
        author: AuthorLoop,
        load: Callable[[BlobRef], Awaitable[str]],
        taken: Cache[Any],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``load`` reads a list from the store, ``taken`` caches its tools."""
        self._author = author
        self._load = load
        self._clock = clock
        self.grants: GrantAccess | None = None
        """The grants of MCP servers, for the contexts of calls."""
        self._lists: dict[tuple[int, Hashable], _ToolList] = {}
        self._list_cache = taken

    async def add_offered_tools(
        self, agent: AgentSpec, call: ConversationCall[Any], ctx: RunContext[Any]
    ) -> tuple[AgentSpec, BlobRef | None]:
        """Return ``agent`` with the tools of its toolsets, and the list that the run pins with this call, if any; its
        blob is put into the call.

        Raises ``ToolsetError`` for a toolset that cannot be listed, ``DefinitionError`` for names that clash.
        """
        if not agent.toolsets:
            return agent, None
        recorded, pinned = call.input.pinned, None
        rows = await self._load_list(recorded) if recorded is not None else None
        if rows is None or any(_is_renewed(toolset, rows) for toolset in agent.toolsets):
            rows = await self._choose_lists(agent, rows, ctx, call.recording.left_out)
            blob = Blob.from_content(encode_pinned_tools(rows))
            if recorded is None or blob.hash != recorded.hash:
                call.recording.blobs.append(blob)
                pinned = blob.ref
                self._cache_list(blob.ref, rows)
        ref = pinned or recorded
        assert ref is not None, "a list is taken or was"
        return agent.with_tools(ref.hash, lambda: map(ToolsetTool, rows)), pinned

    async def _choose_lists(
        self, agent: AgentSpec, recorded: tuple[PinnedTool, ...] | None, ctx: RunContext[Any], left_out: list[str]
    ) -> tuple[PinnedTool, ...]:
        """Return all lists together, and add the names of tools that are not in them to ``left_out``. A run with pinned
        lists renews only those of toolsets with ``on_change="refresh"``, and provisional ones, and keeps its own if
        these cannot be listed or clash."""
        rows: list[PinnedTool] = []
        for toolset in agent.toolsets:
            recorded_rows = [row for row in recorded or () if row.toolset == toolset.name]
            if recorded is not None and not _is_renewed(toolset, recorded):
                rows += recorded_rows
                continue
            try:
                present = await self._fetch_current(toolset, ctx)
                rows += present.rows
                left_out += [name for name in present.left_out if name not in left_out]
            except (ToolsetError, DefinitionError) as error:  # the run may have a list: it need not wait for another
                if recorded is None:
                    raise
                logger.warning("a run of agent %s keeps its list of tools: %s", agent.name, error)
                rows += recorded_rows
        try:
            return settle_tool_names(agent, rows)
        except DefinitionError as error:
            if recorded is None:
                raise
            logger.warning("a run of agent %s keeps its lists of tools: %s", agent.name, error)
            return recorded

    async def find_tool(self, agent: AgentSpec, call: ToolCall, context: MakeContext) -> Tool | None:
        """Return the tool of ``call``, if it is of a toolset; else None.

        Raises ``ToolError``, for the model, if the tool is no longer there, has changed, or cannot be listed.
        """
        name, wanted = call.input.name, call.input.toolset
        if wanted is None:
            return None
        toolset = next((toolset_ for toolset_ in agent.toolsets if toolset_.name == wanted), None)
        if toolset is None:
            raise ToolError(f"{name} was not called: agent {agent.name!r} no longer has toolset {wanted!r}")
        if (tool := _find_provisional_tool(toolset, call)) is not None:
            return tool
        try:
            present = await self._fetch_current(toolset, await context())
        except PerdureError as error:
            raise ToolError(f"{name} was not called: {error.message}") from error
        if (stands_in := next((row for row in present.rows if row.provisional), None)) is not None:
            # The tool cannot be listed just now: the call waits for what the provisional one waits for, and runs again.
            return ToolsetTool(stands_in, partial(_wait_for_list, name, toolset))
        row = next((row for row in present.rows if row.name == name), None)
        if row is None:
            row = next((row for row in present.rows if _add_suffix(row).name == name), None)
        if row is None:
            raise ToolError(f"{name} was not called: toolset {wanted!r} no longer has it")
        if row.model_copy(update={"name": name}).definition != call.input.definition:
            raise ToolError(
                f"{name} was not called: its definition in toolset {wanted!r} has changed since you were shown it"
            )
        return present.tools[row.name]

    async def close(self, agents: Iterable[AgentSpec]) -> None:
        """Close the toolsets of ``agents``, and drop all lists."""
        self._lists.clear()
        for toolset in {id(one): one for agent in agents for one in agent.toolsets}.values():
            try:
                await self._author.run(f"close of toolset {toolset.name}", toolset.close, timeout=TOOLSET_TIMEOUT)
            except Exception as error:  # the worker stops all the same
                logger.warning("toolset %s could not be closed: %s", toolset.name, format_error(error))

    # --- client tools

    async def add_client_tools(self, agent: AgentSpec, call: ConversationCall[Any], reserved: Toolbox) -> AgentSpec:
        """Return ``agent`` with the tools that the turn's client has declared. Those that have the name of a tool of
        the agent, or of a ``reserved`` one, are left out, and reported (``call.recording.left_out``).

        Raises ``InvalidInputError`` for an agent that takes none, and for a stored list that is not valid.
        """
        declared = call.input.client_tools
        if not declared:
            return agent
        if not agent.client_tools:
            raise build_client_tools_error(agent.name)
        if isinstance(declared, BlobRef):
            key, tools = declared.hash, await self._load_client_tools(declared)
        else:
            key, tools = Blob.from_content(encode_client_tools(declared)).hash, declared
        own = [tool.name for tool in tools if tool.name in agent.toolbox or tool.name in reserved]
        call.recording.left_out += [name for name in own if name not in call.recording.left_out]
        offered = [tool for tool in tools if tool.name not in own]
        return agent.with_tools(f"client/{key}", lambda: map(DeclaredTool, offered)) if offered else agent

    async def _load_client_tools(self, ref: BlobRef) -> tuple[ClientTool, ...]:
        key = f"client/{ref.hash}"  # not the hash alone: it may be that of a toolset's list
        tools: tuple[ClientTool, ...] | None = self._list_cache.get(key)
        if tools is None:
            tools = decode_client_tools(await self._load(ref))
            self._list_cache.put(key, tools, _PARSED_FACTOR * ref.size)
        return tools

    # --- present lists

    async def _fetch_current(self, toolset: Toolset, ctx: RunContext[Any]) -> _ToolList:
        key = (id(toolset), await self._fetch_audience(toolset, ctx))
        present = self._lists.pop(key, None) or _ToolList(toolset)
        self._lists[key] = present
        while len(self._lists) > MAX_LISTS:
            self._lists.pop(next(iter(self._lists)))
        asked = present.asked
        async with present.asking:
            if (
                present.asked != asked and (failed := present.failed) is not None
            ):  # failed while this call waited: a retry by each waiter would delay them all
                raise ToolsetError(failed.message, hint=failed.hint)
            if present.changes != toolset.changes or self._clock() >= present.until:
                await self._list_tools(present, ctx)
        return present

    async def _fetch_audience(self, toolset: Toolset, ctx: RunContext[Any]) -> Hashable:
        if type(toolset).audience is Toolset.audience:
            return None
        try:
            name = f"audience of toolset {toolset.name}"
            audience: Hashable = await self._author.run(name, toolset.audience, ctx, timeout=TOOLSET_TIMEOUT)
            hash(audience)
        except Exception as error:
            raise ToolsetError(
                f"toolset {toolset.name!r} could not determine its audience: {_describe_toolset_error(error)}"
            ) from error
        return audience

    async def _list_tools(self, present: _ToolList, ctx: RunContext[Any]) -> None:
        toolset, changes = present.toolset, present.toolset.changes
        try:
            name = f"list of toolset {toolset.name}"
            listed = list(await self._author.run(name, toolset.list, ctx, timeout=TOOLSET_TIMEOUT))
        except Exception as error:
            present.asked += 1
            present.failed = ToolsetError(
                f"toolset {toolset.name!r} could not list its tools: {_describe_toolset_error(error)}"
            )
            raise present.failed from error
        pinned, left_out = pin_tools(toolset, listed)
        present.asked, present.failed = present.asked + 1, None
        for name, reason in left_out.items() - present.left_out.items():
            logger.warning("toolset %s: tool %.100r is left out: %s", toolset.name, name, reason)
        present.tools = {
            row.name: listed_tool if isinstance(listed_tool, Tool) else ToolsetTool(row, toolset.call)
            for row, listed_tool in pinned
        }
        present.rows, present.left_out = tuple(row for row, _ in pinned), left_out
        is_provisional = any(row.provisional for row in present.rows)  # any worker, and any program, can change that
        present.changes, present.until = changes, 0.0 if is_provisional else self._clock() + toolset.recheck

    # --- pinned lists

    async def _load_list(self, ref: BlobRef) -> tuple[PinnedTool, ...]:
        rows: tuple[PinnedTool, ...] | None = self._list_cache.get(ref.hash)
        if rows is None:
            rows = decode_pinned_tools(await self._load(ref))
            self._cache_list(ref, rows)
        return rows

    def _cache_list(self, ref: BlobRef, rows: tuple[PinnedTool, ...]) -> None:
        self._list_cache.put(ref.hash, rows, _PARSED_FACTOR * ref.size)


def _find_provisional_tool(toolset: Toolset, call: ToolCall) -> Tool | None:
    """Return the tool of a call that the run was shown while the real tools could not be listed."""
    rows = [row for row, _ in pin_tools(toolset, toolset.provisional_tools())[0]]
    for row in (*rows, *map(_add_suffix, rows)):
        if row.name == call.input.name and row.definition == call.input.definition:
            return ToolsetTool(row, toolset.call)
    return None


async def _wait_for_list(name: str, toolset: Toolset, tool: str, _: Any, ctx: Any) -> str:
    """Call the provisional ``tool`` in the place of tool ``name``, which is in no list now."""
    await toolset.call(tool, {}, ctx)
    raise ToolError(f"{name} was not called: its toolset {toolset.name!r} could not be listed. Call it again.")


def _is_renewed(toolset: Toolset, recorded: Sequence[PinnedTool]) -> bool:
    """Whether a run takes the present list of the toolset at each model call."""
    return toolset.on_change == "refresh" or any(row.provisional for row in recorded if row.toolset == toolset.name)


def _describe_toolset_error(error: Exception) -> str:
    return f"it did not return within {TOOLSET_TIMEOUT:g} s" if isinstance(error, OverdueError) else format_error(error)


def settle_tool_names(agent: AgentSpec, rows: Sequence[PinnedTool]) -> tuple[PinnedTool, ...]:
    """Return ``rows`` under names of which no two are equal: a tool whose name had to be changed gives way, with a
    suffix. Raises ``DefinitionError`` for two tools that really have one name."""
    known = {tool.name: tool.where for tool in agent.toolbox} | {FINISH_TOOL: "the engine"}
    toolsets = {toolset.name: toolset for toolset in agent.toolsets}
    settled: dict[int, PinnedTool] = {}
    gives_way = [is_renamed(toolsets[row.toolset], row) for row in rows]
    for index in sorted(range(len(rows)), key=gives_way.__getitem__):
        row = rows[index]
        if row.name in known and (gives_way[index] or row.name == FINISH_TOOL):
            row = _add_suffix(row)
        if row.name in known:
            raise DefinitionError(
                f"agent {agent.name!r}: toolset {row.toolset!r} has a tool {row.name!r}, "
                f"which {known[row.name]} has too",
                hint=f'Give the toolset a prefix: prefix="{row.toolset}_".',
            )
        known[row.name] = f"toolset {row.toolset!r}"
        settled[index] = row
    return tuple(settled[index] for index in range(len(rows)))


def _add_suffix(row: PinnedTool) -> PinnedTool:
    """Return ``row`` under the name that it gets where another source has a tool of its name."""
    return row.model_copy(update={"name": suffix_tool_name(row.name, f"{row.toolset}:{row.tool}")})
