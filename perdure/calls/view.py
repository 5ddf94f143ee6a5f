"""The view stage: sends the model a view of the conversation, and tells how a call may be shortened.

It is inside the iteration stage, which makes the request, and outside the hooks, which see what is sent.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from ..errors import ContextLengthError
from ..loop.compaction import ConversationView, estimate_message_tokens, estimate_tokens, find_turn_task
from ..loop.transcript import find_tail_start
from ..ports.store import Cache
from ..types.compaction import BYTES_PER_TOKEN, CompactionSettings, Summarise
from ..types.interface import FINISH_TOOL
from ..types.messages import Message
from ..types.transcript import drop_system_messages
from ..types.wire import ModelInput
from .call import NextRequest, RequestCall


class ViewStage:
    """Sends the model a view of the conversation, if ``Agent(compaction=…)`` says so, and tells in which ways a call
    that is refused for its length may be shortened."""

    def __init__(self, cache: Cache[_CachedView]) -> None:
        """``cache`` keeps the views of conversations; a missing view is built again, with the same outcome."""
        self._views = ConversationViewCache(cache)

    async def request(self, call: RequestCall, next: NextRequest) -> Message:
        """Around the request of a model call."""
        settings = call.agent.compaction
        if settings is None:
            return await next(call)
        assert isinstance(call.input, ModelInput), "a summary applies the view itself"
        view = self.apply_view(call, settings, call.input.window_halvings or 0)
        try:
            reply = await next(call)
        except ContextLengthError as error:
            error.ways = _list_remaining_compactions(call, settings, view)
            raise
        if settings.summarise is not None:
            call.compaction_due = _is_summary_due(call, settings.summarise, reply)
        return reply

    def apply_view(
        self, call: RequestCall, settings: CompactionSettings, window_halvings: int
    ) -> ConversationView | None:
        """Put the view into the request, and return it; None without one."""
        if not settings.has_view:
            return None
        request = call.request
        recorded = len(drop_system_messages(call.prefix))
        view = self._views.get_view(call.input.context_id, settings, window_halvings, request.messages[:recorded])
        view.add_messages(request.messages[recorded:])
        call.request = replace(request, messages=view.build_sent_messages())
        return view


@dataclass(slots=True)
class _CachedView:
    """The view of a run's conversation."""

    ways: CompactionSettings
    window_halvings: int
    fold: ConversationView
    bytes: int = 0
    """Estimated size of the messages that the view has read."""

    def can_continue(self, settings: CompactionSettings, window_halvings: int, recorded: Sequence[Message]) -> bool:
        """Whether the view has the same settings, and has read a beginning of ``recorded``."""
        if (self.ways, self.window_halvings) != (settings, window_halvings) or len(self.fold.all_messages) > len(
            recorded
        ):
            return False
        return all(a is b for a, b in zip(self.fold.all_messages, recorded, strict=False))


class ConversationViewCache:
    """The views of recorded conversations, by run: the next call reads on where the last one stopped.

    A view is used only if it has read the very messages of the request, so the result never depends on what is cached.
    """

    def __init__(self, cache: Cache[_CachedView]) -> None:
        self._cache = cache

    def get_view(
        self, run: str, settings: CompactionSettings, window_halvings: int, recorded: Sequence[Message]
    ) -> ConversationView:
        """Return a copy of the view that has read ``recorded``, to add more messages to."""
        cached = self._cache.get(run)
        if cached is None or not cached.can_continue(settings, window_halvings, recorded):
            cached = _CachedView(settings, window_halvings, ConversationView(settings, window_halvings))
        new = recorded[len(cached.fold.all_messages) :]
        cached.fold.add_messages(new)
        cached.bytes += sum(map(estimate_message_bytes, new))
        self._cache.put(run, cached, cached.bytes)
        return cached.fold.copy()


def estimate_message_bytes(message: Message) -> int:
    """Estimate the bytes that ``message`` takes in memory."""
    return 500 + BYTES_PER_TOKEN * estimate_message_tokens(message)


def _list_remaining_compactions(
    call: RequestCall, settings: CompactionSettings, view: ConversationView | None
) -> tuple[str, ...]:
    """List the ways in which the call may be shortened."""
    messages, remaining = drop_system_messages(call.prefix), []
    task = find_turn_task(messages, call.input.iteration - 1)  # the reply of this iteration was not given
    if settings.summarise is not None and has_unsummarised_message(messages[: find_tail_start(messages, 0)], task):
        remaining.append("summarise")
    if view is not None and view.can_tighten:
        remaining.append("window")
    return tuple(remaining)


def _is_summary_due(call: RequestCall, summarise: Summarise, reply: Message) -> bool:
    """Whether the next call may be too long, and a summary would make it much shorter: by a quarter of ``at``; by half,
    where what stays is longer than ``at`` itself, or each call would be preceded by a summary."""
    usage = reply.usage
    if usage is not None and usage.input_tokens:
        tokens = usage.input_tokens + usage.output_tokens
    else:
        tokens = estimate_tokens(call.request.messages) + estimate_message_tokens(reply)
    if tokens < summarise.at:
        return False
    messages = [*drop_system_messages(call.prefix), *drop_system_messages(call.new_messages), reply]
    is_answer = not reply.tool_calls or any(tool_call.name == FINISH_TOOL for tool_call in reply.tool_calls)
    task = range(0) if is_answer else find_turn_task(messages, call.input.iteration)  # the summary is the next turn's
    kept_start = find_tail_start(messages, summarise.keep_last)
    old = [message for index, message in enumerate(messages[:kept_start]) if index not in task]
    if not has_unsummarised_message(old, ()):
        return False
    replaced = estimate_tokens(old)
    staying = estimate_tokens(messages) - replaced
    return replaced >= (summarise.at // 4 if staying < summarise.at else staying)


def has_unsummarised_message(old: Sequence[Message], task: Container[int]) -> bool:
    """Whether ``old`` has a message that is neither a summary already, nor among those that began the turn."""
    return any(message.replaces is None and index not in task for index, message in enumerate(old))
