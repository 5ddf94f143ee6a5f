"""Short ways to write calls, replies and the innermost call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from perdure import Agent, RunContext
from perdure.calls.agent_setup import AgentSetup
from perdure.calls.agents import Agents
from perdure.calls.approvals import ApprovalGate
from perdure.calls.author_loop import AuthorLoop
from perdure.calls.call import (
    CloseCall,
    CompactCall,
    ConversationCall,
    ModelCall,
    ModelReply,
    RemindCall,
    RequestCall,
    ToolCall,
    share_attempt,
)
from perdure.calls.iteration import IterationStage
from perdure.calls.iteration_hooks import HookRunner
from perdure.calls.prompt import RequestBuilder
from perdure.calls.reply import ReplyReader
from perdure.calls.step_policy import StepPolicy
from perdure.ports.model import ModelRequest
from perdure.types.messages import Message
from perdure.types.tool_calls import ActivityCall, Call
from perdure.types.wire import (
    CloseInput,
    CompactInput,
    FinalAnswer,
    ModelInput,
    ModelOutput,
    NewMessage,
    RemindInput,
    ToolInput,
    ToolOutput,
)

FACTS: dict[str, Any] = {
    "agent": "a",
    "context_id": "run-1",
    "task_id": "scope-1-1",
    "scope": "scope-1",
    "op": 0,
    "iteration": 1,
}


def model_call(message: str = "hi", owner: str = "run/1/1", **more: Any) -> ModelCall:
    return ModelCall(ModelInput(**{**FACTS, "new": (NewMessage(content=message),), **more}), owner=owner)


def compact_call(owner: str = "run/1/1", **more: Any) -> CompactCall:
    return CompactCall(CompactInput(**{**FACTS, **more}), owner=owner)


def close_call(message: str = "hi", owner: str = "run/1/1", **more: Any) -> CloseCall:
    return CloseCall(CloseInput(**{**FACTS, "new": (NewMessage(content=message),), **more}), owner=owner)


def remind_call(owner: str = "run/1/1", **more: Any) -> RemindCall:
    return RemindCall(RemindInput(**{**FACTS, **more}), owner=owner)


def conversation_call(call: Any, **more: Any) -> ConversationCall[Any]:
    """``call`` with a conversation."""
    return ConversationCall(input=call.input, **share_attempt(call), **more)


def request_call(
    call: ModelCall | CompactCall, agent: Agent, request: ModelRequest | None = None, **more: Any
) -> RequestCall:
    """``call`` with a request to ``agent``."""
    request = request or ModelRequest(model="m", messages=[])
    facts = share_attempt(call)
    return RequestCall(input=call.input, agent=agent, run_context=RunContext(), request=request, **facts, **more)


def iteration_stage(agent: Agent, author: AuthorLoop, **more: Any) -> IterationStage:
    """The stage of a worker that serves ``agent`` alone."""
    agents, hooks = Agents([agent]), HookRunner(author, None)
    setup = AgentSetup(agents, author, hooks, **more)
    replies = ReplyReader(author, ApprovalGate(author, agents.find))
    return IterationStage(setup, hooks, StepPolicy(author, agents, hooks), RequestBuilder(author), replies, author)


def compose(stages: Sequence[Any], call: Any, kind: str = "model") -> Any:
    """``call`` with any stages of a call around it, which need not fit together as those of a worker do: of each the
    method ``kind``, or the one that calls of several kinds have."""
    for stage in reversed(stages):
        method = next(getattr(stage, name) for name in (kind, "step", "request") if hasattr(stage, name))
        call = partial(method, next=call)
    return call


def tool_call(owner: str = "run/2/1", **more: Any) -> ToolCall:
    given = {**FACTS, "op": 1, "call_id": "c1", "name": "pay", "arguments": {"amount": 3}, **more}
    return ToolCall(ToolInput(**given), owner=owner)


def reply(text: str = "Done.", *calls: Call, system: str | None = None, **more: Any) -> ModelReply:
    finish = None if calls else FinalAnswer(content=text)
    output = ModelOutput(head="", store_id="", text=text, calls=calls, finish=finish, **more)
    return ModelReply(output, Message.assistant(text), system)


def output(text: str = "Done.", *calls: Call, **more: Any) -> ModelOutput:
    return reply(text, *calls, **more).output


def inline(id: str = "c1", name: str = "look", **more: Any) -> Call:
    how = ActivityCall(timeout=60, inline=True, **more)
    return Call(id=id, name=name, arguments={"path": id}, disposition=how)


class Inner:
    """The innermost call: answers with ``answers`` in order, the last one for ever; ``calls`` is what it was given.

    With ``gate`` it waits there first, and ``entered`` says that it has begun. An exception is raised.
    """

    def __init__(self, *answers: Any, gate: asyncio.Event | None = None) -> None:
        self.answers = list(answers)
        self.calls: list[Any] = []
        self.gate = gate
        self.entered = asyncio.Event()

    async def __call__(self, call: Any) -> Any:
        self.calls.append(call)
        if isinstance(call, ToolCall):
            call.has_begun = True
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, str) and isinstance(call, ToolCall):
            return ToolOutput(key=call.key, content=answer)
        if isinstance(answer, str) and isinstance(call, RequestCall):
            return Message.assistant(answer)
        return reply(answer) if isinstance(answer, str) else answer
