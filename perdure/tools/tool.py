"""``@tool``: a function that a model may call; the tools of toolsets; the toolbox of an agent."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

from typing_extensions import TypedDict, Unpack

from ..context.run_context import (
    ContextT,
    ContextT_contra,
    P,
    ReturnT,
    RunContext,
    TakesContextFirst,
    TakesContextFourth,
    TakesContextSecond,
    TakesContextThird,
)
from ..errors import DefinitionError, ToolError
from ..hooks import Hook, HookSet, validate_hooks
from ..hooks.hook import TOOL_HOOK_EVENTS
from ..types.interface import FINISH_TOOL
from ..types.messages import NAME_PATTERN, clean_text
from ..types.plain_json import find_json_flaw
from ..types.summaries import find_template_flaw
from ..types.tool_calls import PinnedTool
from .approvals import Approval, takes_call_and_context
from .signature import Arguments, read_signature

if TYPE_CHECKING:
    from ..ports.model import ToolSpec
    from ..ports.toolset import Toolset

NeedsApproval = bool | Approval | Callable[..., Any]
"""A function ``(call, ctx)``, sync or async, returns a boolean, an ``Approval``, or None for no approval."""
DEFAULT_TIMEOUT = 600.0
"""Seconds that one attempt of a tool may take, unless the tool sets a timeout."""


class Tool(Generic[P, ReturnT, ContextT_contra]):
    """A function, and what the model and the engine must know of it. Made by :func:`tool`; calling it calls ``fn``."""

    if TYPE_CHECKING:
        # Tells a tool from a `Function`: else one with a wrong context would pass as a plain function.
        __sizeof__: None  # type: ignore[assignment]  # no object calls it

        def takes_context(self, context: ContextT_contra) -> None: ...

    toolset: str | None = None
    """Name of its toolset; None for the tools of agents."""
    read_elsewhere = False
    """The arguments are passed on as the model gave them, and are converted where the call runs."""
    needs_approval: NeedsApproval = False
    """Whether a call waits until a person approves it, and on what terms."""
    summary: str | None = None
    """Template of the line that names a call to people; None for one made of the tool's name and arguments."""
    timeout: float = 0.0
    """Seconds that one attempt may take."""
    idempotent: bool = False
    inline: bool = False
    retries: int | None = None
    task_queue: str | None = None
    is_async: bool = True
    """Whether ``fn`` is a coroutine function. If not, it may still return an awaitable (:meth:`bind`)."""
    context_parameter: str | None = None
    """Name of the parameter that takes the context, if there is one."""
    context_hint: Any = None
    """The resolved annotation of that parameter: ``ToolContext[User]``."""
    validates_by_code: bool = False
    """Whether validation runs the author's validators."""

    def __init__(
        self,
        fn: Callable[P, ReturnT],
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
        summary: str | None = None,
    ) -> None:
        """Arguments as of :func:`tool`. Raises ``DefinitionError``."""
        function = read_signature(fn)
        self.fn = fn
        self.name = function.name if name is None else name
        self.where = function.where
        """``file:line`` of the function."""
        self.timeout, self.retries, self.task_queue = timeout, retries, task_queue
        self.idempotent, self.inline = idempotent, inline
        self.hooks = HookSet(validate_hooks(f"tool {self.name!r} ({self.where})", hooks, TOOL_HOOK_EVENTS))
        """Its hooks, which run around each call, inside the agent's and the worker's."""
        self.needs_approval = needs_approval
        self.is_async, self.context_parameter = function.is_async, function.context
        self.context_hint = function.context_hint
        if flaw := find_name_flaw(self.name) or _find_option_flaw(self):
            raise function.build_error(*flaw)
        self.description = function.description if description is None else clean_text(description)
        self._arguments = Arguments(function, self.name)
        self.parameters = self._arguments.schema
        """JSON Schema of the arguments: always an object."""
        self.set_summary(summary, self.where)
        self.validates_by_code = self._arguments.runs_code
        self.definition = hash_definition(self, idempotent, inline, separators=(",", ":"))
        """Hash (hexadecimal) of what the model sees and of how a call runs."""
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name} at {self.where}>"

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        from ..ports.model import ToolSpec

        return ToolSpec(self.name, self.description, self.parameters)

    def set_summary(self, template: str | None, where: str) -> None:
        """Set the template of summaries. Raises ``DefinitionError`` for one that does not fit the tool's arguments."""
        if template is not None and (flaw := find_template_flaw(template, self.parameters)) is not None:
            raise DefinitionError(f"tool {self.name!r} ({where}): {flaw[0]}", hint=flaw[1])
        self.summary = template

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the model's arguments to keyword arguments of ``fn``. Raises ``ArgumentsError``."""
        return self._arguments.validate(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], ReturnT]:
        """Bind ``fn`` to the validated arguments and the context, without calling it. Raises ``ArgumentsError``.

        Nothing of the author's function has run when it returns. An awaitable result must be awaited, also
        where ``is_async`` is False: a decorator without ``async`` may stand around a coroutine function.
        """
        kwargs = self.validate(arguments)
        if self.context_parameter is not None:
            kwargs[self.context_parameter] = context
        return functools.partial(self.fn, **kwargs)


