"""Tools of toolsets: made from a list, not from a function."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import DefinitionError
from perdure.hooks import HookSet
from perdure.ports import ListedTool, Toolset, ToolSpec
from perdure.tools.context import RunContext
from perdure.tools.tool import DEFAULT_TIMEOUT, Tool
from perdure.types.messages import clean
from perdure.types.toolset import PinnedTool

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
NAME_CHARS = 64


class ToolOfSet(Tool):
    """A tool as a run has pinned it. Its arguments are the toolset's to check; a call goes to ``call``."""

    read_elsewhere = True

    def __init__(self, pinned: PinnedTool, call: Callable[..., Any] | None = None) -> None:
        """``call`` is ``Toolset.call``; without it the tool is only shown."""
        self.pinned = pinned
        self.name = pinned.name
        self.where = f"toolset {pinned.toolset!r}"
        self.timeout = pinned.timeout
        self.idempotent, self.inline = pinned.idempotent, pinned.inline
        self.toolset = pinned.toolset
        self.retries, self.task_queue = pinned.retries, pinned.task_queue
        self.hooks = HookSet()
        self.is_async, self.context_parameter = True, "ctx"
        self.description, self.parameters = pinned.description, pinned.parameters
        self.validates_by_code = False
        self.spec = ToolSpec(pinned.name, pinned.description, pinned.parameters)
        self.definition = pinned.definition
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by its toolset")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are."""
        return dict(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """The call of the toolset."""
        assert self._call is not None, "only a present tool is run"
        return functools.partial(self._call, self.pinned.tool, dict(arguments), context)


def pinned(toolset: Toolset, listed: Any) -> PinnedTool:
    """``listed`` as a run pins it. Raises ``DefinitionError`` for what a toolset may not list."""
    if isinstance(listed, Tool):
        if listed.hooks:
            raise DefinitionError(
                f"toolset {toolset.name!r} lists {listed!r}, which has hooks",
                hint="Give them to the agent or to the worker; they are told the tool's name.",
            )
        own: dict[str, Any] = {"idempotent": listed.idempotent, "inline": listed.inline}
        own |= {"retries": listed.retries, "task_queue": listed.task_queue}
        spec, timeout = listed.spec, listed.timeout if listed.timeout != DEFAULT_TIMEOUT else None
    elif isinstance(listed, ToolSpec):
        own, spec, timeout = {}, listed, None
        if isinstance(listed, ListedTool):
            own, timeout = {"idempotent": listed.idempotent, "inline": listed.inline}, listed.timeout
    else:
        raise DefinitionError(
            f"toolset {toolset.name!r} lists {listed!r:.100}",
            hint='A toolset lists tools, or ListedTool("name", "description", {"type": "object", …}).',
        )
    if not isinstance(spec.name, str) or not spec.name:
        raise DefinitionError(f"toolset {toolset.name!r} lists a tool without a name: {listed!r:.100}")
    try:
        return PinnedTool(
            toolset=toolset.name,
            tool=spec.name,
            name=shown_name(toolset.prefix + spec.name),
            description=clean(spec.description),
            parameters={"type": "object", "properties": {}, **spec.parameters},
            timeout=timeout or toolset.timeout,
            **own,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise DefinitionError(
            f"toolset {toolset.name!r} lists {spec.name!r:.100}, which is no tool: {error}",
            hint="A tool has a name, a text that describes it, and a JSON Schema of its arguments.",
        ) from None


def shown_name(name: str) -> str:
    """``name`` as models may call it: all of them take letters, digits, ``_`` and ``-``."""
    return _UNFIT.sub("_", name)[:NAME_CHARS]
