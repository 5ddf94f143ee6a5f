"""Tools that are other agents: a call of one is a run of its own, a child of the run that calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import DefinitionError, InvalidInputError, ToolError
from ..hooks import HookSet
from ..ports import ToolSpec
from ..types.messages import clean_text
from ..types.subagents import DEFAULT_BACKGROUND_RUNS, MAX_BACKGROUND_RUNS, CollectCall, TellCall
from ..types.tool_calls import SubagentCall
from .context import RunContext
from .signature import ArgumentsError
from .tool import Tool

DELEGATE_TOOL = "call_agent"
_MAX_SUBAGENT_NAME_CHARS = 64


class SubagentTool(Tool):
    """A tool whose call another agent answers. It runs nothing: the workflow starts the run."""

    read_elsewhere = True

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        ask: Callable[[Mapping[str, Any]], SubagentCall | CollectCall | TellCall],
        *,
        agents: Sequence[Any],
        typed: bool = False,
        chosen: bool = False,
        answers: bool = True,
    ) -> None:
        """``ask`` gives what is asked of whom, and raises ``ArgumentsError``. ``agents`` are those that it may name:
        agents, or their names. ``chosen``: which of them is for the model to say. ``answers``: its result is an
        agent's answer."""
        if len(name) > _MAX_SUBAGENT_NAME_CHARS:
            raise DefinitionError(
                f"the tool name {name!r} has {len(name)} characters; models take {_MAX_SUBAGENT_NAME_CHARS}",
                hint='Give it a shorter one: tools=[that_agent.as_tool("name")].',
            )
        self.name, self.description = name, clean_text(description)
        self.where = f"subagent{'s' if chosen else ''} {', '.join(map(agent_name, agents))}"
        self.parameters = dict(parameters)
        self.agents, self.is_chosen_by_model, self.returns_answer = tuple(agents), chosen, answers
        self.timeout, self.idempotent, self.inline = 0.0, False, False  # nothing of it runs in a worker
        self.retries, self.task_queue = None, None
        self.hooks = HookSet()
        self.is_async, self.context_parameter = True, None
        self.validates_by_code = typed
        self.spec = ToolSpec(self.name, self.description, self.parameters)
        seen = json.dumps([self.name, self.description, self.parameters, "subagent"], sort_keys=True)
        self.definition = hashlib.sha256(seen.encode()).hexdigest()[:16]
        self.build_disposition = ask

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by the engine, as a run of its own")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are. Raises ``ArgumentsError``."""
        self.build_disposition(arguments)
        return dict(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """A call that was asked for when it was another tool. Raises ``ToolError``."""
        raise ToolError(f"{self.name} calls another agent now: call it again")


def build_subagent_tool(agent: Any, name: str | None = None, description: str | None = None) -> SubagentTool:
    """``call_NAME``: ``agent``, an agent or the name of one, answers a task, or an input of its type."""
    title = name or f"call_{agent_name(agent)}"
    said = description if description is not None else _describe_agent(agent)
    if getattr(agent, "takes_input", False):
        return _build_typed_subagent_tool(agent, title, said)

    def call(
        task: Annotated[str, Field(description="All that the agent needs to know: it sees nothing else.")],
    ) -> None:
        """Only its signature counts."""

    form = Tool(call, name=title)

    def ask(arguments: Mapping[str, Any]) -> SubagentCall:
        return SubagentCall(agent=agent_name(agent), message=form.validate(arguments)["task"])

    return SubagentTool(title, said, form.parameters, ask, agents=[agent])


def delegate(agents: Sequence[Any], *, name: str = DELEGATE_TOOL, description: str | None = None) -> Tool:
    """A tool by which the model asks any of ``agents`` (agents, or names of agents that the same worker serves):
    ``call_agent(agent_name, message)``. Raises ``DefinitionError``."""
    form = build_choice_form("delegate", agents, name)

    def ask(arguments: Mapping[str, Any]) -> SubagentCall:
        given = form.validate(arguments)
        return SubagentCall(agent=given["agent_name"], message=given["message"])

    said = (
        description if description is not None else "Ask another agent, and get its answer. " + describe_agents(agents)
    )
    return SubagentTool(name, said, form.parameters, ask, agents=agents, chosen=True)


def build_choice_form(maker: str, agents: Sequence[Any], name: str) -> Tool:
    """A form of ``agent_name``, one of ``agents``, and ``message``. Raises ``DefinitionError``."""
    if not isinstance(agents, Sequence) or isinstance(agents, str) or not agents:
        raise DefinitionError(f"{maker} takes a list of agents, not {agents!r:.100}", hint=f"{maker}([researcher]).")
    names = tuple(map(agent_name, agents))

    def call(agent_name: Any, message: Any) -> None:
        """Only its signature counts."""

    call.__annotations__ = {
        "agent_name": Literal[names],
        "message": Annotated[str, Field(description="All that the agent needs to know: it sees nothing else.")],
        "return": None,
    }
    return Tool(call, name=name)


def describe_agents(agents: Sequence[Any]) -> str:
    """The agents that the model may choose from, for a tool's description."""
    return "There are:\n" + "\n".join(
        f"- {agent_name(one)}: {getattr(one, 'description', '') or 'an agent'}" for one in agents
    )


def agent_name(agent: Any) -> str:
    """Of an agent, or of what is one already. Raises ``DefinitionError``."""
    name = agent if isinstance(agent, str) else getattr(agent, "name", None)
    if not isinstance(name, str) or isinstance(agent, Tool):
        raise DefinitionError(
            f"a subagent is an Agent or the name of one, not {agent!r:.100}", hint="A function goes into tools=[…]."
        )
    return name


def _build_typed_subagent_tool(agent: Any, title: str, description: str) -> SubagentTool:
    """For an agent with an input type: its fields are the tool's."""

    def ask(arguments: Mapping[str, Any]) -> SubagentCall:
        try:
            plain = agent.check_input(dict(arguments))
        except InvalidInputError as error:
            raise ArgumentsError(f"the arguments of {title} do not fit: {error.message}") from error
        return SubagentCall(agent=agent.name, message=json.dumps(plain, ensure_ascii=False), typed=True)

    return SubagentTool(title, description, agent.input_schema(), ask, agents=[agent], typed=True)


def _describe_agent(agent: Any) -> str:
    name = agent_name(agent)
    return getattr(agent, "description", "") or f"Ask the agent {name}, and get its answer."


# ---
# Tools by which a model starts other agents in background, talks to them, and collects their answers.


START_TOOL, COLLECT_TOOL, TELL_TOOL = "start_agent", "collect_agent", "tell_agent"

Handle = Annotated[str, Field(description=f"As {START_TOOL} gave it: b1, b2, …", min_length=1, max_length=50)]


def background(agents: Sequence[Any], *, at_once: int = DEFAULT_BACKGROUND_RUNS) -> list[Tool]:
    """Tools by which the model has any of ``agents`` (agents, or names of agents that the same worker serves) work in
    background: ``Agent(…, tools=[search, *background([researcher])])``.

    ``start_agent(agent_name, message)`` returns a handle at once; ``collect_agent(handle, wait=True)`` gives the answer
    of one, and waits for it unless told not to; ``tell_agent(handle, message)`` sends a message to one that runs.
    ``at_once`` of them, up to 20, run at the same time. They end with the run that started them. Raises
    ``DefinitionError``.
    """
    form = build_choice_form("background", agents, START_TOOL)
    if not isinstance(at_once, int) or isinstance(at_once, bool) or not 1 <= at_once <= MAX_BACKGROUND_RUNS:
        raise DefinitionError(
            f"background: at_once is {at_once!r:.50}; it can be 1 to {MAX_BACKGROUND_RUNS}",
            hint=f"Leave it out for {DEFAULT_BACKGROUND_RUNS}.",
        )

    def start(arguments: Mapping[str, Any]) -> SubagentCall:
        given = form.validate(arguments)
        return SubagentCall(agent=given["agent_name"], message=given["message"], background=at_once)

    said = (
        "Start another agent in background: it works while you go on. Gives a handle, by which "
        f"{COLLECT_TOOL} gets its answer and {TELL_TOOL} sends it a message. "
        "Uncollected agents are stopped when you finish. "
    )
    started = SubagentTool(
        START_TOOL, said + describe_agents(agents), form.parameters, start, agents=agents, chosen=True, answers=False
    )
    return [started, _build_collect_tool(), _build_tell_tool()]


def _build_collect_tool() -> SubagentTool:
    def call(
        handle: Handle,
        wait: Annotated[bool, Field(description="Until it has ended; false only says how it stands.")] = True,
    ) -> None:
        """Only its signature counts."""

    form = Tool(call, name=COLLECT_TOOL)

    def collect(arguments: Mapping[str, Any]) -> CollectCall:
        return CollectCall(**form.validate(arguments))

    said = "Get the answer of an agent that works in background."
    return SubagentTool(COLLECT_TOOL, said, form.parameters, collect, agents=[], chosen=True)


def _build_tell_tool() -> SubagentTool:
    def call(handle: Handle, message: str) -> None:
        """Only its signature counts."""

    form = Tool(call, name=TELL_TOOL)

    def tell(arguments: Mapping[str, Any]) -> TellCall:
        return TellCall(**form.validate(arguments))

    said = "Send a message to an agent that works in background: it reads it before its next step."
    return SubagentTool(TELL_TOOL, said, form.parameters, tell, agents=[], chosen=True, answers=False)
