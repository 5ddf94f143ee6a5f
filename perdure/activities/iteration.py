"""The iteration stage: prologue (prompt and request), the inner call, epilogue (planning of the reply's calls)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..agent.agent import Agent
from ..agent.overrides import merge_caller_override
from ..agent.validation import build_instruction_arguments, build_missing_price_error, build_missing_usage_error
from ..errors import DefinitionError, InvalidInputError, ToolError
from ..hooks import HookSet
from ..loop.finish import REMINDER_ID, TAG_PROMPT
from ..loop.transcript import build_malformed_arguments_text, build_unknown_tool_text
from ..ports.model import ModelRequest
from ..stages.stage import (
    ConversationCall,
    ModelCall,
    ModelReply,
    NextRequest,
    NextTool,
    RequestCall,
    ToolCall,
    share_fields,
)
from ..tools import CallbackTool, Memory, RemoteTool, RunContext, SubagentTool, Tool, truncate_error_text
from ..types.interface import FINISH_TOOL
from ..types.messages import FinishReason, Message, TextPart, ToolCallPart, Usage, clean_text
from ..types.tool_calls import ActivityCall, Call, Disposition, RefusedCall
from ..types.transcript import Transcript, drop_system_messages
from ..types.wire import AgentLimits, FinalAnswer, ModelOutput, ToolOutput
from .agents import Agents
from .approvals import ApprovalGate
from .author_loop import AuthorLoop, OverdueError
from .finish import AnswerReader, ReplyOutcome, build_failed_outcome
from .hooks import HookRunner
from .run_context import CreateMemory
from .step_policy import BranchWait, StepPolicy
from .toolsets import Toolsets

# ---
# The prologue of an iteration: the request.


INSTRUCTIONS_TIMEOUT = 60.0
"""Seconds that an agent's instructions function may take."""


class RequestBuilder:
    """Builds requests. The author's code gets the run context ``told``."""

    def __init__(self, author: AuthorLoop, forces: Callable[[Agent], bool] = lambda _: True) -> None:
        """``forces`` returns whether all models of an agent can be forced to call a tool."""
        self._author = author
        self._can_force_tool = forces

    async def build_request(self, agent: Agent, call: ConversationCall, ctx: RunContext[Any]) -> ModelRequest:
        """Build the request of a model call. Raises ``InvalidInputError`` for a conversation without messages."""
        forcing = call.input.purpose == "force_finish"
        if forcing and agent.finish == "tool" and not self._can_force_tool(agent):
            call.new_messages = add_answer_template(call.new_messages, agent.output_type.template)
        messages = _select_request_messages(call)
        return ModelRequest(
            model=agent.model_name,
            messages=messages,
            system=await self._build_system_prompt(agent, ctx),
            # With a typed answer the tools stay as they are: other tools would invalidate the provider's cache.
            tools=() if forcing and agent.finish != "tool" else agent.specs,
            tool_choice=FINISH_TOOL if forcing and agent.finish == "tool" else None,
            settings=dict(agent.settings),
            provider_options=dict(agent.provider_options),
            files=call.files,
        )

    async def _build_system_prompt(self, agent: Agent, ctx: RunContext[Any]) -> str | None:
        parts = [
            part if isinstance(part, str) else await self._run_instructions(agent, part, ctx)
            for part in agent.instruction_parts
        ]
        if agent.finish == "tag":
            parts.append(TAG_PROMPT)
        return "\n\n".join(part for part in parts if part) or None

    async def _run_instructions(self, agent: Agent, fn: Callable[..., Any], ctx: RunContext[Any]) -> str | None:
        name = f"instructions of agent {agent.name}"
        if len(agent.instruction_parts) > 1:
            name += f" ({getattr(fn, '__name__', type(fn).__name__)})"
        try:
            prompt = await self._author.run(
                name, fn, *build_instruction_arguments(fn, ctx), timeout=INSTRUCTIONS_TIMEOUT
            )
        except OverdueError as error:
            raise TimeoutError(f"the {error}") from None
        if prompt is not None and not isinstance(prompt, str):
            raise DefinitionError(
                f"the {name} returned {type(prompt).__name__}", hint="Return the system prompt as text, or None."
            )
        return prompt and clean_text(prompt)


def add_answer_template(new_messages: Sequence[Message], template: str) -> list[Message]:
    """Return ``new_messages`` with the answer template in the engine's order to finish, for models that cannot be
    forced to call the tool."""
    order = f"If you cannot call {FINISH_TOOL}, write your answer into this template, and nothing else:\n{template}"
    index = max((index for index, message in enumerate(new_messages) if message.id == REMINDER_ID), default=None)
    if index is None:
        return [*new_messages, Message.user(order, id=REMINDER_ID)]
    ctx = Message.user(f"{new_messages[index].text}\n{order}", id=REMINDER_ID)
    return [*new_messages[:index], ctx, *new_messages[index + 1 :]]


