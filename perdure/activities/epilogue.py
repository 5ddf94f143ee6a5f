"""The epilogue of an iteration: what is to become of a reply."""

from __future__ import annotations

from typing import cast

from ..agent import Agent
from ..errors import ToolError
from ..loop.calls import malformed, unknown
from ..loop.finish import classify, forced
from ..ports import ModelCall
from ..types.messages import Message, ToolCallPart, Usage
from ..types.wire import AgentLimits, AsActivity, Call, Disposition, Finish, ModelOutput, Refused
from .author_loop import AuthorLoop


class Epilogue:
    """Reads replies: which calls run, and how; whether it is the answer."""

    def __init__(self, author: AuthorLoop) -> None:
        self._author = author

    async def output(self, agent: Agent, call: ModelCall, message: Message) -> ModelOutput:
        """What control needs to know of ``message``."""
        return ModelOutput(
            text=message.text,
            calls=await self._plan(agent, message),
            finish=_finish(agent, call, message),
            finish_reason=message.finish_reason or "stop",
            usage=message.usage or Usage(),
            cost_usd=message.cost_usd,
            model=message.model or "",
            limits=AgentLimits(max_iterations=agent.max_iterations, on_limit=agent.on_limit, protocol=agent.finish),
        )

    async def _plan(self, agent: Agent, message: Message) -> tuple[Call, ...]:
        """What is to become of each call. Validators of the author's run on the author's side."""
        tools = [agent.toolbox.get(part.name) for part in message.tool_calls]
        if any(tool is not None and tool.validates_by_code for tool in tools):
            planned = await self._author.run(f"validators of agent {agent.name}", _plan_all, agent, message)
            return cast(tuple[Call, ...], planned)
        return _plan_all(agent, message)


def _finish(agent: Agent, call: ModelCall, message: Message) -> Finish | None:
    if call.input.purpose == "force_finish":
        return forced(agent.finish, message.text)
    return classify(agent.finish, message, message.finish_reason or "stop")


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
