"""``@tool``: a function that a model may call."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, overload

from typing_extensions import ParamSpec, TypeVar

from ..errors import DefinitionError
from ..hooks import Hook, HookSet, validate_hooks
from ..hooks.hook import TOOL_HOOK_EVENTS
from ..ports import ListedTool, Toolset, ToolSpec
from ..ports.model import NAME_PATTERN
from ..types.interface import FINISH_TOOL
from ..types.messages import clean_text
from ..types.tool_calls import PinnedTool
from .approvals import Approval, takes_call_and_context
from .context import RunContext
from .signature import Arguments, FunctionSignature, parse_docstring, read_signature

# With defaults, a bare `Tool` is complete under mypy --strict.
P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)

NeedsApproval = bool | Approval | Callable[..., Any]
"""Of a function: ``(call, ctx)``, sync or async, gives one of the others, or None for no."""
DEFAULT_TIMEOUT = 600.0
"""Seconds that one attempt of a tool may take unless it says otherwise."""


class Tool(Generic[P, R]):
    """A function and what model and engine must know of it. Made by :func:`tool`; called, it calls ``fn``."""

    toolset: str | None = None
    """Name of the toolset that it is of; None for the tools of agents."""
    read_elsewhere = False
    """The arguments go on as the model said them, and become values where the call is run."""
    needs_approval: NeedsApproval = False
    """Whether a call waits until a person approves it, and on what terms."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        idempotent: bool = False,
        inline: bool = False,
        retries: int | None = None,
        task_queue: str | None = None,
        hooks: Sequence[Hook | HookSet] = (),
        needs_approval: NeedsApproval = False,
    ) -> None:
        """Arguments as of :func:`tool`. Raises ``DefinitionError``."""
        function = read_signature(fn)
        self.fn = fn
        self.name = function.name if name is None else name
        self.where = function.where
        """``file:line`` of the function."""
        self.timeout = timeout
        """Seconds that one attempt may take."""
        self.idempotent = idempotent
        self.inline = inline
        self.retries = retries
        self.task_queue = task_queue
        self.hooks = HookSet(validate_hooks(f"tool {self.name!r} ({self.where})", hooks, TOOL_HOOK_EVENTS))
        """What runs around each call of it, innermost."""
        self.needs_approval = needs_approval
        self.is_async = function.is_async
        """Whether ``fn`` is a coroutine function. If not, it may still return an awaitable (:meth:`bind`)."""
        self.context_parameter = function.context
        """Name of the parameter that takes the context, if there is one."""
        _check_tool_name(self.name, function)
        _check_tool_options(self, function)
        text, parameters = _merge_docstrings(function)
        self.description = text if description is None else clean_text(description)
        self._arguments = Arguments(function, self.name, parameters)
        self.parameters = self._arguments.schema
        """JSON Schema of the arguments: always an object."""
        self.validates_by_code = self._arguments.runs_code
        """Whether validating runs validators of the author's."""
        self.spec = ToolSpec(self.name, self.description, self.parameters)
        self.definition = _hash_definition(self)
        """Hash (hexadecimal) of what the model sees and of how the call acts."""
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name} at {self.where}>"

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The model's arguments as keyword arguments of ``fn``. Raises ``ArgumentsError``."""
        return self._arguments.validate(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], R]:
        """``fn`` with validated arguments and the context, ready to be called. Raises ``ArgumentsError``.

        Nothing of the author's function has run when it returns. An awaitable result must be awaited, also
        where ``is_async`` is False: a decorator without ``async`` may stand around a coroutine function.
        """
        kwargs = self.validate(arguments)
        if self.context_parameter is not None:
            kwargs[self.context_parameter] = context
        return functools.partial(self.fn, **kwargs)


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    idempotent: bool = False,
    inline: bool = False,
    retries: int | None = None,
    task_queue: str | None = None,
    hooks: Sequence[Hook | HookSet] = (),
    needs_approval: NeedsApproval = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