class Function(Protocol):
    """A callable that is not a :class:`Tool`, for type checkers."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __sizeof__(self) -> int: ...


class TakesAnyContext(Protocol):
    """A tool or hook of an unknown context, for type checkers: mypy does not make an agent's context Any for it."""

    def takes_context(self, context: object) -> None: ...


class ToolOptions(TypedDict, total=False):
    """Options of :func:`tool`: arguments by keyword, of which each may be left out."""

    name: str | None
    """By default the function's."""
    description: str | None
    """What the model reads; by default the function's docstring."""
    timeout: float
    """Seconds for one attempt."""
    idempotent: bool
    """Running a call twice does no harm, so the call of a lost worker runs again."""
    inline: bool
    """A quick tool, which runs inside the model's activity."""
    retries: int | None
    """How often at most an idempotent call runs again; None sets no bound."""
    task_queue: str | None
    """The workers that run it; by default those of the agent."""
    hooks: Sequence[Hook[Any] | HookSet]
    """``before_tool_call``, ``after_tool_call`` and ``on_error``, inside those of the agent and of the worker."""
    needs_approval: NeedsApproval
    """A call waits until a person approves it: True, an ``Approval`` with its terms, or a function of the call and a
    ``RunContext`` that returns one of these."""
    summary: str | None
    """One line that names a call to people: text with names of arguments in braces."""


class ToolDecorator(Protocol):
    """What ``tool(timeout=60)`` returns: it makes a function a tool, and keeps the type of its context."""

    @overload
    def __call__(self, fn: TakesContextFirst[P, ReturnT, ContextT], /) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def __call__(self, fn: TakesContextSecond[P, ReturnT, ContextT], /) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def __call__(self, fn: TakesContextThird[P, ReturnT, ContextT], /) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def __call__(self, fn: TakesContextFourth[P, ReturnT, ContextT], /) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def __call__(self, fn: Callable[P, ReturnT], /) -> Tool[P, ReturnT, Any]: ...


