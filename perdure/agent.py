"""``Agent``: a name, a model, instructions and tools. Everything that can be wrong with it is said when it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from .errors import DefinitionError
from .ports import Provider
from .providers.registry import check_settings, parse_model
from .tools import RunContext, Tool, Toolbox
from .types.wire import FinishProtocol, OnLimit

if TYPE_CHECKING:
    from .types.wire import Response

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Instructions = str | Callable[[RunContext[Any]], Any] | None


class Agent:
    """What runs: a model with instructions and tools, under a name that workers and clients know it by.

    ``model`` is ``"<provider>:<model>"``, or a ``Provider`` object (for tests). ``instructions`` is the system
    prompt, or a sync or async function of a ``RunContext`` that gives it. ``finish="text"``: a reply with text and
    no tool calls is the answer; ``finish="tag"``: the answer stands in ``<finish>…</finish>``. At
    ``max_iterations`` model calls in a turn, ``on_limit`` says whether the model is asked for its answer
    (``"finish"``), the last text is returned (``"return"``) or ``MaxIterationsError`` is raised (``"error"``).

    Raises ``DefinitionError`` (or ``SettingsError``) that names what is wrong and the way out.
    """

    def __init__(
        self,
        name: str,
        model: str | Provider,
        *,
        description: str = "",
        instructions: Instructions = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        subagents: Sequence[Agent | str] = (),
        settings: Mapping[str, Any] | None = None,
        provider_options: Mapping[str, Any] | None = None,
        finish: FinishProtocol = "text",
        max_iterations: int = 50,
        on_limit: OnLimit = "finish",
    ) -> None:
        self.name = _checked_name(name)
        self.provider_name, self.model_name, self.provider = _checked_model(name, model)
        self.description = description
        self.instructions = _checked_instructions(name, instructions)
        self.toolbox = Toolbox(_list(name, "tools", tools, "[search, refund]"))
        self.subagents = tuple(_checked_subagents(name, subagents))
        """Agents, or names of agents that the same worker serves. The worker looks at them: see ``Agents``."""
        self.settings = _mapping(name, "settings", settings)
        self.provider_options = _mapping(name, "provider_options", provider_options)
        _check_settings(self)
        self.finish = _one_of(name, "finish", finish, get_args(FinishProtocol))
        self.on_limit = _one_of(name, "on_limit", on_limit, get_args(OnLimit))
        if not isinstance(max_iterations, int) or isinstance(max_iterations, bool) or max_iterations < 1:
            raise DefinitionError(
                f"agent {name!r}: max_iterations must be a whole number of at least 1, not {max_iterations!r}",
                hint="1 is a single model call; leave it out for 50.",
            )
        self.max_iterations = max_iterations

    @property
    def model(self) -> str:
        """``"<provider>:<model>"``."""
        return f"{self.provider_name}:{self.model_name}"

    def __repr__(self) -> str:
        return f"<Agent {self.name} on {self.model}>"

    async def call(self, message: str, *, id: str | None = None) -> Response:
        """Run on this machine and wait for the answer: an embedded server and a worker in this process.

        With ``id``, a run of that id that is there already is attached to. Raises the run's error. Several calls, also
        of different agents, may be made at once.
        """
        from .runtime import agent_queue, local

        async with local(agents=[self], task_queue=agent_queue(self.name)) as client:
            run = await client.start(self.name, message, id=id, if_exists="attach")
            return await run.result()

    def call_sync(self, message: str, *, id: str | None = None) -> Response:
        """:meth:`call` for code without an event loop. Raises ``RuntimeError`` inside a running one."""
        from .runtime import run_sync

        return run_sync(lambda: self.call(message, id=id))


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"the agent name {name!r} does not match [a-zA-Z0-9_-]{{1,64}}",
            hint="Give it a short name; the description may say the rest.",
        )
    return name


def _checked_model(name: str, model: str | Provider) -> tuple[str, str, Provider | None]:
    if isinstance(model, str):
        provider, model_name = parse_model(model)
        return provider, model_name, None
    if isinstance(model, type) or not callable(getattr(model, "stream", None)):
        raise DefinitionError(
            f"agent {name!r}: the model must be '<provider>:<model>' or a Provider with a stream method, not {model!r}",
            hint=f"Pass an instance: {model.__name__}(…)."
            if isinstance(model, type)
            else "For instance 'openai:gpt-5'.",
        )
    return type(model).__name__, "custom", model


def _checked_instructions(name: str, instructions: Instructions) -> Instructions:
    if not (instructions is None or isinstance(instructions, str) or callable(instructions)):
        raise DefinitionError(
            f"agent {name!r}: instructions must be text or a function of RunContext, not {instructions!r}",
            hint="For text from parts: instructions='\\n'.join(parts).",
        )
    return instructions


def _check_settings(agent: Agent) -> None:
    if agent.provider is None:
        check_settings(agent.provider_name, agent.settings, agent.provider_options)
    elif (check := getattr(agent.provider, "check_settings", None)) is not None:
        check(agent.settings, agent.provider_options)


def _checked_subagents(name: str, subagents: Sequence[Agent | str]) -> Iterator[Agent | str]:
    for one in _list(name, "subagents", subagents, "[researcher]"):
        if not isinstance(one, Agent | str):
            raise DefinitionError(
                f"agent {name!r}: a subagent is an Agent or the name of one, not {one!r:.100}",
                hint="A function goes into tools=[…].",
            )
        yield one


def _list(name: str, field: str, value: Any, example: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise DefinitionError(
            f"agent {name!r}: {field} must be a list, not {value!r:.100}", hint=f"For instance {field}={example}."
        )
    return list(value)


def _mapping(name: str, field: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise DefinitionError(
            f"agent {name!r}: {field} must be a dictionary by names, not {value!r:.100}",
            hint=f'For instance {field}={{"temperature": 0.2}}.',
        )
    return dict(value)


def _one_of(name: str, field: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise DefinitionError(
            f"agent {name!r}: {field} is {value!r}, it can be {', '.join(allowed)}",
            hint=f"Leave it out for {allowed[0]!r}.",
        )
    return value