@overload
def tool(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    idempotent: bool = False,
    inline: bool = False,
    retries: int | None = None,
    task_queue: str | None = None,
    hooks: Sequence[Hook | HookSet] = (),
    needs_approval: NeedsApproval = False,
) -> Tool[P, R]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool: ``@tool``, ``@tool(timeout=60)``, ``tool(instance.method, name="search")``.

    ``name`` and ``description`` default to the function's own. ``timeout`` is in seconds, for one attempt.
    ``idempotent`` says that running the call twice does no harm, so a lost worker's call is run again; then
    ``retries`` bounds how often. ``inline`` runs a quick tool inside the model's activity, without one of its
    own. ``task_queue`` sends the call to other workers. ``hooks`` run around each call of it, inside those of the
    agent and of the worker: ``before_tool_call``, ``after_tool_call`` and ``on_error``. ``needs_approval`` has a call
    wait until a person approves it: True, an ``Approval`` with its terms, or a function of the call (``id``, ``name``,
    ``arguments``) and a ``RunContext`` that gives one of these.

    Raises ``DefinitionError`` for a function that a model could not call.
    """
    if fn is None:
        return functools.partial(tool, **options)
    if isinstance(fn, Tool):
        raise DefinitionError(f"{fn!r} is a tool already", hint="For another name or other options: tool(that.fn, …).")
    return Tool(fn, **options)


def as_tool(fn: Tool | Callable[..., Any]) -> Tool:
    """``fn`` if it is a tool, else a tool with default options. Raises ``DefinitionError``."""
    return fn if isinstance(fn, Tool) else Tool(fn)


def _check_tool_name(name: str, function: FunctionSignature) -> None:
    if name == "<lambda>":
        raise function.build_error("a lambda has no name", 'Name it: tool(lambda: …, name="…").')
    if name == FINISH_TOOL:
        raise function.build_error(f"{name} is the engine's own tool", 'Give it another name: @tool(name="…").')
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise function.build_error(
            f"the name {name!r} does not match {NAME_PATTERN.pattern}", 'Give it another one: @tool(name="…").'
        )


def _check_tool_options(one: Tool[..., Any], function: FunctionSignature) -> None:
    timeout, retries = one.timeout, one.retries
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise function.build_error(
            f"timeout={timeout!r} is not a positive number of seconds", "Write for instance timeout=60."
        )
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        raise function.build_error(f"retries={retries!r} is not a number of retries", "Write for instance retries=3.")
    if retries is not None and not one.idempotent:
        raise function.build_error(
            "retries needs idempotent=True",
            "Say idempotent=True if running the call twice does no harm; else leave retries out.",
        )
    if one.inline and one.task_queue is not None:
        raise function.build_error(
            "an inline tool runs inside the model's activity, so it has no task_queue",
            "Leave one of the two out.",
        )
    if not isinstance(one.needs_approval, bool | Approval) and not callable(one.needs_approval):
        raise function.build_error(
            f"needs_approval={one.needs_approval!r:.100} is neither True nor an Approval nor a function",
            'Write for instance needs_approval=Approval(expires="7d").',
        )
    if callable(one.needs_approval) and not takes_call_and_context(one.needs_approval):
        raise function.build_error(
            f"needs_approval={one.needs_approval!r:.100} cannot be called with a call and a context",
            "Write for instance lambda call, ctx: call.arguments['amount'] > 100.",
        )
    if one.inline and one.needs_approval is not False:
        raise function.build_error(
            "an inline tool runs inside the model's activity, so it cannot wait for an approval",
            "Leave one of the two out.",
        )
    if one.task_queue == "":
        raise function.build_error("task_queue is empty", "Name a task queue or leave it out.")


def _merge_docstrings(function: FunctionSignature) -> tuple[str, dict[str, str]]:
    names = [parameter.name for parameter in function.parameters]
    text, parameters = "", dict[str, str]()
    for doc in function.docs:
        described = parse_docstring(doc, names)
        text = text or described.text
        parameters = described.parameters | parameters
    return text, parameters


def _hash_definition(one: Tool[..., Any]) -> str:
    seen = [one.name, one.description, one.parameters, one.idempotent, one.inline]
    canonical = json.dumps(seen, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


# ---
# Tools of toolsets: made from a list, not from a function.


_INVALID_TOOL_NAME_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME_CHARS = 64


class ToolsetTool(Tool):
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


def pin_tool(toolset: Toolset, listed: Any) -> PinnedTool:
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
            name=sanitise_tool_name(toolset.prefix + spec.name),
            description=clean_text(spec.description),
            parameters={"type": "object", "properties": {}, **spec.parameters},
            timeout=timeout or toolset.timeout,
            **own,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise DefinitionError(
            f"toolset {toolset.name!r} lists {spec.name!r:.100}, which is no tool: {error}",
            hint="A tool has a name, a text that describes it, and a JSON Schema of its arguments.",
        ) from None


def sanitise_tool_name(name: str) -> str:
    """``name`` as models may call it: all of them take letters, digits, ``_`` and ``-``."""
    return _INVALID_TOOL_NAME_CHARACTER.sub("_", name)[:MAX_TOOL_NAME_CHARS]


# ---
# The tools of an agent.


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
