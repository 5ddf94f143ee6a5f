"""The iteration stage: prologue (prompt and request), the call further in, epilogue (what becomes of the reply)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..agent import Agent
from ..hooks import HookSet
from ..ports import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..tools import Memory, RunContext
from ..tools.memory import Writes
from ..types.wire import ModelOutput, ToolOutput
from .agents import Agents
from .author_loop import AuthorLoop
from .epilogue import Epilogue
from .firing import Firing
from .prologue import Prologue


class IterationStage:
    """Knows the agents that this worker serves. An author's code that it runs is told of the run (``RunContext``)."""

    def __init__(
        self,
        agents: Agents,
        author: AuthorLoop,
        *,
        resources: Callable[[], Any] = lambda: None,
        memory: Callable[[Writes], Memory] = lambda writes: Memory(writes=writes),
        hooks: HookSet | None = None,
    ) -> None:
        """``memory`` gives the memory of one call, ``resources`` what the lifespan yielded.

        ``hooks`` are those of the worker.
        """
        self._agents = agents
        self._author = author
        self._resources = resources
        self._memory = memory
        self._firing = Firing(author, HookSet() if hooks is None else hooks)
        self._prologue = Prologue(author)
        self._epilogue = Epilogue(author)

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call; an ending (``purpose="close"``) is only passed on to be recorded.

        Raises ``InvalidInputError`` for a context that does not fit the agent, and where there is nothing to answer;
        ``DefinitionError`` for overrides that do not fit it.
        """
        if call.input.purpose == "close":
            await self._firing.at_the_end(self._agents.get, call, lambda agent: self._told(agent, call))
            return ModelReply(ModelOutput(), message=None)
        agent = self._agents.get(call.input.agent).overridden(call.input.overrides)
        call.agent, call.told = agent, await self._told(agent, call)
        try:
            return await self._iteration(agent, call, call.told, next)
        except Exception as error:
            await self._firing.failed(agent, call, call.told, error)
            raise
        finally:
            call.told.memory.close()

    async def _iteration(self, agent: Agent, call: ModelCall, told: RunContext[Any], next: NextModel) -> ModelReply:
        if call.input.purpose == "compact":
            call.request = await self._prologue.request(agent, call, told)
            return await next(call)
        await self._firing.messages(agent, call, told)
        call.request = request = await self._prologue.request(agent, call, told)
        reply = await next(call)
        assert reply.message is not None, "a model says something"
        output = await self._epilogue.output(agent, call, reply.message)
        reply.output = await self._firing.finished(agent, call, told, reply.message, output)
        reply.system = request.system  # hooks changed what this call was asked, not what the agent's prompt is
        return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Nothing to do."""
        return await next(call)

    async def _told(self, agent: Agent | None, call: ModelCall) -> RunContext[Any]:
        task = call.input
        context: Any = task.context
        if agent is not None and agent.has_context:
            context = await self._author.run(f"context of agent {agent.name}", agent.read_context, context)
        return RunContext(
            run_id=task.context_id,
            task_id=task.task_id,
            agent=task.agent,
            iteration=task.iteration,
            context=context,
            resources=self._resources(),
            memory=self._memory(call.writes),
        )
