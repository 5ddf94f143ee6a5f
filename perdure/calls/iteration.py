"""The iteration stage: hooks and the step policy, the request, the model, and what its reply means, in this order."""

from __future__ import annotations

from typing import Any

from ..agent.spec import AgentSpec
from ..tools import RunContext
from ..types.wire import ModelInput
from .agent_setup import AgentSetup, PreparedAgent
from .answer import AnswerReader
from .author_loop import AuthorLoop
from .call import ConversationCall, ModelReply, NextRequest, RequestCall, share_attempt
from .iteration_hooks import HookRunner
from .prompt import RequestBuilder
from .reply import ReplyReader, build_step_reply
from .step_policy import BranchWait, StepPolicy


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
        agent: AgentSpec,
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