@overload
def tool(
    fn: TakesContextFirst[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
) -> Tool[P, ReturnT, ContextT]: ...
@overload
def tool(
    fn: TakesContextSecond[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
) -> Tool[P, ReturnT, ContextT]: ...
@overload
def tool(
    fn: TakesContextThird[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
) -> Tool[P, ReturnT, ContextT]: ...
@overload
def tool(
    fn: TakesContextFourth[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
) -> Tool[P, ReturnT, ContextT]: ...
@overload
def tool(fn: Callable[P, ReturnT], /, **options: Unpack[ToolOptions]) -> Tool[P, ReturnT, Any]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> ToolDecorator: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool: ``@tool``, ``@tool(timeout=60)``, ``tool(instance.method, name="search")``.

    ``name`` and ``description`` default to the function's own. ``timeout`` is in seconds, for one attempt.
    ``idempotent`` says that running the call twice does no harm, so the call of a lost worker runs again, at most
    ``retries`` times. ``inline`` runs a quick tool inside the model's activity, without an activity of its
    own. ``task_queue`` sends the call to other workers. ``hooks`` run around each call, inside the hooks of the
    agent and of the worker: ``before_tool_call``, ``after_tool_call`` and ``on_error``. ``needs_approval`` makes a call
    wait until a person approves it: True, an ``Approval`` with its terms, or a function of the call (``id``, ``name``,
    ``arguments``) and a ``RunContext`` that returns one of these. ``summary`` names a call in one line to the people
    who decide on it: ``summary="Pay {invoice_id}: {amount}"``, with names of arguments, or of fields of an object
    (``{customer.name}``).

    Raises ``DefinitionError`` for a function that a model could not call.
    """
    if fn is None:
        return functools.partial(tool, **options)
    if isinstance(fn, Tool):
        raise DefinitionError(f"{fn!r} is a tool already", hint="For another name or other options: tool(that.fn, …).")
    return Tool(fn, **options)


def as_tool(fn: Tool | Callable[..., Any]) -> Tool:
    """Return ``fn`` if it is a tool, else a tool with default options. Raises ``DefinitionError``."""
    return fn if isinstance(fn, Tool) else Tool(fn)


def find_name_flaw(name: Any) -> tuple[str, str] | None:
    """Find why a tool cannot have this name: a reason and the way out."""
    if name == "<lambda>":
        return "a lambda has no name", 'Name it: tool(lambda: …, name="…").'
    if name == FINISH_TOOL:
        return f"{name} is the engine's own tool", 'Give it another name: @tool(name="…").'
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        return f"the name {name!r} does not match {NAME_PATTERN.pattern}", 'Give it another one: @tool(name="…").'
    return None


def _find_option_flaw(tool: Tool[..., Any]) -> tuple[str, str] | None:
    """Find an option that a tool cannot have: a reason and the way out."""
    timeout, retries, approval = tool.timeout, tool.retries, tool.needs_approval
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        return f"timeout={timeout!r} is not a positive number of seconds", "Write for instance timeout=60."
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        return f"retries={retries!r} is not a number of retries", "Write for instance retries=3."
    if retries is not None and not tool.idempotent:
        hint = "Say idempotent=True if running the call twice does no harm; else leave retries out."
        return "retries needs idempotent=True", hint
    if tool.inline and tool.task_queue is not None:
        return "an inline tool runs inside the model's activity, so it has no task_queue", "Leave one of the two out."
    if not isinstance(approval, bool | Approval):
        if not callable(approval):
            reason = f"needs_approval={approval!r:.100} is neither True nor an Approval nor a function"
            return reason, 'Write for instance needs_approval=Approval(expires="7d").'
        if not takes_call_and_context(approval):
            reason = f"needs_approval={approval!r:.100} cannot be called with a call and a context"
            return reason, "Write for instance lambda call, ctx: call.arguments['amount'] > 100."
    if tool.inline and approval is not False:
        reason = "an inline tool runs inside the model's activity, so it cannot wait for an approval"
        return reason, "Leave one of the two out."
    if tool.task_queue == "":
        return "task_queue is empty", "Name a task queue or leave it out."
    return None


def hash_definition(tool: Tool[..., Any], *more: Any, separators: tuple[str, str] | None = None) -> str:
    """Hash the definition of a tool. Calls that wait are compared by it, so its text never changes."""
    fields = [tool.name, tool.description, tool.parameters, *more]
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=separators).encode()).hexdigest()[:16]


# ---
# Tools without a function in this worker.


class ExternalTool(Tool):
    """A tool whose calls run elsewhere: it has no function, and passes arguments on as the model gave them."""

    read_elsewhere = True
    run_by: str
    """Who runs its calls, in errors."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by {self.run_by}")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged."""
        return dict(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """Refuse a call that was made when the tool still had a function. Raises ``ToolError``."""
        raise ToolError(f"{self.name} is now run by {self.run_by}; retry the call")


# ---
# Tools of toolsets, which are listed when a run starts.


class ToolsetTool(ExternalTool):
    """A tool as a run has pinned it. The toolset checks the arguments and runs the call."""

    run_by = "its toolset"
    context_parameter = "ctx"

    def __init__(self, pinned: PinnedTool, call: Callable[..., Any] | None = None) -> None:
        """``call`` is ``Toolset.call``; without it the tool can only be shown to a model."""
        self.pinned = pinned
        self.where = f"toolset {pinned.toolset!r}"
        self.hooks = HookSet()
        self.name, self.description, self.parameters = pinned.name, pinned.description, pinned.parameters
        self.toolset, self.definition = pinned.toolset, pinned.definition
        self.timeout, self.retries, self.task_queue = pinned.timeout, pinned.retries, pinned.task_queue
        self.idempotent, self.inline, self.summary = pinned.idempotent, pinned.inline, pinned.summary
        self._call = call

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """Bind the toolset's ``call`` to the tool, its arguments and the context."""
        assert self._call is not None, "only a listed tool is run"
        return functools.partial(self._call, self.pinned.tool, dict(arguments), context)


def pin_tool(toolset: Toolset, listed: Any) -> PinnedTool:
    """Build the entry of a run's list for ``listed``. Raises ``DefinitionError`` for what a toolset may not list."""
    from ..ports.model import ToolSpec
    from ..ports.toolset import ListedTool

    fault = f"toolset {toolset.name!r} lists {listed!r:.200}"
    spec = listed.spec if isinstance(listed, Tool) else listed
    if not isinstance(spec, ToolSpec):
        hint = 'A toolset lists tools, or ListedTool("name", "description", {"type": "object", …}).'
        raise DefinitionError(fault, hint=hint)
    options, timeout = dict[str, Any](), None
    if isinstance(listed, ListedTool):
        options, timeout = {"idempotent": listed.idempotent, "inline": listed.inline}, listed.timeout
        options |= {"provisional": listed.provisional, "summary": listed.summary}
    elif isinstance(listed, Tool):
        if isinstance(listed, ExternalTool):
            raise DefinitionError(f"{fault}, which no worker can run", hint="Give it to the agent: Agent(tools=[…]).")
        if listed.hooks:
            hint = "Give them to the agent or to the worker; hooks get the tool's name."
            raise DefinitionError(f"{fault}, which has hooks", hint=hint)
        if listed.needs_approval is not False:
            name = sanitise_tool_name(toolset.prefix + listed.name)
            hint = f"Write a rule for it: Agent(approvals=[ask({name!r})])."
            raise DefinitionError(f"{fault}, which has needs_approval", hint=hint)
        options = {name: getattr(listed, name) for name in ("idempotent", "inline", "retries", "task_queue", "summary")}
        timeout = None if listed.timeout == DEFAULT_TIMEOUT else listed.timeout
    if not isinstance(spec.name, str) or not spec.name:
        raise DefinitionError(f"toolset {toolset.name!r} lists a tool without a name: {listed!r:.100}")
    template = options.get("summary")
    if template is not None and (flaw := find_template_flaw(template, spec.parameters)) is not None:
        raise DefinitionError(f"toolset {toolset.name!r} lists {spec.name!r:.100}: {flaw[0]}", hint=flaw[1])
    try:
        return PinnedTool(
            toolset=toolset.name,
            tool=spec.name,
            name=sanitise_tool_name(toolset.prefix + spec.name),
            description=clean_text(spec.description),
            parameters={"type": "object", "properties": {}, **spec.parameters},
            timeout=timeout or toolset.timeout,
            **options,
        )
    except (AttributeError, TypeError, ValueError) as error:
        fault = f"toolset {toolset.name!r} lists {spec.name!r:.100}, which is not a valid tool: {error}"
        hint = "A tool has a name, a text that describes it, and a JSON Schema of its arguments."
        raise DefinitionError(fault, hint=hint) from None


def pin_tools(toolset: Toolset, listed: Sequence[Any]) -> tuple[list[tuple[PinnedTool, Any]], dict[str, str]]:
    """Build the entries for a toolset's list, each with what was listed; and, by name, why tools are left out: one bad
    tool of a server does not make the others useless.

    Of tools whose names are equal as models can call them, one keeps the name and the others get a suffix; which one
    does not depend on the order. Raises ``DefinitionError`` as :func:`pin_tool`.
    """
    from ..ports.model import ToolSpec

    pinned: dict[str, tuple[PinnedTool, Any]] = {}
    left_out: dict[str, str] = {}
    for one in listed:
        spec = one.spec if isinstance(one, Tool) else one
        name = getattr(spec, "name", None)
        if isinstance(name, str) and name in pinned:
            left_out[name] = "the toolset lists another tool of this name"
        elif isinstance(spec, ToolSpec) and (flaw := _find_listed_flaw(spec)) is not None:
            left_out[str(name)] = flaw
        else:
            pinned[str(name)] = pin_tool(toolset, one), one
    taken: set[str] = set()
    names: dict[str, str] = {}
    for row, _ in sorted(pinned.values(), key=lambda entry: (is_renamed(toolset, entry[0]), entry[0].tool)):
        name = row.name
        while name in taken:
            name = suffix_tool_name(row.name, row.tool + name[len(row.name) :])
        names[row.tool] = name
        taken.add(name)
    rows = [(row.model_copy(update={"name": names[row.tool]}), one) for row, one in pinned.values()]
    return rows, left_out


def _find_listed_flaw(spec: ToolSpec) -> str | None:
    """Find what a server may have wrong in a tool that is otherwise one."""
    if spec.name == "":
        return "it has no name"
    if isinstance(spec.parameters, Mapping) and (flaw := find_json_flaw(spec.parameters)) is not None:
        return f"its schema cannot be recorded: {flaw}"
    return None


def is_renamed(toolset: Toolset, row: PinnedTool) -> bool:
    """Whether models call the tool by another name than the toolset's prefix and its own name."""
    return row.name != toolset.prefix + row.tool


def sanitise_tool_name(name: str) -> str:
    """Convert ``name`` to a name of at most 64 letters, digits, ``_`` and ``-``, which all models accept."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def suffix_tool_name(name: str, own: str) -> str:
    """Add a digest of the ``own`` name to a ``name`` that another tool has, too: the same in each run."""
    return f"{name[:57]}_{hashlib.sha256(own.encode(errors='replace')).hexdigest()[:6]}"


# ---
# The tools of an agent.


class Toolbox:
    """Tools by name, in the order in which they were given: the model sees the same list each time."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        """Raises ``DefinitionError`` for two tools of one name, naming both, and for what cannot be a tool."""
        self._tools: dict[str, Tool] = {}
        for tool in map(as_tool, tools):
            if (other := self._tools.get(tool.name)) is not None:
                reason = f"two tools are called {tool.name!r}: {other.where} and {tool.where}"
                raise DefinitionError(reason, hint='Give one of them another name: @tool(name="…").')
            self._tools[tool.name] = tool
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in self)
        """The tools as the model sees them."""

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, if there is one."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools
