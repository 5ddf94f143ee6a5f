"""``@hook``: a function that is called when something happens in a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ..errors import DefinitionError
from ..types.compaction import Compaction

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

EVENTS: dict[HookEvent, tuple[str, ...]] = {
    "before_llm_call": ("request", "messages", "model", "tools", "iteration", "ctx"),
    "after_llm_call": ("reply", "response", "messages", "usage", "cost_usd", "iteration", "ctx"),
    "before_tool_call": ("name", "arguments", "call_id", "ctx"),
    "after_tool_call": ("name", "arguments", "call_id", "result", "ctx"),
    "on_iteration": ("step", "iteration", "messages", "response", "ctx"),
    "on_finish": ("content", "raw_content", "output", "messages", "iterations", "ctx"),
    "on_user_message": ("message", "messages", "ctx"),
    "on_user_injection": ("message", "messages", "ctx"),
    "on_error": ("error", "error_type", "name", "attempt", "ctx"),
    "before_subagent": ("agent", "message", "name", "call_id", "ctx"),
    "after_subagent": ("name", "call_id", "result", "ctx"),
    "on_approval": (
        "kind",
        "name",
        "arguments",
        "call_id",
        "hash",
        "expires_in",
        "reminder",
        "question",
        "form",
        "ctx",
    ),
}
"""Every event, and what its hooks may ask for: a parameter is given what has its name."""

VETOABLE_EVENTS: tuple[HookEvent, ...] = (
    "before_llm_call",
    "before_tool_call",
    "before_subagent",
    "on_user_message",
    "on_user_injection",
)
"""What hooks may return a ``Veto`` for."""
TOOL_HOOK_EVENTS: tuple[HookEvent, ...] = ("before_tool_call", "after_tool_call", "on_error")
"""What hooks of a tool may be for."""
DEFAULT_HOOK_TIMEOUT = 60.0
"""Seconds that a hook may take."""


@dataclass(frozen=True, slots=True)
class Veto:
    """What a before-hook returns so that the call is not made. The model is told ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A function and its event. Made by :func:`hook`; called, it calls ``fn``."""

    event: HookEvent
    fn: Callable[..., Any]
    name: str
    on_error: OnError
    timeout: float
    takes: tuple[str, ...]
    """Names of the parameters that it is given."""
    is_async: bool
    """Whether ``fn`` is a coroutine function. If not, it may still return an awaitable."""
    agents: tuple[Any, ...] = ()
    """Agents, or names of agents, that it asks (``step.branch``)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Hook {self.name} on {self.event}>"


def hook(
    event: HookEvent,
    *,
    on_error: OnError = "fail",
    name: str | None = None,
    timeout: float = DEFAULT_HOOK_TIMEOUT,
    agents: Iterable[Any] = (),
) -> Callable[[Callable[..., Any]], Hook]:
    """``@hook("before_llm_call")`` makes a function, sync or async, a hook.

    Its parameters are found by their names: those that ``EVENTS`` lists for the event, as many as it wants. If it
    raises, the call fails with its name, unless ``on_error="log"``: then it is logged, and the call goes on. ``agents``
    are those that a step policy asks (``step.branch``): they are served wherever it runs.

    Raises ``DefinitionError`` for an event that there is not, and for a parameter that the event does not give.
    """
    if callable(event):
        raise DefinitionError(
            "@hook says which event the function is for",
            hint=f'Write @hook("before_llm_call"). There is: {", ".join(EVENTS)}.',
        )
    if not isinstance(event, str) or event not in EVENTS:
        raise DefinitionError(f"there is no hook event {event!r:.100}", hint=f"There is: {', '.join(EVENTS)}.")
    if on_error not in get_args(OnError):
        raise DefinitionError(f"hook on {event}: on_error is 'fail' or 'log', not {on_error!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise DefinitionError(f"hook on {event}: timeout is a number of seconds above 0, not {timeout!r:.100}")
    asked = _validate_hook_agents(event, agents)

    def made(fn: Callable[..., Any]) -> Hook:
        return replace(_build_hook(event, on_error, name, timeout, fn), agents=asked)

    return made


def _validate_hook_agents(event: HookEvent, agents: Any) -> tuple[Any, ...]:
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise DefinitionError(f"hook on {event}: agents is a list, not {agents!r:.100}", hint="Write agents=[critic].")
    listed = tuple(agents)
    for one in listed:
        if not isinstance(one, str) and not isinstance(getattr(one, "name", None), str):
            raise DefinitionError(f"hook on {event}: it asks agents, or names of agents, not {one!r:.100}")
    if listed and event != "on_iteration":
        raise DefinitionError(
            f"a hook on {event} cannot ask other agents", hint='A step policy can: @hook("on_iteration", agents=[…]).'
        )
    return listed


def _build_hook(event: HookEvent, on_error: OnError, name: str | None, timeout: float, fn: Callable[..., Any]) -> Hook:
    called = name or str(getattr(fn, "__name__", type(fn).__name__))
    if isinstance(fn, Hook) or not callable(fn):
        raise DefinitionError(f"a hook is made of a function, not of {fn!r:.100}", hint="Write it above a def.")
    called_as = (fn, getattr(fn, "__call__", None))  # noqa: B004  # asks what kind its call is, not whether it has one
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in called_as):
        raise DefinitionError(f"hook {called!r}: a generator would never run", hint="Write return for yield.")
    given = EVENTS[event]
    takes: list[str] = []
    for parameter in _get_hook_parameters(called, fn):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            takes = list(given) if parameter.kind is parameter.VAR_KEYWORD else takes
        elif parameter.name in given and parameter.kind is not parameter.POSITIONAL_ONLY:
            takes.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise DefinitionError(
                f"hook {called!r}: {event} gives no {parameter.name!r}", hint=f"It gives: {', '.join(given)}."
            )
    is_async = any(map(inspect.iscoroutinefunction, called_as))
    return Hook(event, fn, called, on_error, float(timeout), tuple(dict.fromkeys(takes)), is_async)


