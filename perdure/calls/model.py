"""The bare model call: sends the request, reads the stream to its end, and makes the reply a message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from temporalio import activity

from ..agent.spec import AgentSpec
from ..errors import ContentFilterError, MalformedReplyError, ModelSlipError, ProviderError, TruncatedStreamError
from ..loop.refused_content import ContentWithholder, filter_present_withheld, find_last_withheld
from ..loop.transcript import sanitize_parts
from ..ports.model import Completed, ModelRequest, Provider, Restarted, StreamEvent, ToolCallDelta
from ..types.messages import Message, Part, TextPart, ToolCallPart, Usage, Withheld, clean_text
from ..types.wire import COMPACT_ACTIVITY, MODEL_ACTIVITY
from .call import PaidRequest, RequestCall
from .heartbeat import get_attempt_values

logger = logging.getLogger("perdure.worker")

SLIP_KEY = "slip"
"""Name of the text of the last ``ModelSlipError`` in the heartbeats of a model call, for its next attempt."""
_SLIP_CHARS = 500
_SLIP_ADVICE = (
    "Reply again. To call a tool, use the API's tool calls, not text; its arguments are one JSON object that fits its "
    "schema."
)

ComputeCost = Callable[[str, str, Usage, str | None], float | None]


class ModelActivity:
    """Calls models. :class:`IterationStage` builds the request and reads the reply."""

    def __init__(self, provider: Callable[[AgentSpec], Provider], cost: ComputeCost) -> None:
        """``provider`` returns the provider of an agent's models, ``cost`` the price of a call in USD."""
        self._provider = provider
        self._compute_cost = cost

    @activity.defn(name=MODEL_ACTIVITY)
    async def model(self, call: Any) -> Any:
        """The activity. The stages between it and Temporal pass it a ``RequestCall``, never the JSON."""
        return await self.call(call)

    @activity.defn(name=COMPACT_ACTIVITY)
    async def compact(self, call: Any) -> Any:
        """The activity of a compaction, which passes it a ``RequestCall`` for each request of its summary."""
        return await self.call(call)

    async def call(self, call: RequestCall) -> Message:
        """Send ``call.request`` to the model. Raises ``ProviderError``."""
        agent, request, began = call.agent, call.request, monotonic()
        try:
            completed, withheld = await self._call_with_containment(agent, call, _add_slip(request))
        except ModelSlipError as error:
            _keep_slip(error)
            raise
        provider = completed.provider or agent.provider_name  # of a chain, the one that answered
        parts = call.call_ids.assign_reply_ids(
            (part for part in completed.parts if not _is_cut_off(part, completed, call)), completed.origin
        )
        # The API may return another name of the model than the one with a price.
        model, requested = completed.model or agent.model_name, _find_requested_model(agent, provider)
        cost = self._compute_cost(provider, model, completed.usage, requested)
        call.recording.paid.append(PaidRequest(provider, model, completed.usage, cost, monotonic() - began))
        message = Message(
            role="assistant",
            parts=sanitize_parts(parts),
            model=completed.model or agent.model_name,
            finish_reason=completed.finish_reason,
            usage=completed.usage,
            cost_usd=cost,
            request_id=clean_text(completed.request_id)[:200] if completed.request_id else None,
            withheld=withheld,
        )
        if any(part.type == "tool_result" for part in message.parts):
            raise MalformedReplyError(f"{agent.model} answered with a tool result")
        return message

    async def _call_with_containment(
        self, agent: AgentSpec, call: RequestCall, request: ModelRequest
    ) -> tuple[Completed, tuple[Withheld, ...]]:
        """Call the model; after each refusal by the API, call it again without the refused content. Return the reply
        and the withheld content.

        All tries are one attempt of one activity: a refused request is not paid, and an attempt that is lost begins
        with the first try again. The withheld content is recorded with the reply, or not at all.
        """
        conversation = [*call.prefix, *call.new_messages]
        known = filter_present_withheld(find_last_withheld(conversation), (*conversation, *request.messages))
        texts = not call.is_summary  # its prompt is not in the conversation
        withholder = ContentWithholder(request.messages, known, resend=call.resend, texts=texts)
        refused: ProviderError | None = None
        call.recording.model = agent.model
        provider = self._provider(agent)
        _add_left_out(provider, call, request)
        call.feed.report_model(agent.model)
        while True:
            call.request = replace(request, messages=withholder.messages)
            try:
                return await self._read_stream(provider, call, call.request), withholder.withheld
            except ProviderError as error:
                refused = refused or error
                if not withholder.withhold(error):
                    if type(error) is type(refused):
                        raise refused from None
                    raise
                left_out = ", ".join(content.what for content in withholder.withheld)
                logger.warning(
                    "%s refused a request of run %s: %s", agent.model, call.input.context_id, clean_text(error.message)
                )
                logger.warning("run %s calls it again without: %s", call.input.context_id, left_out)
                call.feed.emit(Restarted(agent.model, type(error).__name__, error.message, error.status))

    async def _read_stream(self, provider: Provider, call: RequestCall, request: ModelRequest) -> Completed:
        """Read the stream to its end. Raises ``TruncatedStreamError`` for a stream without ``Completed``."""
        ids = call.renew_call_ids()
        events = provider.stream(request)
        last: StreamEvent | None = None
        try:
            async for event in events:
                last = event
                if isinstance(event, ToolCallDelta):
                    event = replace(event, id=ids.get_streamed_id(event.index, event.id))
                elif isinstance(event, Restarted):
                    ids.discard_streamed()
                call.feed.emit(event)
        except ContentFilterError as error:
            if last is not None and not isinstance(last, Restarted):
                error.refused = frozenset()  # the filter objected to the reply
            raise
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()
        if not isinstance(last, Completed):
            raise TruncatedStreamError(f"the stream of {call.agent.model} ended before its reply was complete")
        return last