def _select_request_messages(call: ConversationCall) -> Transcript:
    """Return the conversation without system prompts, which a request has separately. Raises ``InvalidInputError`` if
    it is empty."""
    messages = drop_system_messages(call.prefix, call.new_messages)
    if not messages:
        raise InvalidInputError(
            "there is nothing to answer: the conversation has no messages, and the turn has none",
            hint="Send a message, or go on from a conversation that has some (history, or the id of an earlier one).",
        )
    return messages


# ---
# Limits of cost or tokens and a reply without price or usage: the limit could not be enforced, so the run fails.


def find_missing_price(agent: Agent, message: Message, *, inherited: bool = False) -> DefinitionError | None:
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
    agent: Agent, message: Message, used: Usage, *, inherited: bool = False
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


def check_summary_price(agent: Agent, summary: ModelReply, *, inherited: bool = False) -> ModelReply:
    """Return ``summary``. Raises ``DefinitionError`` if it has no price: another model may have written it."""
    output = summary.output
    message = Message(role="assistant", model=output.model or None, usage=output.usage, cost_usd=output.cost_usd)
    if (error := find_missing_price(agent, message, inherited=inherited)) is not None:
        raise error
    return summary


# ---
# The epilogue of an iteration: the output of a reply.


class ReplyReader:
    """Reads replies: which calls run, and how; whether a reply is the answer."""

    def __init__(self, author: AuthorLoop, approving: ApprovalGate) -> None:
        self._author, self._approving = author, approving

    async def build_output(self, agent: Agent, call: ModelCall, message: Message, ctx: RunContext[Any]) -> ModelOutput:
        """Build the output of ``message`` for the loop."""
        task = call.input
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
        self, agent: Agent, message: Message, answered: Mapping[str, Disposition]
    ) -> tuple[Call, ...]:
        """Plan each call. The author's validators run on the author's side."""
        tools = [agent.toolbox.get(part.name) for part in message.tool_calls if part.id not in answered]
        if any(tool is not None and tool.validates_by_code for tool in tools):
            planned = await self._author.run(
                f"validators of agent {agent.name}", _plan_reply_calls, agent, message, answered
            )
            return cast(tuple[Call, ...], planned)
        return _plan_reply_calls(agent, message, answered)


def build_step_reply(agent: Agent, finish: FinalAnswer) -> ModelReply:
    """Build the reply of a step policy that answers in the model's place, without cost."""
    parts = (TextPart(text=finish.content),) if finish.content else ()
    message = Message(role="assistant", parts=parts, finish_reason="stop", usage=Usage(), cost_usd=0.0)
    return ModelReply(
        ModelOutput(
            text=message.text, finish=finish, cost_usd=0.0, is_synthetic=True, limits=_build_agent_limits(agent)
        ),
        message,
    )


def _build_agent_limits(agent: Agent) -> AgentLimits:
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


def _plan_reply_calls(agent: Agent, message: Message, answered: Mapping[str, Disposition]) -> tuple[Call, ...]:
    return tuple(
        Call(id=part.id, name=part.name, arguments=part.arguments, disposition=answered[part.id])
        if part.id in answered
        else plan_tool_call(agent, part)
        for part in message.tool_calls
    )


def plan_tool_call(agent: Agent, part: ToolCallPart) -> Call:
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


