"""``@hook``: a function that runs at an event of a run; ``HookSet``: the hooks of an agent, a worker or a tool."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, get_args, overload

from typing_extensions import TypeVar

from ..errors import DefinitionError

if TYPE_CHECKING:
    from ..context.run_context import (
        ContextT,
        P,
        ReturnT,
        TakesContextFirst,
        TakesContextFourth,
        TakesContextSecond,
        TakesContextThird,
    )
    from ..types.compaction import Compaction

ContextT_contra = TypeVar("ContextT_contra", default=Any, contravariant=True)

HookEvent = Literal[
    "before_llm_call",
    "after_llm_call",
    "before_tool_call",
    "after_tool_call",
    "on_iteration",
    "on_finish",
    "on_user_message",
    "on_user_injection",
    "on_error",
    "on_approval",
    "before_subagent",
    "after_subagent",
]
OnError = Literal["fail", "log"]

_PARAMETERS: dict[HookEvent, tuple[str, ...]] = {
    "before_llm_call": ("request", "messages", "model", "tools", "iteration"),
    "after_llm_call": ("reply", "response", "messages", "usage", "cost_usd", "iteration"),
    "before_tool_call": ("name", "arguments", "call_id"),
    "after_tool_call": ("name", "arguments", "call_id", "result"),
    "on_iteration": ("step", "iteration", "messages", "response"),
    "on_finish": ("content", "raw_content", "output", "messages", "iterations"),
    "on_user_message": ("message", "messages"),
    "on_user_injection": ("message", "messages"),
    "on_error": ("error", "error_type", "name", "attempt"),
    "before_subagent": ("agent", "message", "name", "call_id"),
    "after_subagent": ("name", "call_id", "result"),
    "on_approval": ("kind", "name", "arguments", "call_id", "hash", "expires_in", "reminder", "question", "form"),
}
EVENTS: dict[HookEvent, tuple[str, ...]] = {event: (*names, "ctx") for event, names in _PARAMETERS.items()}
"""Every event, with the parameters that its hooks may take, by name."""

VETOABLE_EVENTS: tuple[HookEvent, ...] = (
    "before_llm_call",
    "before_tool_call",
    "before_subagent",
    "on_user_message",
    "on_user_injection",
)
"""Events whose hooks may return a ``Veto``."""
TOOL_HOOK_EVENTS: tuple[HookEvent, ...] = ("before_tool_call", "after_tool_call", "on_error")
"""Events of the hooks of a tool."""
DEFAULT_HOOK_TIMEOUT = 60.0
"""Default of the seconds that a hook may take."""


@dataclass(frozen=True, slots=True)
class Veto:
    """Returned by a before-hook to forbid the call. The model gets ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Hook(Generic[ContextT_contra]):
    """A function and its event. Made by :func:`hook`; calling it calls ``fn``."""

    event: HookEvent
    fn: Callable[..., Any]
    name: str
    on_error: OnError
    timeout: float
    takes: tuple[str, ...]
    """Names of the parameters that it takes."""
    is_async: bool
    """Whether ``fn`` is a coroutine function. If not, it may still return an awaitable."""
    agents: tuple[Any, ...] = ()
    """Agents, or names of agents, that a step policy asks (``step.branch``)."""

    if TYPE_CHECKING:

        def takes_context(self, context: ContextT_contra) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Hook {self.name} on {self.event}>"


class HookDecorator(Protocol):
    """What :func:`hook` returns: it makes a function a hook, and keeps the type of its context."""

    @overload
    def __call__(self, fn: TakesContextFourth[P, ReturnT, ContextT], /) -> Hook[ContextT]: ...
    @overload
    def __call__(self, fn: TakesContextThird[P, ReturnT, ContextT], /) -> Hook[ContextT]: ...
    @overload
    def __call__(self, fn: TakesContextSecond[P, ReturnT, ContextT], /) -> Hook[ContextT]: ...
    @overload
    def __call__(self, fn: TakesContextFirst[P, ReturnT, ContextT], /) -> Hook[ContextT]: ...
    @overload
    def __call__(self, fn: Callable[..., Any], /) -> Hook[Any]: ...