def _keep_slip(error: ModelSlipError) -> None:
    """Keep what the model wrote wrongly for the next attempt."""
    text = clean_text(error.message)
    get_attempt_values().set(SLIP_KEY, text if len(text) <= _SLIP_CHARS else f"{text[:_SLIP_CHARS]}…")


def _add_slip(request: ModelRequest) -> ModelRequest:
    """Return ``request``, which tells the model what it wrote wrongly in an earlier attempt. Like that reply, it is no
    part of the conversation."""
    if not (slip := get_attempt_values().get(SLIP_KEY, "")):
        return request
    text = f"Your last reply could not be read, and was thrown away: {slip}\n{_SLIP_ADVICE}"
    told = Message(role="user", parts=(TextPart(text=text),))
    return replace(request, messages=(*request.messages, told))


def _add_left_out(provider: Provider, call: RequestCall, request: ModelRequest) -> None:
    """Add the tools that ``provider`` will leave out of the request to those that are reported."""
    find_left_out = getattr(provider, "find_left_out", None)
    names = find_left_out(request) if find_left_out is not None and request.tools else ()
    call.recording.left_out += [name for name in names if name not in call.recording.left_out]


def _find_requested_model(agent: AgentSpec, provider: str) -> str | None:
    """Return the name by which ``agent`` requested the model; None if it may be one of several."""
    names = [model.name for model in agent.chain if len(agent.chain) == 1 or model.provider == provider]
    return names[0] if len(names) == 1 else None


def _is_cut_off(part: Part, reply: Completed, call: RequestCall) -> bool:
    """Whether ``part`` is a tool call that was cut off with the reply, and is dropped. A call that the output limit cut
    stays, as its result tells the model so, except in a summary."""
    ended = reply.finish_reason in ("content_filter", "refusal") or call.is_summary
    return ended and isinstance(part, ToolCallPart) and part.malformed is not None
