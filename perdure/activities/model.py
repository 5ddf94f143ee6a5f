"""The bare model call: the request goes out, the stream is read to its end, and what was said becomes a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity

from ..agent import Agent
from ..errors import MalformedReplyError, TruncatedStreamError
from ..loop.calls import sound_parts, with_ids
from ..ports import Completed, ModelCall, ModelReply, ModelRequest, Provider, StreamEvent
from ..types.messages import Message, Part, ToolCallPart, Usage
from ..types.wire import MODEL_ACTIVITY, ModelOutput

Cost = Callable[[str, str, Usage, str | None], float | None]


class ModelActivity:
    """Calls models. What they are asked, and what is to become of the reply, is for :class:`IterationStage` to say."""

    def __init__(self, provider: Callable[[Agent], Provider], cost: Cost) -> None:
        """``provider`` gives the one that an agent's models are asked through, ``cost`` the price of a call in USD."""
        self._provider = provider
        self._cost = cost

    @activity.defn(name=MODEL_ACTIVITY)
    async def model(self, call: Any) -> Any:
        """The activity. Stages stand between it and Temporal: it is given a ``ModelCall``, never the JSON."""
        return await self.call(call)

    async def call(self, call: ModelCall) -> ModelReply:
        """Ask the model for ``call.request``. Raises ``ProviderError``."""
        agent, request = call.agent, call.request
        assert request is not None, "the iteration stage makes the request"
        completed = await self._stream(agent, call, request)
        provider = completed.provider or agent.provider_name  # of a chain, the one that answered
        parts = sound_parts(part for part in completed.parts if not _cut_off(part, completed))
        # The API may call it by another name than the one that is priced.
        model, asked = completed.model or agent.model_name, _asked(agent, provider)
        cost = self._cost(provider, model, completed.usage, asked)
        message = Message(
            role="assistant",
            parts=with_ids(parts, call.input.op),
            model=completed.model or agent.model_name,
            finish_reason=completed.finish_reason,
            usage=completed.usage,
            cost_usd=cost,
        )
        if any(part.type == "tool_result" for part in message.parts):
            raise MalformedReplyError(f"{agent.model} answered with a tool result")
        return ModelReply(ModelOutput(), message)

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


def _asked(agent: Agent, provider: str) -> str | None:
    """The name by which ``agent`` has asked for the model; None where it may have been one of several."""
    names = [one.name for one in agent.chain if len(agent.chain) == 1 or one.provider == provider]
    return names[0] if len(names) == 1 else None


def _cut_off(part: Part, reply: Completed) -> bool:
    """Whether ``part`` is a call that the model could not write to its end: it is none."""
    ended = reply.finish_reason in ("length", "content_filter", "refusal")
    return ended and isinstance(part, ToolCallPart) and part.malformed is not None