class IterationStage:
    """Builds requests and reads replies of the agents that this worker serves. The author's code that it runs gets a
    ``RunContext``."""

    def __init__(
        self,
        agents: Agents,
        author: AuthorLoop,
        *,
        resources: Callable[[], Any] = lambda: None,
        memory: CreateMemory = lambda writes, tenant: Memory(writes=writes, tenant=tenant),
        hooks: HookSet | None = None,
        forces: Callable[[Agent], bool] = lambda _: True,
        toolsets: Toolsets | None = None,
    ) -> None:
        """``memory`` returns the memory of one call of a tenant, ``resources`` what the lifespan yielded.

        ``hooks`` are the worker's. ``forces`` returns whether an agent's models can be forced to call a tool.
        """
        self._agents = agents
        self._author = author
        self._toolsets = toolsets
        self._resources = resources
        self._memory = memory
        self._hook_runner = HookRunner(author, hooks)
        self._step_policy = StepPolicy(author, agents, self._hook_runner)
        self._request_builder = RequestBuilder(author, forces)
        self._approval_gate = ApprovalGate(author, agents.find)
        self._reply_reader = ReplyReader(author, self._approval_gate)

    async def model(self, call: ConversationCall, next: NextRequest) -> ModelReply:
        """Around a model call; for an ending (``purpose="close"``) or a reminder (``"remind"``) only hooks run.

        Raises ``InvalidInputError`` for a context that does not fit the agent, and for a conversation without messages;
        and for client tools of an agent that takes none; ``DefinitionError`` for overrides that do not fit it.
        """
        if call.input.purpose == "close":
            await self._hook_runner.run_message_hooks_at_end(
                self._agents.get, call, lambda agent: self._build_run_context(agent, call)
            )
            return ModelReply(ModelOutput(), message=None)
        if call.input.purpose == "remind":
            await self._run_reminder(call)
            return ModelReply(ModelOutput(), message=None)
        base = agent = self._agents.get(call.input.agent)
        pinned = None
        ctx = await self._build_run_context(agent, call)
        try:
            if self._toolsets is not None:
                base, pinned = await self._toolsets.add_offered_tools(agent, call, ctx)
                base = await self._toolsets.add_client_tools(base, call, self._agents.tools)
            self._admit_callers(base, call)
            agent = base.overridden(call.input.overrides, self._agents.tools)
            reply = await self._run_iteration(base, agent, call, ctx, next)
        except Exception as error:
            await self._hook_runner.run_error_hooks(agent, call, ctx, error)
            raise
        else:
            if pinned is not None:
                reply.output = reply.output.model_copy(update={"pinned": pinned})
            return reply
        finally:
            ctx.memory.close()

    def _admit_callers(self, agent: Agent, call: ConversationCall) -> None:
        """Put what callers of a service ask for into the overrides of ``call``. Raises ``InvalidInputError`` for what
        the agent does not allow them, and for an agent that they may not call."""
        task = call.input
        if task.is_external and agent.internal:
            raise InvalidInputError(
                f"agent {agent.name!r} is internal, and a caller of a service has written to it",
                hint="Only other agents call it: Agent(…, internal=False) opens it.",
            )
        if task.caller_overrides is not None:
            overrides = merge_caller_override(agent, task.caller_overrides, task.overrides, self._agents.tools)
            call.input = task.model_copy(update={"overrides": overrides})

    async def _run_reminder(self, call: ConversationCall) -> None:
        agent = self._agents.get(call.input.agent)
        ctx = await self._build_run_context(agent, call)
        try:
            await self._hook_runner.run_reminder_hooks(agent, call, ctx)
        finally:
            ctx.memory.close()

    async def _run_iteration(
        self, base: Agent, agent: Agent, call: ConversationCall, ctx: RunContext[Any], next: NextRequest
    ) -> ModelReply:
        if call.input.purpose == "compact":
            request_call = await self._build_request_call(agent, call, ctx)
            return check_summary_price(agent, await next(request_call), inherited=call.input.cost_limited)
        await self._hook_runner.run_message_hooks(agent, call, ctx)
        await self._hook_runner.run_after_subagent(agent, call, ctx)
        stepped = await self._step_policy.run_policy(base, agent, call, ctx)
        if isinstance(stepped, BranchWait):
            return stepped.build_reply(call)
        if stepped is not None:
            agent = stepped.agent
        if stepped is not None and stepped.finish is not None:
            answers = AnswerReader(self._author, agent, call.input, ctx)
            reply = build_step_reply(agent, await answers.accept_step_answer(stepped))
        else:
            edited = stepped is not None and stepped.replaced is not None
            reply = await self._ask_model(await self._build_request_call(agent, call, ctx, edited=edited), next)
        assert reply.message is not None, "a model says something"
        reply.output = await self._hook_runner.run_finish_hooks(agent, call, ctx, reply.message, reply.output)
        if stepped is not None:
            stepped.add_to_reply(reply, call)
        return reply

    async def _build_request_call(
        self, agent: Agent, call: ConversationCall, ctx: RunContext[Any], *, edited: bool = False
    ) -> RequestCall:
        request = await self._request_builder.build_request(agent, call, ctx)
        return RequestCall(**share_fields(call), agent=agent, run_context=ctx, request=request, edited=edited)

    async def _ask_model(self, call: RequestCall, next: NextRequest) -> ModelReply:
        agent, ctx, system = call.agent, call.run_context, call.request.system
        reply = await next(call)
        assert reply.message is not None, "a model says something"
        output = await self._reply_reader.build_output(agent, call, reply.message, ctx)
        output = await self._hook_runner.run_before_subagent(agent, ctx, output)
        reply.output = self._hook_runner.plan_external_hooks(agent, output)
        await self._hook_runner.run_approval_hooks(agent, ctx, reply.output)
        reply.system = system  # hooks changed the prompt of this request only, not the agent's
        return reply

    async def render_input(self, agent: str, plain: Mapping[str, Any]) -> str:
        """Render a typed input of ``agent`` as text for the model. Raises ``InvalidInputError``."""
        served = self._agents.get(agent)
        rendered: str = await self._author.run(f"input of agent {agent}", served.render_input, plain)
        return rendered

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Run the call, if the approval rules, which are checked once more, allow it. Hooks run on its question."""
        task = call.input
        agent, tool = self._agents.get(task.agent), self._agents.find_tool(task.agent, task.name)
        output = await self._approval_gate.run_tool(
            agent, tool, call, next, lambda: self._build_run_context(agent, call)
        )
        return await self._hook_runner.run_question_hooks(
            agent, call, output, lambda: self._build_run_context(agent, call)
        )

    async def _build_run_context(self, agent: Agent | None, call: ConversationCall | ToolCall) -> RunContext[Any]:
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
            memory=self._memory(call.memory_writes, task.tenant),
            caller=task.caller,
            tenant=task.tenant,
            user=task.user,
        )
        run_context.grant_access = None if self._toolsets is None else self._toolsets.grants
        return run_context
