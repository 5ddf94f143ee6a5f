"""The bare model call: prologue (prompt and request), the streamed call, epilogue (what is to become of the reply)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from temporalio import activity

from ..agent import Agent
from ..errors import (
    DefinitionError,
    InvalidInputError,
    MalformedReplyError,
    ToolError,
    TruncatedStreamError,
)
from ..loop.calls import malformed, unknown, with_ids
from ..loop.finish import TAG_PROMPT, classify, forced
from ..ports import Completed, ModelCall, ModelReply, ModelRequest, Provider, StreamEvent
from ..tools import Memory, RunContext
from ..tools.memory import Writes
from ..types.messages import Message, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean
from ..types.wire import (
    MODEL_ACTIVITY,
    AgentLimits,
    AsActivity,
    Call,
    Disposition,
    Finish,
    ModelInput,
    ModelOutput,
    Refused,
)
from .agents import Agents
from .author_loop import AuthorLoop

INSTRUCTIONS = 60.0
"""Seconds that an agent's function of instructions may take."""

Cost = Callable[[str, str, Usage], float | None]


class ModelActivity:
    """Calls models for the agents that this worker serves."""

    def __init__(
        self,
        agents: Agents,
        provider: Callable[[Agent], Provider],
        author: AuthorLoop,
        cost: Cost,
        *,
        resources: Callable[[], Any] = lambda: None,
        memory: Callable[[Writes], Memory] = lambda writes: Memory(writes=writes),
    ) -> None:
        """``memory`` gives the memory of one call, ``resources`` what the lifespan yielded."""
        self._agents = agents
        self._provider = provider
        self._author = author
        self._cost = cost
        self._resources = resources
        self._memory = memory

    @activity.defn(name=MODEL_ACTIVITY)
    async def model(self, call: Any) -> Any:
        """The activity. Stages stand between it and Temporal: it is given a ``ModelCall``, never the JSON."""
        return await self.call(call)

    async def call(self, call: ModelCall) -> ModelReply:
        """Call the model; an ending (``purpose="close"``) is only passed on to be recorded.

        Raises ``InvalidInputError`` for a context that does not fit the agent, and where there is nothing to answer;
        ``DefinitionError`` for overrides that do not fit it.
        """
        if call.input.purpose == "close":
            return ModelReply(ModelOutput(), message=None)
        agent = self._agents.get(call.input.agent).overridden(call.input.overrides)
        context: Any = call.input.context
        if agent.has_context:
            context = await self._author.run(f"context of agent {agent.name}", agent.read_context, context)
        said = _said(call)
        system = await self._system(agent, call, context)
        completed = await self._stream(agent, call, self._request(agent, call, said, system))
        return await self._reply(agent, call.input, completed, system)

    async def _system(self, agent: Agent, call: ModelCall, context: Any) -> str | None:
        instructions = agent.instructions
        if callable(instructions):
            instructions = await self._instructions(agent, instructions, call, context)
        if agent.finish == "tag":
            return f"{instructions}\n\n{TAG_PROMPT}" if instructions else TAG_PROMPT
        return instructions or None

    async def _instructions(self, agent: Agent, fn: Callable[..., Any], call: ModelCall, context: Any) -> str | None:
        name, task = f"instructions of agent {agent.name}", call.input
        told: RunContext[Any] = RunContext(
            run_id=task.context_id,
            task_id=task.task_id,
            agent=task.agent,
            iteration=task.iteration,
            context=context,
            resources=self._resources(),
            memory=self._memory(call.writes),
        )
        try:
            async with asyncio.timeout(INSTRUCTIONS) as limit:
                said = await self._author.run(name, fn, told)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"the {name} did not return within {INSTRUCTIONS:g} s") from None
        finally:
            told.memory.close()
        if said is not None and not isinstance(said, str):
            raise DefinitionError(
                f"the {name} returned {type(said).__name__}", hint="Return the system prompt as text, or None."
            )
        return said and clean(said)

    def _request(self, agent: Agent, call: ModelCall, said: list[Message], system: str | None) -> ModelRequest:
        forcing = call.input.purpose == "force_finish"
        return ModelRequest(
            model=agent.model_name,
            messages=said,
            system=system,
            tools=() if forcing else agent.toolbox.specs,
            settings=agent.settings,
            provider_options=agent.provider_options,
            files=call.files,
        )

    async def _stream(self, agent: Agent, call: ModelCall, request: ModelRequest) -> Completed:
        """Read the stream to its end. A stream without ``Completed`` was cut, and nothing of it counts."""
        call.asking(agent.model)
        events = self._provider(agent).stream(request)
        last: StreamEvent | None = None
        try:
            async for event in events:
                last = event
                call.emit(event)
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()
        if not isinstance(last, Completed):
            raise TruncatedStreamError(f"the stream of {agent.model} ended before its reply was complete")
        return last

    async def _reply(self, agent: Agent, task: ModelInput, completed: Completed, system: str | None) -> ModelReply:
        provider = completed.provider or agent.provider_name  # of a chain, the one that answered
        cost = self._cost(provider, completed.model or agent.model_name, completed.usage)
        message = Message(
            role="assistant",
            parts=with_ids([_sound(part) for part in completed.parts if not _cut_off(part, completed)], task.op),
            model=completed.model or agent.model_name,
            finish_reason=completed.finish_reason,
            usage=completed.usage,
            cost_usd=cost,
        )
        if any(part.type == "tool_result" for part in message.parts):
            raise MalformedReplyError(f"{agent.model} answered with a tool result")
        output = ModelOutput(
            text=message.text,
            calls=await self._plan(agent, message),
            finish=self._finish(agent, task, message, completed),
            finish_reason=completed.finish_reason,
            usage=completed.usage,
            cost_usd=cost,
            model=message.model or "",
            limits=AgentLimits(max_iterations=agent.max_iterations, on_limit=agent.on_limit, protocol=agent.finish),
        )
        return ModelReply(output, message, system)

    async def _plan(self, agent: Agent, message: Message) -> tuple[Call, ...]:
        """What is to become of each call. Validators of the author's run on the author's side."""
        tools = [agent.toolbox.get(part.name) for part in message.tool_calls]
        if any(tool is not None and tool.validates_by_code for tool in tools):
            planned = await self._author.run(f"validators of agent {agent.name}", _plan_all, agent, message)
            return cast(tuple[Call, ...], planned)
        return _plan_all(agent, message)

    def _finish(self, agent: Agent, task: ModelInput, message: Message, completed: Completed) -> Finish | None:
        if task.purpose == "force_finish":
            return forced(agent.finish, message.text)
        return classify(agent.finish, message, completed.finish_reason)