def hook(
    event: HookEvent,
    *,
    on_error: OnError = "fail",
    name: str | None = None,
    timeout: float = DEFAULT_HOOK_TIMEOUT,
    agents: Iterable[Any] = (),
) -> HookDecorator:
    """Make a function, sync or async, a hook: ``@hook("before_llm_call")``.

    The function takes any of the parameters that ``EVENTS`` lists for the event, by name. If it raises, the call fails
    with an error that names the hook; with ``on_error="log"`` the error is logged, and the call runs. ``agents`` are
    those that a step policy asks (``step.branch``): every worker that runs the policy serves them.

    Raises ``DefinitionError`` for an unknown event, and for a parameter that the event does not have.
    """
    events = f"The events are: {', '.join(EVENTS)}."
    if callable(event):
        hint = f'Write @hook("before_llm_call"). {events}'
        raise DefinitionError("@hook takes the event that the function is for", hint=hint)
    if not isinstance(event, str) or event not in EVENTS:
        raise DefinitionError(f"there is no hook event {event!r:.100}", hint=events)
    if on_error not in get_args(OnError):
        raise DefinitionError(f"hook on {event}: on_error is 'fail' or 'log', not {on_error!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise DefinitionError(f"hook on {event}: timeout is a number of seconds above 0, not {timeout!r:.100}")
    branch_agents = _validate_branch_agents(event, agents)

    def decorate(fn: Callable[..., Any], /) -> Hook[Any]:
        hook_name = name or str(getattr(fn, "__name__", type(fn).__name__))
        if isinstance(fn, Hook) or not callable(fn):
            raise DefinitionError(f"a hook is made of a function, not of {fn!r:.100}", hint="Write it above a def.")
        callables = (fn, getattr(fn, "__call__", None))  # noqa: B004  # asks for its kind, not whether it has one
        if any(inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) for function in callables):
            raise DefinitionError(f"hook {hook_name!r}: a generator would never run", hint="Write return for yield.")
        is_async = any(map(inspect.iscoroutinefunction, callables))
        takes = _find_event_parameters(event, hook_name, fn)
        return Hook(event, fn, hook_name, on_error, float(timeout), takes, is_async, branch_agents)

    return decorate


def _validate_branch_agents(event: HookEvent, agents: Any) -> tuple[Any, ...]:
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise DefinitionError(f"hook on {event}: agents is a list, not {agents!r:.100}", hint="Write agents=[critic].")
    listed = tuple(agents)
    for agent in listed:
        if not isinstance(agent, str) and not isinstance(getattr(agent, "name", None), str):
            raise DefinitionError(f"hook on {event}: agents has agents, or names of agents, not {agent!r:.100}")
    if listed and event != "on_iteration":
        hint = 'A step policy can: @hook("on_iteration", agents=[…]).'
        raise DefinitionError(f"a hook on {event} cannot ask other agents", hint=hint)
    return listed


