"""Tools by which a model starts other agents in background, talks to them, and collects their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from perdure.errors import DefinitionError
from perdure.tools.subagent import SubagentTool, choice, there_are
from perdure.tools.tool import Tool
from perdure.types.background import AT_ONCE, MOST_AT_ONCE, AsCollect, AsTell
from perdure.types.wire import AsSubagent

START, COLLECT, TELL = "start_agent", "collect_agent", "tell_agent"

Handle = Annotated[str, Field(description=f"As {START} gave it: b1, b2, …", min_length=1, max_length=50)]


def background(agents: Sequence[Any], *, at_once: int = AT_ONCE) -> list[Tool]:
    """Tools by which the model has any of ``agents`` (agents, or names of agents that the same worker serves) work in
    background: ``Agent(…, tools=[search, *background([researcher])])``.

    ``start_agent(agent_name, message)`` returns a handle at once; ``collect_agent(handle, wait=True)`` gives the answer
    of one, and waits for it unless told not to; ``tell_agent(handle, message)`` sends a message to one that runs.
    ``at_once`` of them, up to 20, run at the same time. They end with the run that started them. Raises
    ``DefinitionError``.
    """
    form = choice("background", agents, START)
    if not isinstance(at_once, int) or isinstance(at_once, bool) or not 1 <= at_once <= MOST_AT_ONCE:
        raise DefinitionError(
            f"background: at_once is {at_once!r:.50}; it can be 1 to {MOST_AT_ONCE}",
            hint=f"Leave it out for {AT_ONCE}.",
        )

    def start(arguments: Mapping[str, Any]) -> AsSubagent:
        given = form.validate(arguments)
        return AsSubagent(agent=given["agent_name"], message=given["message"], background=at_once)

    said = (
        "Start another agent in background: it works while you go on. Gives a handle, by which "
        f"{COLLECT} gets its answer and {TELL} sends it a message. Uncollected agents are stopped when you finish. "
    )
    started = SubagentTool(
        START, said + there_are(agents), form.parameters, start, agents=agents, chosen=True, answers=False
    )
    return [started, _collect(), _tell()]


def _collect() -> SubagentTool:
    def call(
        handle: Handle,
        wait: Annotated[bool, Field(description="Until it has ended; false only says how it stands.")] = True,
    ) -> None:
        """Only its signature counts."""

    form = Tool(call, name=COLLECT)

    def collect(arguments: Mapping[str, Any]) -> AsCollect:
        return AsCollect(**form.validate(arguments))

    said = "Get the answer of an agent that works in background."
    return SubagentTool(COLLECT, said, form.parameters, collect, agents=[], chosen=True)


def _tell() -> SubagentTool:
    def call(handle: Handle, message: str) -> None:
        """Only its signature counts."""

    form = Tool(call, name=TELL)

    def tell(arguments: Mapping[str, Any]) -> AsTell:
        return AsTell(**form.validate(arguments))

    said = "Send a message to an agent that works in background: it reads it before its next step."
    return SubagentTool(TELL, said, form.parameters, tell, agents=[], chosen=True, answers=False)
