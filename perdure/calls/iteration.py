"""The iteration stage: prologue (prompt and request), the inner call, epilogue (planning of the reply's calls)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..agent.spec import AgentSpec as Agent
from ..agent.validation import build_instruction_arguments, build_missing_price_error, build_missing_usage_error
from ..errors import DefinitionError, InvalidInputError, ToolError
from ..loop.finish import REMINDER_ID, TAG_PROMPT
from ..loop.transcript import build_malformed_arguments_text, build_unknown_tool_text
from ..ports import ModelRequest
from ..tools import CallbackTool, RemoteTool, RunContext, SubagentTool, Tool, truncate_error_text
from ..types.interface import FINISH_TOOL
from ..types.messages import FinishReason, Message, TextPart, ToolCallPart, Usage, clean_text
from ..types.tool_calls import ActivityCall, Call, Disposition, RefusedCall
from ..types.transcript import Transcript, drop_system_messages
from ..types.wire import AgentLimits, CompactOutput, FinalAnswer, ModelInput, ModelOutput
from .agent_setup import AgentSetup, PreparedAgent
from .answer import AnswerReader, ReplyOutcome, build_failed_outcome
from .approvals import ApprovalGate
from .author_loop import AuthorLoop, OverdueError
from .call import ConversationCall, ModelReply, NextRequest, RequestCall, share_attempt
from .iteration_hooks import HookRunner
from .step_policy import BranchWait, StepPolicy

# ---
# The prologue of an iteration: the request.


INSTRUCTIONS_TIMEOUT = 60.0
"""Seconds that an agent's instructions function may take."""


class RequestBuilder:
    """Builds requests. The author's code gets a run context."""

    def __init__(self, author: AuthorLoop, forces: Callable[[Agent], bool] = lambda _: True) -> None:
        """``forces`` returns whether all models of an agent can be forced to call a tool."""
        self._author = author
        self._can_force_tool = forces

    async def build_request(
        self, agent: Agent, call: ConversationCall[Any], ctx: RunContext[Any], *, forcing: bool = False
    ) -> ModelRequest:
        """Build the request of a model call; with ``forcing`` it has to answer now. Raises ``InvalidInputError`` for a
        conversation without messages."""
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


def _select_request_messages(call: ConversationCall[Any]) -> Transcript:
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


def check_summary_price(agent: Agent, summary: CompactOutput, *, inherited: bool = False) -> None:
    """Raise ``DefinitionError`` for a summary that has no price: another model may have written it."""
    message = Message(role="assistant", model=summary.model or None, usage=summary.usage, cost_usd=summary.cost_usd)
    if (error := find_missing_price(agent, message, inherited=inherited)) is not None:
        raise error


# ---
# The epilogue of an iteration: the output of a reply.


class ReplyReader:
    """Reads replies: which calls run, and how; whether a reply is the answer."""

    def __init__(self, author: AuthorLoop, approving: ApprovalGate) -> None:
        self._author, self._approving = author, approving

    async def build_output(self, agent: Agent, task: ModelInput, message: Message, ctx: RunContext[Any]) -> ModelOutput:
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
    """Builds the request of a model call, and reads the reply; runs the hooks and the step policy around them."""

    def __init__(
        self,
        setup: AgentSetup,
        hooks: HookRunner,
        policy: StepPolicy,
        requests: RequestBuilder,
        replies: ReplyReader,
        author: AuthorLoop,
    ) -> None:
        self._setup = setup
        self._hook_runner = hooks
        self._step_policy = policy
        self._request_builder = requests
        self._reply_reader = replies
        self._author = author

    async def model(self, call: ConversationCall[ModelInput], next: NextRequest) -> ModelReply:
        """Around the request of a model call. Raises as :meth:`AgentSetup.prepare`, and ``InvalidInputError`` for a
        conversation without messages."""
        async with self._setup.prepare(call) as prepared:
            reply = await self._run_iteration(prepared, call, next)
        if prepared.pinned is not None:
            reply.output = reply.output.model_copy(update={"pinned": prepared.pinned})
        return reply

    async def _run_iteration(
        self, prepared: PreparedAgent, call: ConversationCall[ModelInput], next: NextRequest
    ) -> ModelReply:
        agent, ctx = prepared.agent, prepared.run_context
        await self._hook_runner.run_before(agent, call, ctx)
        stepped = await self._step_policy.run_policy(prepared.base, agent, call, ctx)
        if isinstance(stepped, BranchWait):
            return stepped.build_reply(call)
        if stepped is None:
            return await self._ask_model(agent, call, ctx, next)
        agent = stepped.agent
        if stepped.finish is None:
            reply = await self._ask_model(agent, call, ctx, next, edited=stepped.replaced is not None)
        else:
            answers = AnswerReader(self._author, agent, call.input, ctx)
            reply = build_step_reply(agent, await answers.accept_step_answer(stepped))
            await self._hook_runner.run_finish_hooks(agent, call, ctx, reply)
        stepped.add_to_reply(reply, call)
        return reply

    async def _ask_model(
        self,
        agent: Agent,
        call: ConversationCall[ModelInput],
        ctx: RunContext[Any],
        next: NextRequest,
        *,
        edited: bool = False,
    ) -> ModelReply:
        forcing = call.input.is_forced
        request = RequestCall(
            **share_attempt(call),
            input=call.input,
            prefix=call.prefix,
            agent=agent,
            run_context=ctx,
            request=await self._request_builder.build_request(agent, call, ctx, forcing=forcing),
            new_messages=call.new_messages,
            edited=edited,
            resend=call.input.resend,
        )
        system = request.request.system  # hooks change the prompt of this request only, not the agent's
        message = await next(request)
        output = await self._reply_reader.build_output(agent, call.input, message, ctx)
        reply = ModelReply(output, message, system, compaction_due=request.compaction_due)
        await self._hook_runner.run_after(agent, call, ctx, reply)
        return reply
