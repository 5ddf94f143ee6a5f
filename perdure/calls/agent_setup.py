"""Prepares a call's agent: its tools, the overrides, and the context that the author's code is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..agent.overrides import merge_caller_override
from ..agent.spec import AgentSpec
from ..errors import InvalidInputError
from ..tools import Memory, RunContext
from ..types.messages import BlobRef
from ..types.wire import CompactInput, ModelInput
from .agents import Agents
from .author_loop import AuthorLoop
from .call import ConversationCall, ToolCall
from .context_parts import CreateMemory
from .iteration_hooks import HookRunner
from .toolsets import Toolsets


@dataclass(frozen=True, slots=True)
class PreparedAgent:
    """The agent of a call."""

    base: AgentSpec
    """Without the overrides of run and turn."""
    agent: AgentSpec
    run_context: RunContext[Any]
    pinned: BlobRef | None
    """The list of tools that the run pins with this call, if any."""


class AgentSetup:
    """Prepares agents that this worker serves."""

    def __init__(
        self,
        agents: Agents,
        author: AuthorLoop,
        hooks: HookRunner,
        *,
        resources: Callable[[], Any] = lambda: None,
        memory: CreateMemory = lambda writes, tenant: Memory(writes=writes, tenant=tenant),
        toolsets: Toolsets | None = None,
    ) -> None:
        """``memory`` returns the memory of one call of a tenant, ``resources`` what the lifespan yielded."""
        self._agents = agents
        self._author = author
        self._hook_runner = hooks
        self._resources = resources
        self._memory = memory
        self._toolsets = toolsets

    @asynccontextmanager
    async def prepare(
        self, call: ConversationCall[ModelInput] | ConversationCall[CompactInput]
    ) -> AsyncIterator[PreparedAgent]:
        """Prepare the agent of ``call`` for the block; hooks run on an error in it.

        Raises ``InvalidInputError`` for a context that does not fit the agent, for what a caller may not ask for, and
        for client tools of an agent that takes none; ``DefinitionError`` for overrides that do not fit it.
        """
        agent = self._agents.get(call.input.agent)
        ctx = await self.build_run_context(agent, call)
        try:
            base, pinned = agent, None
            if self._toolsets is not None:
                base, pinned = await self._toolsets.add_offered_tools(agent, call, ctx)
                base = await self._toolsets.add_client_tools(base, call, self._agents.tools)
            agent = base.overridden(self._admit_overrides(base, call), self._agents.tools)
            yield PreparedAgent(base, agent, ctx, pinned)
        except Exception as error:
            await self._hook_runner.run_error_hooks(agent, call, ctx, error)
            raise
        finally:
            ctx.memory.close()

    def _admit_overrides(
        self, agent: AgentSpec, call: ConversationCall[ModelInput] | ConversationCall[CompactInput]
    ) -> dict[str, Any] | None:
        """Put what callers of a service ask for into the overrides of ``call``, and return these. Raises
        ``InvalidInputError`` for what the agent does not allow them, and for an agent that they may not call."""
        task = call.input
        if task.is_external and agent.internal:
            raise InvalidInputError(
                f"agent {agent.name!r} is internal, and a caller of a service has written to it",
                hint="Only other agents call it: Agent(…, internal=False) opens it.",
            )
        if task.caller_overrides is not None:
            overrides = merge_caller_override(agent, task.caller_overrides, task.overrides, self._agents.tools)
            admitted: Any = task.model_copy(update={"overrides": overrides})
            call.input = admitted
        return call.input.overrides

    async def render_input(self, agent: str, plain: Mapping[str, Any]) -> str:
        """Render a typed input of ``agent`` as text for the model. Raises ``InvalidInputError``."""
        served = self._agents.get(agent)
        rendered: str = await self._author.run(f"input of agent {agent}", served.render_input, plain)
        return rendered

    async def build_run_context(
        self, agent: AgentSpec | None, call: ConversationCall[Any] | ToolCall
    ) -> RunContext[Any]:
        """Build the context that the author's code is given. Raises ``InvalidInputError`` for a context that does not
        fit the agent."""
        task = call.input
        context: Any = task.context
        if agent is not None and agent.has_context:
            context = await self._author.run(f"context of agent {agent.name}", agent.read_context, context)
        run_context = RunContext(
            run_id=task.context_id,
            task_id=task.task_id,
            agent=task.agent,
            iteration=task.iteration,
            context=context,
            auth_context=call.auth,
            resources=self._resources(),
            memory=self._memory(call.recording.memory_writes, task.tenant),
            caller=task.caller,
            tenant=task.tenant,
            user=task.user,
        )
        run_context.grant_access = None if self._toolsets is None else self._toolsets.grants
        return run_context