def _get_hook_parameters(called: str, fn: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters.values()
    except ValueError:
        raise DefinitionError(
            f"hook {called!r}: Python does not tell its parameters", hint="Write a def around it."
        ) from None


def validate_hook_list(owner: str, hooks: Any) -> tuple[Any, ...]:
    """What ``owner`` was given; a set alone is a list of one. Raises ``DefinitionError`` for what is no list."""
    if isinstance(hooks, HookSet):
        return (hooks,)
    if isinstance(hooks, Hook | str) or not isinstance(hooks, Iterable):
        raise DefinitionError(f"{owner}: hooks must be a list, not {hooks!r:.100}", hint="Write hooks=[audit].")
    return tuple(hooks)


def validate_hooks(
    owner: str, hooks: Iterable[Any], events: Iterable[HookEvent] = EVENTS, *, of_agent: bool = False
) -> tuple[Hook, ...]:
    """``hooks`` of ``owner``, those of a ``HookSet`` among them one by one.

    Raises ``DefinitionError`` for what is none, and for what only an agent can have.
    """
    listed: list[Hook] = []
    for one in validate_hook_list(owner, hooks):
        if not isinstance(one, Hook | HookSet):
            raise DefinitionError(
                f"{owner}: {one!r:.100} is no hook", hint='Say which event it is for: @hook("before_llm_call").'
            )
        if isinstance(one, HookSet) and one.compaction is not None and not of_agent:
            raise DefinitionError(
                f"{owner}: {one!r} sums up the conversations of an agent",
                hint="Give it to the agents: Agent(hooks=[…]).",
            )
        listed += [one] if isinstance(one, Hook) else one
    possible = tuple(events)
    for one in listed:
        if one.event not in possible:
            raise DefinitionError(
                f"{owner}: the hook {one.name} is for {one.event}",
                hint=f"Here there is: {', '.join(possible)}. Give it to the agent, or to the worker.",
            )
    return tuple(listed)


def add_hook_compaction(compaction: Any, hooks: Iterable[Any]) -> Any:
    """An agent's ``compaction`` with what sets among its ``hooks`` bring."""
    brought = [one.compaction for one in hooks if isinstance(one, HookSet) and one.compaction is not None]
    if not brought or compaction is None:
        return brought or compaction
    return [*([compaction] if isinstance(compaction, Compaction) else compaction), *brought]


class HookSet:
    """Hooks by event, in order: ``agent.hooks``. What changes it changes what the next call runs.

    A set may stand among the hooks of an agent or a worker, as those of ``perdure.contrib.hooks`` do.
    """

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._by_event: dict[HookEvent, tuple[Hook, ...]] = {}
        self.compaction: Compaction | None = None
        """What the agent that it is given to is to do beside these hooks (``auto_summarise``)."""
        self.all: tuple[Hook, ...] = ()
        """All of them, in the order in which they were given."""
        self.add(*hooks)

    def add(self, *hooks: Hook) -> None:
        """Behind those that are there. Raises ``DefinitionError`` for what is no hook."""
        self._replace_hooks((*self.all, *validate_hooks("hooks", hooks)))

    def clear(self, event: HookEvent | None = None) -> None:
        """Take those of ``event`` out, or all."""
        self._replace_hooks(tuple(one for one in self.all if event is not None and one.event != event))

    def on(self, event: HookEvent) -> tuple[Hook, ...]:
        """Those of ``event``."""
        return self._by_event.get(event, ())

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def __add__(self, other: HookSet) -> HookSet:
        return HookSet((*self.all, *other.all))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(f'{one.name} on {one.event}' for one in self.all) or 'none'}>"

    def _replace_hooks(self, hooks: tuple[Hook, ...]) -> None:
        by_event: dict[HookEvent, tuple[Hook, ...]] = {}
        for one in hooks:
            by_event[one.event] = (*by_event.get(one.event, ()), one)
        self.all, self._by_event = hooks, by_event
