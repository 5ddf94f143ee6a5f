"""What a reply means for the loop: which calls run, and how; whether it is the answer, and whether limits hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..agent.spec import AgentSpec
from ..agent.validation import build_missing_price_error, build_missing_usage_error
from ..errors import DefinitionError, ToolError
from ..loop.transcript import build_malformed_arguments_text, build_unknown_tool_text
from ..tools import CallbackTool, RemoteTool, RunContext, SubagentTool, Tool, truncate_error_text
from ..types.messages import FinishReason, Message, TextPart, ToolCallPart, Usage
from ..types.tool_calls import ActivityCall, Call, Disposition, RefusedCall
from ..types.wire import AgentLimits, CompactOutput, FinalAnswer, ModelInput, ModelOutput
from .answer import AnswerReader, ReplyOutcome, build_failed_outcome
from .approvals import ApprovalGate
from .author_loop import AuthorLoop
from .call import ModelReply


def find_missing_price(agent: AgentSpec, message: Message, *, inherited: bool = False) -> DefinitionError | None:
    """Return the error for a reply without a price that a limit ``cost_usd`` needs, or None. ``inherited``: the run's
    parent has such a limit."""
    usage = message.usage
    if (
        not (inherited or agent.limits.limits_cost)
        or message.cost_usd is not None
        or usage is None
        or not usage.total_tokens
    ):
        return None
    return build_missing_price_error(agent.name, message.model or agent.model_name)


def find_missing_usage(
    agent: AgentSpec, message: Message, used: Usage, *, inherited: bool = False
) -> DefinitionError | None:
    """Return the error for a reply without usage if none of the turn's replies had any (``used``), or None.
    ``inherited``: the run's parent has a cost limit. A reply that lacks it beside others that have it passes, and so
    does a vetoed, refused or filtered one."""
    count = used + (message.usage or Usage())
    if count.total_tokens or message.cost_usd or message.finish_reason in ("veto", "refusal", "content_filter"):
        return None
    if agent.limits.limits_tokens:
        limit = "tokens"
    elif inherited or agent.limits.limits_cost:
        limit = "cost_usd"
    else:
        return None
    return build_missing_usage_error(agent.name, message.model or agent.model_name, limit)


def check_summary_price(agent: AgentSpec, summary: CompactOutput, *, inherited: bool = False) -> None:
    """Raise ``DefinitionError`` for a summary that has no price: another model may have written it."""
    message = Message(role="assistant", model=summary.model or None, usage=summary.usage, cost_usd=summary.cost_usd)
    if (error := find_missing_price(agent, message, inherited=inherited)) is not None:
        raise error


class ReplyReader:
    """Reads replies: which calls run, and how; whether a reply is the answer."""

    def __init__(self, author: AuthorLoop, approving: ApprovalGate) -> None:
        self._author, self._approving = author, approving

    async def build_output(
        self, agent: AgentSpec, task: ModelInput, message: Message, ctx: RunContext[Any]
    ) -> ModelOutput:
        """Build the output of ``message`` for the loop."""
        error = find_missing_price(agent, message, inherited=task.cost_limited)
        error = error or find_missing_usage(agent, message, task.used, inherited=task.cost_limited)
        outcome = (
            await AnswerReader(self._author, agent, task, ctx).read_reply(message)
            if error is None
            else build_failed_outcome(message, error)
        )
        return ModelOutput(
            text=message.text,
            calls=tuple(
                [
                    await self._approving.plan_approval(agent, planned, ctx, task.lineage)
                    for planned in await self._plan_calls(agent, message, outcome.answered)
                ]
            ),
            finish=outcome.finish,
            rejected=outcome.rejected,
            cut=outcome.cut,
            reminder=outcome.reminder,
            failed=outcome.failed,
            finish_reason=_choose_finish_reason(message, outcome),
            usage=message.usage or Usage(),
            cost_usd=message.cost_usd,
            model=message.model or "",
            is_synthetic=message.finish_reason == "veto",
            limits=_build_agent_limits(agent),
        )

    async def _plan_calls(
        self, agent: AgentSpec, message: Message, answered: Mapping[str, Disposition]
    ) -> tuple[Call, ...]:
        """Plan each call. The author's validators run on the author's side."""
        tools = [agent.toolbox.get(part.name) for part in message.tool_calls if part.id not in answered]
        if any(tool is not None and tool.validates_by_code for tool in tools):
            planned = await self._author.run(
                f"validators of agent {agent.name}", _plan_reply_calls, agent, message, answered
            )
            return cast(tuple[Call, ...], planned)
        return _plan_reply_calls(agent, message, answered)


def build_step_reply(agent: AgentSpec, finish: FinalAnswer) -> ModelReply:
    """Build the reply of a step policy that answers in the model's place, without cost."""
    parts = (TextPart(text=finish.content),) if finish.content else ()
    message = Message(role="assistant", parts=parts, finish_reason="stop", usage=Usage(), cost_usd=0.0)
    return ModelReply(
        ModelOutput(
            text=message.text, finish=finish, cost_usd=0.0, is_synthetic=True, limits=_build_agent_limits(agent)
        ),
        message,
    )


def _build_agent_limits(agent: AgentSpec) -> AgentLimits:
    """Build the limits that the loop enforces from now on."""
    return AgentLimits(
        max_iterations=agent.max_iterations,
        on_limit=agent.on_limit,
        protocol=agent.finish,
        run=agent.limits.of_run,
        turn=agent.limits.of_turn,
    )


def _choose_finish_reason(message: Message, outcome: ReplyOutcome) -> FinishReason:
    """Return the reply's finish reason; a reply whose answer is a call of the finish tool has "stop"."""
    reason = message.finish_reason or "stop"
    return "stop" if outcome.finish is not None and reason == "tool_calls" else reason


def _plan_reply_calls(agent: AgentSpec, message: Message, answered: Mapping[str, Disposition]) -> tuple[Call, ...]:
    return tuple(
        Call(id=part.id, name=part.name, arguments=part.arguments, disposition=answered[part.id])
        if part.id in answered
        else plan_tool_call(agent, part)
        for part in message.tool_calls
    )


def plan_tool_call(agent: AgentSpec, part: ToolCallPart) -> Call:
    """Plan a call, with the very tool whose schema the model was shown."""
    tool = agent.toolbox.get(part.name)
    disposition: Disposition
    if tool is None:
        return Call(
            id=part.id,
            name=part.name,
            arguments=part.arguments,
            disposition=RefusedCall(text=build_unknown_tool_text(part.name, [spec.name for spec in agent.specs])),
        )
    if part.malformed is not None:
        disposition = RefusedCall(text=build_malformed_arguments_text(part))
    else:
        try:
            disposition = _choose_disposition(tool, part)
        except ToolError as error:
            disposition = RefusedCall(text=truncate_error_text(str(error)))
    return Call(
        id=part.id,
        name=part.name,
        arguments=part.arguments,
        definition=tool.definition,
        disposition=disposition,
    )


def _choose_disposition(tool: Tool, part: ToolCallPart) -> Disposition:
    """Choose how a call runs. Raises ``ToolError`` for invalid arguments."""
    if isinstance(tool, SubagentTool | RemoteTool | CallbackTool):
        return tool.build_disposition(part.arguments)
    tool.validate(part.arguments)
    return ActivityCall(
        timeout=tool.timeout,
        idempotent=tool.idempotent,
        retries=tool.retries,
        task_queue=tool.task_queue,
        inline=tool.inline,
        toolset=tool.toolset,
    )