def evaluate_signature(owner: str, fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of an author's function; None if Python does not tell it. ``owner``: "hook 'log'".

    Raises ``DefinitionError`` for an annotation that cannot be resolved: from Python 3.14 on, annotations are evaluated
    when they are first read.
    """
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # of a class, or of a function written in C
        return None
    except Exception as error:  # evaluating an annotation runs any expression
        raise DefinitionError(
            f"{owner}: an annotation cannot be resolved: {type(error).__name__}: {error}",
            hint="Import or define its names at module level, not under `if TYPE_CHECKING:`.",
        ) from error


def _find_event_parameters(event: HookEvent, hook_name: str, fn: Callable[..., Any]) -> tuple[str, ...]:
    """Find which of the event's parameters a function takes."""
    available, takes = EVENTS[event], list[str]()
    signature = evaluate_signature(f"hook {hook_name!r}", fn)
    if signature is None:
        reason = f"hook {hook_name!r}: Python does not tell its parameters"
        raise DefinitionError(reason, hint="Write a def around it.")
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return available
        if parameter.name in available and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            takes.append(parameter.name)
        elif parameter.name in available and parameter.kind is parameter.POSITIONAL_ONLY:
            reason = (
                f"hook {hook_name!r}: its parameter {parameter.name!r} is positional-only, and is given by its name"
            )
            raise DefinitionError(reason, hint="Take the / out of its parameters.")
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            hint = f"Its parameters are: {', '.join(available)}."
            raise DefinitionError(f"hook {hook_name!r}: {event} gives no {parameter.name!r}", hint=hint)
    return tuple(takes)


def validate_hook_list(owner: str, hooks: Any) -> tuple[Any, ...]:
    """Return the ``hooks`` of ``owner`` as a tuple; a set alone is one entry. Raises ``DefinitionError`` for other
    values than a list."""
    if isinstance(hooks, HookSet):
        return (hooks,)
    if isinstance(hooks, Hook | str) or not isinstance(hooks, Iterable):
        raise DefinitionError(f"{owner}: hooks must be a list, not {hooks!r:.100}", hint="Write hooks=[audit].")
    return tuple(hooks)


def validate_hooks(
    owner: str, hooks: Iterable[Any], events: Iterable[HookEvent] = EVENTS, *, of_agent: bool = False
) -> tuple[Hook, ...]:
    """Validate the ``hooks`` of ``owner``, and return them with the hooks of each ``HookSet`` in its place.

    Raises ``DefinitionError`` for other values, and for what only an agent can have.
    """
    listed: list[Hook] = []
    for item in validate_hook_list(owner, hooks):
        if not isinstance(item, Hook | HookSet):
            hint = 'Say which event it is for: @hook("before_llm_call").'
            raise DefinitionError(f"{owner}: {item!r:.100} is not a hook", hint=hint)
        if isinstance(item, HookSet) and item.compaction is not None and not of_agent:
            hint = "Give it to the agents: Agent(hooks=[…])."
            raise DefinitionError(f"{owner}: {item!r} summarises the conversations of an agent", hint=hint)
        listed += [item] if isinstance(item, Hook) else item
    possible = tuple(events)
    for hook in listed:
        if hook.event not in possible:
            hint = f"Possible here: {', '.join(possible)}. Give it to the agent, or to the worker."
            raise DefinitionError(f"{owner}: the hook {hook.name} is for {hook.event}", hint=hint)
    return tuple(listed)


def add_hook_compaction(compaction: Any, hooks: Iterable[Any]) -> Any:
    """Add the compactions of the sets among an agent's ``hooks`` to its ``compaction``."""
    added = [item.compaction for item in hooks if isinstance(item, HookSet) and item.compaction is not None]
    if not added or compaction is None:
        return added or compaction
    from ..types.compaction import Compaction  # here, as in the agent's validation: few agents have one

    return [*([compaction] if isinstance(compaction, Compaction) else compaction), *added]


class HookSet:
    """Hooks by event, in order: ``agent.hooks``. A change of it changes what the next call runs.

    A set may stand among the hooks of an agent or a worker, as those of ``perdure.contrib.hooks`` do.
    """

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self.compaction: Compaction | None = None
        """A compaction for the agents that have this set (``auto_summarise``)."""
        self.all: tuple[Hook, ...] = ()
        """All hooks, in the order in which they were given."""
        self.add(*hooks)

    def add(self, *hooks: Hook) -> None:
        """Add hooks at the end. Raises ``DefinitionError`` for other values."""
        self.all = (*self.all, *validate_hooks("hooks", hooks))

    def clear(self, event: HookEvent | None = None) -> None:
        """Remove the hooks of ``event``, or all."""
        self.all = tuple(hook for hook in self.all if event is not None and hook.event != event)

    def on(self, event: HookEvent) -> tuple[Hook, ...]:
        """Return the hooks of ``event``."""
        return tuple(hook for hook in self.all if hook.event == event)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def __repr__(self) -> str:
        hooks = ", ".join(f"{hook.name} on {hook.event}" for hook in self.all)
        return f"<{type(self).__name__} of {hooks or 'none'}>"


def list_hook_events(*sets: HookSet | None) -> set[HookEvent]:
    """Return the events that have hooks in ``sets``."""
    return {hook.event for hooks in sets if hooks is not None for hook in hooks.all}


def select_hooks(event: HookEvent, *sets: HookSet | None) -> tuple[Hook, ...]:
    """Return the hooks of ``event`` in all ``sets``, in their order."""
    selected: tuple[Hook, ...] = ()
    for hooks in sets:  # most sets are empty, and this is asked twenty times in an iteration
        if hooks is not None and hooks.all:
            selected += hooks.on(event)
    return selected
