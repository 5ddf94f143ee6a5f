"""The agents that a worker serves, by name, and the worker's tools, which step policies may add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..agent.spec import AgentSpec
from ..errors import AgentNotFoundError, DefinitionError
from ..hooks import Hook
from ..tools import SubagentTool, Tool, Toolbox


class Agents:
    """Agents by name. Refuses two agents of one name, and a cycle of subagents."""

    def __init__(self, agents: Iterable[AgentSpec] = (), tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        """``tools`` are the worker's, which no agent has until a step adds one. Raises ``DefinitionError``."""
        self._agents: dict[str, AgentSpec] = {}
        self.tools = Toolbox(tools)
        if isinstance(agents, AgentSpec):
            raise DefinitionError(f"agents must be a list, not {agents!r}", hint=f"Write agents=[{agents.name}].")
        for agent in agents:
            self._add_with_subagents(agent)
        check_subagents(self._agents)
        self._freeze_agents()

    def add(self, agent: AgentSpec) -> None:
        """Serve ``agent`` too, and its subagents; adding the same object again has no effect. Raises
        ``DefinitionError``, and then changes nothing."""
        self.replace_agents(add=[agent])

    def replace_agents(self, remove: Iterable[str] = (), add: Iterable[AgentSpec] = ()) -> None:
        """Remove the agents named in ``remove`` and add ``add``, all at once; raises as :meth:`add`.

        A call in progress ends with the agent that it began with.
        """
        before = self._agents
        leaving = set(remove)
        self._agents = {name: agent for name, agent in before.items() if name not in leaving}
        try:
            for agent in add:
                self._add_with_subagents(agent)
            check_subagents(self._agents)
        except BaseException:
            self._agents = before
            raise
        self._freeze_agents()

    def _freeze_agents(self) -> None:
        for agent in self._agents.values():
            agent.freeze("served by a worker")

    def _add_with_subagents(self, agent: AgentSpec) -> None:
        if not isinstance(agent, AgentSpec):
            raise DefinitionError(
                f"a worker serves agents, not {agent!r:.100}", hint='Make one: Agent("name", "openai:gpt-5", …).'
            )
        present = self._agents.get(agent.name)
        if present is agent:
            return
        if present is not None:
            raise DefinitionError(
                f"two agents are called {agent.name!r}",
                hint="Agents of one worker need different names: rename one.",
            )
        self._agents[agent.name] = agent
        for subagent in _iter_callable_agents(agent):
            if isinstance(subagent, AgentSpec):
                self._add_with_subagents(subagent)

    def find(self, name: str) -> AgentSpec | None:
        """Return the agent of that name, or None."""
        return self._agents.get(name)

    def get(self, name: str) -> AgentSpec:
        """Return the agent of that name. Raises ``AgentNotFoundError``, which names the agents served."""
        agent = self._agents.get(name)
        if agent is None:
            here = ", ".join(sorted(self._agents)) or "none"
            raise AgentNotFoundError(
                f"no agent {name!r} on this worker (it serves: {here})",
                hint="Register it with a worker on this task queue, or correct the name.",
            )
        return agent

    def find_tool(self, agent: str, name: str) -> Tool | None:
        """Return the tool of that name: the agent's own, else one of the worker's; or None. Raises as :meth:`get`."""
        return self.get(agent).toolbox.get(name) or self.tools.get(name)

    def __iter__(self) -> Iterator[AgentSpec]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)


def check_hook_agents(hooks: Iterable[Hook], agents: Agents) -> None:
    """Raise ``DefinitionError`` for a hook of the worker whose ``agents`` are not all among ``agents``."""
    for hook in hooks:
        for name in map(_read_agent_name, hook.agents):
            if agents.find(name) is None:
                here = ", ".join(sorted(agent.name for agent in agents)) or "none"
                raise DefinitionError(
                    f"the hook {hook.name} of the worker calls agent {name!r}, which this worker does not serve",
                    hint=f"Pass it to the worker too, or correct the name; it serves: {here}.",
                )


def check_subagents(agents: Mapping[str, AgentSpec]) -> None:
    """Raise ``DefinitionError`` for a cycle of subagents, and for the name of an unknown agent.

    Agents that a model chooses among (``delegate``) may form a cycle: the run limits its depth.
    """
    below = {name: [_read_agent_name(one) for one in agent.subagents] for name, agent in agents.items()}
    for name, agent in agents.items():
        for subagent in map(_read_agent_name, _iter_callable_agents(agent)):
            if subagent not in below:
                of_hook = any(subagent == _read_agent_name(one) for hook in agent.hooks for one in hook.agents)
                raise DefinitionError(
                    f"agent {name!r} has a {'hook that calls' if of_hook else 'subagent'} {subagent!r}, "
                    "which this worker does not serve",
                    hint=f"Pass it to the worker too, or correct the name; it serves: {', '.join(sorted(below))}.",
                )
    for name in below:
        if cycle := _find_cycle(name, below, ()):
            raise DefinitionError(
                f"a cycle of subagents: {' → '.join(cycle)}",
                hint=f"They would call each other forever: remove {cycle[1]!r} from the subagents of {cycle[0]!r}.",
            )


def _iter_callable_agents(agent: AgentSpec) -> Iterator[AgentSpec | str]:
    """Yield all agents, or their names, that ``agent`` may call and that its step policies may branch to."""
    yield from agent.subagents
    for hook in agent.hooks:
        yield from hook.agents
    for tool in agent.toolbox:
        if isinstance(tool, SubagentTool):
            yield from tool.agents


def _read_agent_name(agent: AgentSpec | str) -> str:
    return agent if isinstance(agent, str) else agent.name


def _find_cycle(name: str, below: Mapping[str, Sequence[str]], path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path from ``name`` back to itself or to an agent already on the path; empty without a cycle."""
    if name in path:
        return (*path[path.index(name) :], name)
    for subagent in below[name]:
        if found := _find_cycle(subagent, below, (*path, name)):
            return found
    return ()
