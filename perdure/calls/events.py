"""The events stage: writes the events of a call as it runs.

It is inside the journal stage, so an outcome found there writes no events again; the final events are recorded in one
transaction with the outcome. Events never make a call fail or wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..agent.spec import AgentSpec
from ..ports.store import EventBatch, EventLog, NewEvent, build_batch_token
from ..types.events import MessageInjected
from ..types.messages import INLINE_BYTES, FilePart, Message, is_large_text
from ..types.wire import CloseOutput, RemindOutput, ToolOutput
from .call import (
    CloseCall,
    CompactCall,
    CompactReply,
    ModelCall,
    ModelReply,
    NextTool,
    OutputT,
    RemindCall,
    Reply,
    ToolCall,
)
from .event_builders import (
    build_begin_events,
    build_closing_events,
    build_closing_start_events,
    build_compaction_events,
    build_iteration_start_events,
    build_model_retracted,
    build_reminder_events,
    build_reply_events,
)
from .event_feed import ModelEventFeed, ProgressFeed, WriteClock, build_event_batch, write_last_batch


def pop_injected_events(events: list[NewEvent]) -> list[NewEvent]:
    """Remove the events of users' messages from ``events`` and return them."""
    injected = [new for new in events if isinstance(new.event, MessageInjected)]
    events[:] = [new for new in events if not isinstance(new.event, MessageInjected)]
    return injected


def update_injected_events(injected: Sequence[NewEvent], messages: Sequence[Message]) -> list[NewEvent]:
    """Return the events of ``messages``, with their present text: those of ``injected`` in their order, or some."""
    updated, remaining = list[NewEvent](), iter(injected)
    for message in messages:
        for new in remaining:
            event = new.event
            if isinstance(event, MessageInjected) and event.id == message.id:  # else it is in the conversation already
                updated.append(replace(new, event=_update_injected_event(event, message)))
                break
    return updated


def _update_injected_event(event: MessageInjected, message: Message) -> MessageInjected:
    """Return the event with the message's present text and files; a large text is cut to ``INLINE_BYTES``."""
    text = message.text
    if event.blob is not None and len(text.encode()) == event.blob.size:
        return event  # as it was sent
    if is_large_text(text):
        text = text.encode()[:INLINE_BYTES].decode(errors="ignore") + "…"
    files = tuple(part for part in message.parts if isinstance(part, FilePart))
    return event.model_copy(update={"content": text, "blob": None, "files": files})


class EventsStage:
    """Writes the events of a call while it runs, and adds the final ones to the commit of its outcome.

    Without ``stream`` a model call writes nothing before its outcome: no deltas, and no transaction of its own.
    ``stopped_by_run`` returns whether the run cancelled the call; else the worker is stopping.
    ``changed_by_hooks`` returns whether an agent's hooks may change users' messages: then the events of these
    messages are written after the hooks have run.
    """

    def __init__(
        self,
        store: EventLog,
        stopped_by_run: Callable[[], bool],
        *,
        stream: bool = True,
        changed_by_hooks: Callable[[str], bool] = lambda _: False,
        find_agent: Callable[[str], AgentSpec | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = WriteClock()
        self._stopped_by_run = stopped_by_run
        self._stream = stream
        self._changed_by_hooks = changed_by_hooks
        self._find_agent = find_agent

    async def model(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelReply]]) -> ModelReply:
        """Around a model call."""
        pending = call.recording.pending_events
        pending += build_iteration_start_events(call)
        injected = self._pop_changing_messages(call)
        agent = self._find_agent(call.input.agent)
        answer_field = None if agent is None else agent.output_type.inside
        feed = ModelEventFeed(self._store, call, self._clock, stream=self._stream, answer_field=answer_field)
        call.feed.report_model, call.feed.emit = feed.start_model, feed.emit
        call.feed.report_messages = lambda messages: feed.add_events(update_injected_events(injected, messages))
        try:
            reply = await next(call)
        except asyncio.CancelledError:
            pending += feed.stop()
            if feed.has_streamed:
                await feed.wait_for_write()
                await write_last_batch(self._store, self._build_retraction(call))
            raise
        except Exception:
            pending += feed.stop()
            await feed.wait_for_write()
            raise
        pending += feed.stop()
        _attach_events(call, reply, build_reply_events(call, reply))
        return reply

    async def compact(self, call: CompactCall, next: Callable[[CompactCall], Awaitable[CompactReply]]) -> CompactReply:
        """Around a compaction. A summary's model calls do not belong to the conversation, so they write no events; that
        the turn begins is written before them."""
        pending = call.recording.pending_events
        pending += build_begin_events(call)
        feed = ModelEventFeed(self._store, call, self._clock, stream=self._stream)
        try:
            reply = await next(call)
        except BaseException as error:
            pending += feed.stop()
            if isinstance(error, Exception):
                await feed.wait_for_write()
            raise
        pending += feed.stop()
        _attach_events(call, reply, build_compaction_events(call, reply.output))
        return reply

    async def close(
        self, call: CloseCall, next: Callable[[CloseCall], Awaitable[Reply[CloseOutput]]]
    ) -> Reply[CloseOutput]:
        """Around the record of an ending."""
        pending = call.recording.pending_events
        pending += build_closing_start_events(call)
        injected = self._pop_changing_messages(call)
        call.feed.report_messages = lambda messages: pending.extend(update_injected_events(injected, messages))
        reply = await next(call)
        _attach_events(call, reply, build_closing_events(call))
        return reply

    async def remind(
        self, call: RemindCall, next: Callable[[RemindCall], Awaitable[Reply[RemindOutput]]]
    ) -> Reply[RemindOutput]:
        """Around reminders."""
        reply = await next(call)
        reply.commit = replace(
            reply.commit, events=EventBatch(call.input.context_id, list(build_reminder_events(call)))
        )
        return reply

    def _pop_changing_messages(self, call: ModelCall | CloseCall) -> list[NewEvent]:
        """Take the events of users' messages out of those that are pending, if hooks may change the messages."""
        return pop_injected_events(call.recording.pending_events) if self._changed_by_hooks(call.input.agent) else []

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call that may act. The journal stage writes the events of its start and its end."""
        progress = ProgressFeed(self._store, call, self._clock)
        call.feed.report_progress = progress.report_progress
        try:
            return await next(call)
        finally:
            call.recording.pending_events += progress.stop()

    def _build_retraction(self, call: ModelCall) -> EventBatch:
        reason = "Interrupted" if self._stopped_by_run() else "WorkerStopped"
        events = [*call.recording.pending_events, build_model_retracted(call, reason)]
        return build_event_batch(call, events, build_batch_token(call.asked_at, call.attempt), advances=True)


def _attach_events(
    call: ModelCall | CompactCall | CloseCall, reply: Reply[OutputT], events: Sequence[NewEvent]
) -> None:
    """Add what is pending, and ``events``, to the commit of ``reply``."""
    everything = [*call.recording.pending_events, *events]
    batch = build_event_batch(call, everything, build_batch_token(call.asked_at), advances=True)
    reply.commit = replace(reply.commit, events=batch)
