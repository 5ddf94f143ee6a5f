"""The bare model call: sends the request, reads the stream to its end, and makes the reply a message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from temporalio import activity

from ..agent.agent import Agent
from ..errors import ContentFilterError, MalformedReplyError, ModelSlipError, ProviderError, TruncatedStreamError
from ..loop.refused_content import ContentWithholder, filter_present_withheld, find_last_withheld
from ..loop.transcript import sanitize_parts
from ..ports.model import Completed, ModelRequest, Provider, Restarted, StreamEvent, ToolCallDelta
from ..stages.heartbeat import get_attempt_value, set_attempt_value
from ..stages.stage import ModelReply, PaidRequest, RequestCall
from ..types.messages import Message, Part, TextPart, ToolCallPart, Usage, Withheld, clean_text
from ..types.wire import MODEL_ACTIVITY, ModelOutput

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

    def __init__(self, provider: Callable[[Agent], Provider], cost: ComputeCost) -> None:
        """``provider`` returns the provider of an agent's models, ``cost`` the price of a call in USD."""
        self._provider = provider
        self._compute_cost = cost
        self._slips: dict[str, str] = {}
        """By call, where no Temporal heartbeats keep them (``perdure.testing``)."""

    @activity.defn(name=MODEL_ACTIVITY)
    async def model(self, call: Any) -> Any:
        """The activity. The stages between it and Temporal pass it a ``RequestCall``, never the JSON."""
        return await self.call(call)

    async def call(self, call: RequestCall) -> ModelReply:
        """Send ``call.request`` to the model. Raises ``ProviderError``."""
        agent, request, began = call.agent, call.request, monotonic()
        try:
            completed, withheld = await self._call_with_containment(agent, call, self._add_slip(call, request))
        except ModelSlipError as error:
            self._keep_slip(call, error)
            raise
        provider = completed.provider or agent.provider_name  # of a chain, the one that answered
        parts = call.call_ids.assign_reply_ids(
            (part for part in completed.parts if not _is_cut_off(part, completed, call.input.purpose)), completed.origin
        )
        # The API may return another name of the model than the one with a price.
        model, requested = completed.model or agent.model_name, _find_requested_model(agent, provider)
        cost = self._compute_cost(provider, model, completed.usage, requested)
        call.paid.append(PaidRequest(provider, model, completed.usage, cost, monotonic() - began))
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
        return ModelReply(ModelOutput(), message)

    async def _call_with_containment(
        self, agent: Agent, call: RequestCall, request: ModelRequest
    ) -> tuple[Completed, tuple[Withheld, ...]]:
        """Call the model; after each refusal by the API, call it again without the refused content. Return the reply
        and the withheld content.

        All tries are one attempt of one activity: a refused request is not paid, and an attempt that is lost begins
        with the first try again. The withheld content is recorded with the reply, or not at all.
        """
        conversation = [*call.prefix, *call.new_messages]
        known = filter_present_withheld(find_last_withheld(conversation), (*conversation, *request.messages))
        texts = call.input.purpose != "compact"  # the summary prompt is not in the conversation
        withholder = ContentWithholder(request.messages, known, resend=call.input.resend, texts=texts)
        refused: ProviderError | None = None
        provider = self._provider(agent)
        _add_left_out(provider, call, request)
        call.report_model(agent.model)
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
                call.emit(Restarted(agent.model, type(error).__name__, error.message))

    def _keep_slip(self, call: RequestCall, error: ModelSlipError) -> None:
        """Keep what the model wrote wrongly for the next attempt."""
        text = clean_text(error.message)
        text = text if len(text) <= _SLIP_CHARS else f"{text[:_SLIP_CHARS]}…"
        if not set_attempt_value(SLIP_KEY, text):
            self._slips[call.owner.rpartition("/")[0]] = text

    def _add_slip(self, call: RequestCall, request: ModelRequest) -> ModelRequest:
        """Return ``request``, which tells the model what it wrote wrongly in an earlier attempt. Like that reply, it is
        no part of the conversation."""
        slip = get_attempt_value(SLIP_KEY, "")
        slip = self._slips.pop(call.owner.rpartition("/")[0], "") if slip is None else slip
        if not slip:
            return request
        text = f"Your last reply could not be read, and was thrown away: {slip}\n{_SLIP_ADVICE}"
        told = Message(role="user", parts=(TextPart(text=text),))
        return replace(request, messages=(*request.messages, told))

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
                call.emit(event)
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


def _add_left_out(provider: Provider, call: RequestCall, request: ModelRequest) -> None:
    """Add the tools that ``provider`` will leave out of the request to those that are reported."""
    find_left_out = getattr(provider, "find_left_out", None)
    names = find_left_out(request) if find_left_out is not None and request.tools else ()
    call.left_out += [name for name in names if name not in call.left_out]


def _find_requested_model(agent: Agent, provider: str) -> str | None:
    """Return the name by which ``agent`` requested the model; None if it may be one of several."""
    names = [model.name for model in agent.chain if len(agent.chain) == 1 or model.provider == provider]
    return names[0] if len(names) == 1 else None


def _is_cut_off(part: Part, reply: Completed, purpose: str) -> bool:
    """Whether ``part`` is a tool call that was cut off with the reply, and is dropped. A call that the output limit cut
    stays, as its result tells the model so, except in a summary."""
    ended = reply.finish_reason in ("content_filter", "refusal") or purpose == "compact"
    return ended and isinstance(part, ToolCallPart) and part.malformed is not None
