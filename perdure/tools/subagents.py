"""Tools that are other agents: a call starts a run of the agent, as a child of the run that calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import DefinitionError, InvalidInputError
from ..hooks import HookSet
from ..types.messages import clean_text
from ..types.subagents import DEFAULT_BACKGROUND_RUNS, MAX_BACKGROUND_RUNS, CollectCall, TellCall
from ..types.tool_calls import SubagentCall
from .signature import ArgumentsError
from .tool import ExternalTool, Tool, find_name_flaw, hash_definition

DELEGATE_TOOL = "call_agent"
START_TOOL, COLLECT_TOOL, TELL_TOOL = "start_agent", "collect_agent", "tell_agent"

Task = Annotated[str, Field(description="All that the agent needs to know: it sees nothing else.")]
Handle = Annotated[str, Field(description=f"As {START_TOOL} gave it: b1, b2, …", min_length=1, max_length=50)]

SubagentDisposition = SubagentCall | CollectCall | TellCall


class SubagentTool(ExternalTool):
    """A tool whose calls are about other agents. It runs nothing: the workflow starts the runs."""

    run_by = "the engine, as a run of its own"

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        build_disposition: Callable[[Mapping[str, Any]], SubagentDisposition],
        *,
        agents: Sequence[Any],
        typed: bool = False,
        is_chosen_by_model: bool = False,
        returns_answer: bool = True,
    ) -> None:
        """``build_disposition`` plans a call of one of ``agents``, which are agents or their names, and raises
        ``ArgumentsError``. ``is_chosen_by_model``: the model says which of them. ``returns_answer``: the result is an
        agent's answer."""
        self.where = f"subagent{'s' if is_chosen_by_model else ''} {', '.join(map(agent_name, agents))}"
        self.name, self.description, self.parameters = name, clean_text(description), dict(parameters)
        self.agents, self.is_chosen_by_model, self.returns_answer = tuple(agents), is_chosen_by_model, returns_answer
        self.hooks = HookSet()
        self.validates_by_code = typed
        self.definition = hash_definition(self, "subagent")
        self.build_disposition = build_disposition

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged. Raises ``ArgumentsError`` for those that do not fit."""
        self.build_disposition(arguments)
        return dict(arguments)


def _build_tool(plan: Callable[..., SubagentDisposition], name: str, description: str, **options: Any) -> SubagentTool:
    """Build a tool with the parameters of ``plan``, which plans a call."""
    form = Tool(plan, name=name)
    return SubagentTool(name, description, form.parameters, lambda arguments: form.bind(arguments)(), **options)


def build_subagent_tool(agent: Any, name: str | None = None, description: str | None = None) -> SubagentTool:
    """Build ``call_NAME``, by which ``agent``, an agent or the name of one, answers a task, or an input of its type."""
    subagent = agent_name(agent)
    name = name or f"call_{subagent}"
    _check_tool_name(name, 'that_agent.as_tool("name")')
    if description is None:
        description = getattr(agent, "description", "") or f"Ask the agent {subagent}, and get its answer."

    def plan_typed(arguments: Mapping[str, Any]) -> SubagentCall:
        try:
            plain = agent.check_input(dict(arguments))
        except InvalidInputError as error:
            raise ArgumentsError(f"the arguments of {name} do not fit: {error.message}") from error
        return SubagentCall(agent=subagent, message=json.dumps(plain, ensure_ascii=False), typed=True)

    def plan(task: Task) -> SubagentCall:
        return SubagentCall(agent=subagent, message=task)

    if getattr(agent, "takes_input", False):
        return SubagentTool(name, description, agent.input_schema(), plan_typed, agents=[agent], typed=True)
    return _build_tool(plan, name, description, agents=[agent])


def delegate(agents: Sequence[Any], *, name: str = DELEGATE_TOOL, description: str | None = None) -> Tool:
    """Make a tool by which the model asks any of ``agents`` (agents, or names of agents that the same worker serves):
    ``call_agent(agent_name, message)``. Raises ``DefinitionError``."""
    return _build_choice_tool("delegate", agents, name, "Ask another agent, and get its answer. ", description)


def _build_choice_tool(
    maker: str,
    agents: Sequence[Any],
    name: str,
    intro: str,
    description: str | None = None,
    *,
    background: int | None = None,
) -> SubagentTool:
    """Build a tool of ``agent_name``, one of ``agents``, and ``message``. By default its description is ``intro`` and a
    list of the agents. Raises ``DefinitionError``."""
    if not isinstance(agents, Sequence) or isinstance(agents, str) or not agents:
        raise DefinitionError(f"{maker} takes a list of agents, not {agents!r:.100}", hint=f"{maker}([researcher]).")
    names = tuple(map(agent_name, agents))
    _check_tool_name(name, f'{maker}(…, name="name")')
    if description is None:
        descriptions = (getattr(agent, "description", "") or "an agent" for agent in agents)
        lines = (f"- {listed}: {text}" for listed, text in zip(names, descriptions, strict=True))
        description = "\n".join([f"{intro}There are:", *lines])

    def plan(agent_name: Any, message: Any) -> SubagentCall:
        return SubagentCall(agent=agent_name, message=message, background=background)

    plan.__annotations__ = {"agent_name": Literal[names], "message": Task}
    options: dict[str, Any] = {"is_chosen_by_model": True, "returns_answer": background is None}
    return _build_tool(plan, name, description, agents=agents, **options)


def _check_tool_name(name: Any, example: str) -> None:
    if flaw := find_name_flaw(name):
        hint = f"Give it another name: {example}."
        raise DefinitionError(f"the tool {name!r:.200} of an agent: {flaw[0]}", hint=hint)


def agent_name(agent: Any) -> str:
    """Return the name of an agent, or ``agent`` if it is a name. Raises ``DefinitionError``."""
    name = agent if isinstance(agent, str) else getattr(agent, "name", None)
    if not isinstance(name, str) or isinstance(agent, Tool):
        hint = "A function goes into tools=[…]."
        raise DefinitionError(f"a subagent is an Agent or the name of one, not {agent!r:.100}", hint=hint)
    return name


# ---
# Subagents in background: tools to start them, to send them messages and to collect their answers.


def background(agents: Sequence[Any], *, at_once: int = DEFAULT_BACKGROUND_RUNS) -> list[Tool]:
    """Make the tools by which the model has any of ``agents`` (agents, or names of agents that the same worker serves)
    work in background: ``Agent(…, tools=[search, *background([researcher])])``.

    ``start_agent(agent_name, message)`` returns a handle at once; ``collect_agent(handle, wait=True)`` returns the
    answer of one agent, and waits for it unless ``wait`` is false; ``tell_agent(handle, message)`` sends a message to a
    running one. ``at_once`` of them, up to 20, run at the same time. They end with the run that started them. Raises
    ``DefinitionError``.
    """
    intro = (
        "Start another agent in background: it works while you go on. Gives a handle, by which "
        f"{COLLECT_TOOL} gets its answer and {TELL_TOOL} sends it a message. "
        "Uncollected agents are stopped when you finish. "
    )
    start = _build_choice_tool("background", agents, START_TOOL, intro, background=at_once)
    if not isinstance(at_once, int) or isinstance(at_once, bool) or not 1 <= at_once <= MAX_BACKGROUND_RUNS:
        hint = f"Leave it out for {DEFAULT_BACKGROUND_RUNS}."
        raise DefinitionError(f"background: at_once is 1 to {MAX_BACKGROUND_RUNS}, not {at_once!r:.50}", hint=hint)
    text = "Get the answer of an agent that works in background."
    collect = _build_tool(_plan_collect, COLLECT_TOOL, text, agents=[], is_chosen_by_model=True)
    text = "Send a message to an agent that works in background: it reads it before its next step."
    options: dict[str, Any] = {"is_chosen_by_model": True, "returns_answer": False}
    return [start, collect, _build_tool(_plan_tell, TELL_TOOL, text, agents=[], **options)]


def _plan_collect(
    handle: Handle,
    wait: Annotated[bool, Field(description="Until it has ended; false only says how it stands.")] = True,
) -> CollectCall:
    return CollectCall(handle=handle, wait=wait)


def _plan_tell(handle: Handle, message: str) -> TellCall:
    return TellCall(handle=handle, message=message)
