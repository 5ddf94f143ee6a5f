"""The iteration stage: prologue (prompt and request), the call further in, epilogue (what becomes of the reply)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..agent import Agent
from ..hooks import HookSet
from ..ports import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..tools import Memory, RunContext
from ..tools.memory import Writes
from ..types.wire import ModelOutput, ToolOutput
from .agents import Agents
from .approving import Approving
from .author_loop import AuthorLoop
from .branching import Waits
from .delegating import Delegating
from .elsewhere import planned
from .epilogue import Epilogue, answer
from .firing import Firing
from .prologue import Prologue
from .stepping import Stepping
from .toolsets import Toolsets
from .unpriced import priced


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
        forces: Callable[[Agent], bool] = lambda _: True,
        toolsets: Toolsets | None = None,
    ) -> None:
        """``memory`` gives the memory of one call, ``resources`` what the lifespan yielded.

        ``hooks`` are those of the worker. ``forces`` says whether an agent's models can be made to call a tool.
        """
        self._agents = agents
        self._author = author
        self._toolsets = toolsets
        self._resources = resources
        self._memory = memory
        self._firing = Firing(author, HookSet() if hooks is None else hooks)
        self._delegating = Delegating(author, self._firing.on)
        self._stepping = Stepping(author, agents, self._firing)
        self._prologue = Prologue(author, forces)
        self._approving = Approving(author, agents.find)
        self._epilogue = Epilogue(author, self._approving)

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call; an ending (``purpose="close"``) is only passed on to be recorded, and hooks alone are
        told of a reminder.

        Raises ``InvalidInputError`` for a context that does not fit the agent, and where there is nothing to answer;
        ``DefinitionError`` for overrides that do not fit it.
        """
        if call.input.purpose == "close":
            await self._firing.at_the_end(self._agents.get, call, lambda agent: self._told(agent, call))
            return ModelReply(ModelOutput(), message=None)
        if call.input.purpose == "remind":
            await self._reminded(call)
            return ModelReply(ModelOutput(), message=None)
        call.base = call.agent = self._agents.get(call.input.agent)
        call.told = await self._told(call.agent, call)
        try:
            if self._toolsets is not None:
                call.base = await self._toolsets.offered(call.base, call, call.told)
            call.agent = call.base.overridden(call.input.overrides, self._agents.tools)
            reply = await self._iteration(call.agent, call, call.told, next)
        except Exception as error:
            await self._firing.failed(call.agent, call, call.told, error)
            raise
        else:
            if call.pinned is not None:
                reply.output = reply.output.model_copy(update={"pinned": call.pinned})
            return reply
        finally:
            call.told.memory.close()

    async def _reminded(self, call: ModelCall) -> None:
        agent = self._agents.get(call.input.agent)
        told = await self._told(agent, call)
        try:
            await self._firing.reminded(agent, call, told)
        finally:
            told.memory.close()

    async def _iteration(self, agent: Agent, call: ModelCall, told: RunContext[Any], next: NextModel) -> ModelReply:
        if call.input.purpose == "compact":
            call.request = await self._prologue.request(agent, call, told)
            return priced(agent, await next(call), inherited=call.input.cost_limited)
        await self._firing.messages(agent, call, told)
        await self._delegating.after(agent, call, told)
        stepped = await self._stepping.step(agent, call, told)
        if isinstance(stepped, Waits):
            return stepped.reply(call)
        if stepped is not None:
            call.agent = agent = stepped.agent
        if stepped is not None and stepped.finish is not None:
            reply = answer(agent, await self._epilogue.stepped(agent, stepped, told))
        else:
            reply = await self._asked(agent, call, told, next)
        assert reply.message is not None, "a model says something"
        reply.output = await self._firing.finished(agent, call, told, reply.message, reply.output)
        if stepped is not None:
            stepped.onto(reply, call)
        return reply

    async def _asked(self, agent: Agent, call: ModelCall, told: RunContext[Any], next: NextModel) -> ModelReply:
        call.request = request = await self._prologue.request(agent, call, told)
        reply = await next(call)
        assert reply.message is not None, "a model says something"
        output = await self._epilogue.output(agent, call, reply.message, told)
        reply.output = planned(agent, await self._delegating.before(agent, told, output), self._firing.on)
        await self._firing.asked(agent, told, reply.output)
        reply.system = request.system  # hooks changed what this call was asked, not what the agent's prompt is
        return reply

    async def render_input(self, agent: str, plain: Mapping[str, Any]) -> str:
        """What the model is shown of a typed input of ``agent``. Raises ``InvalidInputError``."""
        found = self._agents.get(agent)
        rendered: str = await self._author.run(f"input of agent {agent}", found.render_input, plain)
        return rendered

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Run it, if it may: rules on approvals are asked once more. Hooks are told of what it asks."""
        task = call.input
        agent, tool = self._agents.get(task.agent), self._agents.tool(task.agent, task.name)
        output = await self._approving.tool(agent, tool, call, next, lambda: self._told(agent, call))
        return await self._firing.waits(agent, call, output, lambda: self._told(agent, call))

    async def _told(self, agent: Agent | None, call: ModelCall | ToolCall) -> RunContext[Any]:
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
            auth_context=call.auth,
            resources=self._resources(),
            memory=self._memory(call.writes),
        )
