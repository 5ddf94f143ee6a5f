"""Short ways to write calls, replies and the innermost call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from perdure import Agent, RunContext
from perdure.ports.model import ModelRequest
from perdure.stages.stage import ModelCall, ModelReply, RequestCall, ToolCall, share_fields
from perdure.types.messages import Message
from perdure.types.tool_calls import ActivityCall, Call
from perdure.types.wire import FinalAnswer, ModelInput, ModelOutput, NewMessage, ToolInput, ToolOutput

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


def request_call(call: ModelCall, agent: Agent, request: ModelRequest | None = None, **more: Any) -> RequestCall:
    """``call`` with a request to ``agent``."""
    request = request or ModelRequest(model="m", messages=[])
    return RequestCall(**share_fields(call), agent=agent, run_context=RunContext(), request=request, **more)


def compose(stages: Sequence[Any], call: Any, kind: str = "model") -> Any:
    """``call`` with any stages of a model call around it, which need not fit together as those of a worker do."""
    for stage in reversed(stages):
        call = partial(getattr(stage, kind), next=call)
    return call


def tool_call(owner: str = "run/2/1", **more: Any) -> ToolCall:
    given = {**FACTS, "op": 1, "call_id": "c1", "name": "pay", "arguments": {"amount": 3}, **more}
    return ToolCall(ToolInput(**given), owner=owner)


def reply(text: str = "Done.", *calls: Call, system: str | None = None, **more: Any) -> ModelReply:
    finish = None if calls else FinalAnswer(content=text)
    output = ModelOutput(head="", store_id="", text=text, calls=calls, finish=finish, **more)
    return ModelReply(output, Message.assistant(text), system)


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
        return reply(answer) if isinstance(answer, str) else answer
