"""The epilogue of an iteration: what is to become of a reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..agent import Agent
from ..errors import ToolError
from ..loop.calls import malformed, unknown
from ..ports import ModelCall, ModelReply
from ..tools import CallbackTool, RemoteTool, RunContext, SubagentTool, Tool, shortened
from ..types.messages import FinishReason, Message, TextPart, ToolCallPart, Usage
from ..types.wire import AgentLimits, AsActivity, Call, Disposition, Finish, ModelOutput, Refused
from .approving import Approving
from .author_loop import AuthorLoop
from .finishing import Ending, Finishing, failing
from .stepping import Stepped
from .unpriced import uncounted, unpriced


class Epilogue:
    """Reads replies: which calls run, and how; whether it is the answer."""

    def __init__(self, author: AuthorLoop, approving: Approving) -> None:
        self._author, self._approving = author, approving
        self._finishing = Finishing(author)

    async def output(self, agent: Agent, call: ModelCall, message: Message, told: RunContext[Any]) -> ModelOutput:
        """What control needs to know of ``message``."""
        task = call.input
        wrong = unpriced(agent, message, inherited=task.cost_limited)
        wrong = wrong or uncounted(agent, message, task.used, inherited=task.cost_limited)
        ending = await self._finishing.read(agent, call, message, told) if wrong is None else failing(message, wrong)
        return ModelOutput(
            text=message.text,
            calls=tuple(
                [
                    await self._approving.plan(agent, one, told, task.lineage)
                    for one in await self._plan(agent, message, ending.answered)
                ]
            ),
            finish=ending.finish,
            rejected=ending.rejected,
            reminder=ending.reminder,
            failed=ending.failed,
            finish_reason=_reason(message, ending),
            usage=message.usage or Usage(),
            cost_usd=message.cost_usd,
            model=message.model or "",
            unasked=message.finish_reason == "veto",
            limits=_limits(agent),
        )

    async def stepped(self, agent: Agent, stepped: Stepped, told: RunContext[Any]) -> Finish:
        """The answer of a step policy (:meth:`Finishing.stepped`)."""
        return await self._finishing.stepped(agent, stepped, told)

    async def _plan(self, agent: Agent, message: Message, answered: Mapping[str, Disposition]) -> tuple[Call, ...]:
        """What is to become of each call. Validators of the author's run on the author's side."""
        tools = [agent.toolbox.get(part.name) for part in message.tool_calls if part.id not in answered]
        if any(tool is not None and tool.validates_by_code for tool in tools):
            planned = await self._author.run(f"validators of agent {agent.name}", _plan_all, agent, message, answered)
            return cast(tuple[Call, ...], planned)
        return _plan_all(agent, message, answered)


def answer(agent: Agent, finish: Finish) -> ModelReply:
    """What a step policy has answered in a model's place; nothing is paid."""
    said = (TextPart(text=finish.content),) if finish.content else ()
    message = Message(role="assistant", parts=said, finish_reason="stop", usage=Usage(), cost_usd=0.0)
    return ModelReply(
        ModelOutput(text=message.text, finish=finish, cost_usd=0.0, unasked=True, limits=_limits(agent)), message
    )


def _limits(agent: Agent) -> AgentLimits:
    """What the loop is to keep to from now on."""
    return AgentLimits(
        max_iterations=agent.max_iterations,
        on_limit=agent.on_limit,
        protocol=agent.finish,
        run=agent.limits.of_run,
        turn=agent.limits.of_turn,
    )


def _reason(message: Message, ending: Ending) -> FinishReason:
    """Why the reply ended; that it calls the finish tool is its end, and no call for more."""
    reason = message.finish_reason or "stop"
    return "stop" if ending.finish is not None and reason == "tool_calls" else reason


def _plan_all(agent: Agent, message: Message, answered: Mapping[str, Disposition]) -> tuple[Call, ...]:
    return tuple(
        Call(id=part.id, name=part.name, arguments=part.arguments, disposition=answered[part.id])
        if part.id in answered
        else plan(agent, part)
        for part in message.tool_calls
    )


def plan(agent: Agent, part: ToolCallPart) -> Call:
    """What is to become of a call, from the very tool whose schema the model was shown."""
    tool = agent.toolbox.get(part.name)
    disposition: Disposition
    if tool is None:
        return Call(
            id=part.id,
            name=part.name,
            arguments=part.arguments,
            disposition=Refused(text=unknown(part.name, [spec.name for spec in agent.specs])),
        )
    if part.malformed is not None:
        disposition = Refused(text=malformed(part))
    else:
        try:
            disposition = _allowed(tool, part)
        except ToolError as error:
            disposition = Refused(text=shortened(str(error)))
    return Call(
        id=part.id,
        name=part.name,
        arguments=part.arguments,
        definition=tool.definition,
        disposition=disposition,
    )


def _allowed(tool: Tool, part: ToolCallPart) -> Disposition:
    """Raises ``ToolError`` for arguments that do not fit."""
    if isinstance(tool, SubagentTool | RemoteTool | CallbackTool):
        return tool.ask(part.arguments)
    tool.validate(part.arguments)
    return AsActivity(
        timeout=tool.timeout,
        idempotent=tool.idempotent,
        retries=tool.retries,
        task_queue=tool.task_queue,
        inline=tool.inline,
        toolset=tool.toolset,
    )