def _said(call: ModelCall) -> list[Message]:
    """The conversation without system prompts: these are given apart."""
    said = [message for message in (*call.prefix, *call.fresh) if message.role != "system"]
    if not said:
        raise InvalidInputError(
            "there is nothing to answer: the conversation has no messages, and the turn brought none",
            hint="Send a message, or go on from a conversation that has some (history, or the id of an earlier one).",
        )
    return said


def _cut_off(part: Part, reply: Completed) -> bool:
    """Whether ``part`` is a call that the model could not write to its end: it is none."""
    ended = reply.finish_reason in ("length", "content_filter", "refusal")
    return ended and isinstance(part, ToolCallPart) and part.malformed is not None


def _sound(part: Part) -> Part:
    """``part`` as it can be stored: text without lone surrogates, and arguments that are JSON.

    Whatever a provider lets through must not fail here: the reply is paid for.
    """
    if isinstance(part, ToolCallPart):
        try:
            part.model_dump_json()
        except (ValueError, RecursionError) as error:
            shown = clean(f"{error}: {str(part.arguments)[:200]}")
            return part.model_copy(update={"arguments": {}, "malformed": part.malformed or shown})
        return part
    if isinstance(part, TextPart | ThinkingPart) and (sound := clean(part.text)) is not part.text:
        return part.model_copy(update={"text": sound})
    return part


def _plan_all(agent: Agent, message: Message) -> tuple[Call, ...]:
    return tuple(plan(agent, part) for part in message.tool_calls)


def plan(agent: Agent, part: ToolCallPart) -> Call:
    """What is to become of a call, from the very tool whose schema the model was shown."""
    tool = agent.toolbox.get(part.name)
    disposition: Disposition
    if tool is None:
        return Call(
            id=part.id,
            name=part.name,
            arguments=part.arguments,
            disposition=Refused(text=unknown(part.name, [spec.name for spec in agent.toolbox.specs])),
        )
    disposition = AsActivity(
        timeout=tool.timeout,
        idempotent=tool.idempotent,
        retries=tool.retries,
        task_queue=tool.task_queue,
        inline=tool.inline,
    )
    if part.malformed is not None:
        disposition = Refused(text=malformed(part))
    else:
        try:
            tool.validate(part.arguments)
        except ToolError as error:
            disposition = Refused(text=str(error))
    return Call(
        id=part.id,
        name=part.name,
        arguments=part.arguments,
        definition=tool.definition,
        disposition=disposition,
    )
