"""The events stage: whoever follows the run is told what a call is at, as it happens.

It stands inside the journal, so an outcome that is found there is not said again; what the call comes to is recorded in
one transaction with its outcome. Events never make a call fail, or wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ..ports import Batch, Events, ModelCall, ModelReply, NewEvent, NextModel, NextTool, ToolCall, token
from ..types.wire import ToolOutput
from .batch import batch_of
from .feed import Feed
from .happened import answered, began, closed, reminded, retracted
from .heard import as_heard, taken_out
from .progress import Progress
from .writer import say


class EventsStage:
    """Writes what happens in a call, and puts the rest beside its outcome.

    Without ``stream`` a model call writes nothing before its outcome: no deltas, and no transaction of its own.
    ``stopped_by_run`` says of a cancelled call whether the run stopped it; else it is the worker that stops.
    ``changed_by_hooks`` says whether those of an agent may change what users say: then that is told when they have.
    """

    def __init__(
        self,
        store: Events,
        stopped_by_run: Callable[[], bool],
        *,
        stream: bool = True,
        changed_by_hooks: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._stopped_by_run = stopped_by_run
        self._stream = stream
        self._changed_by_hooks = changed_by_hooks

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call, the recording of an ending, or a reminder."""
        if call.input.purpose == "remind":
            reply = await next(call)
            reply.commit = replace(reply.commit, events=Batch(call.input.context_id, list(reminded(call))))
            return reply
        call.pending += began(call)
        said = taken_out(call.pending) if self._changed_by_hooks(call.input.agent) else []
        if call.input.purpose == "close":
            call.heard = lambda messages: call.pending.extend(as_heard(said, messages))
            reply = await next(call)
            return self._with_events(call, reply, closed(call))
        feed = Feed(self._store, call, stream=self._stream)
        call.asking, call.emit = feed.asking, feed.emit
        call.heard = lambda messages: feed.add(as_heard(said, messages))
        try:
            reply = await next(call)
        except asyncio.CancelledError:
            call.pending += feed.stop()
            if feed.streamed:
                await feed.settled()
                await say(self._store, self._undone(call))
            raise
        except Exception:
            call.pending += feed.stop()
            await feed.settled()
            raise
        call.pending += feed.stop()
        return self._with_events(call, reply, answered(call, reply))

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call that may act. The journal stage says that it begins, and what it comes to."""
        progress = Progress(self._store, call)
        call.progress = progress.say
        try:
            return await next(call)
        finally:
            call.pending += progress.stop()

    def _undone(self, call: ModelCall) -> Batch:
        reason = "Interrupted" if self._stopped_by_run() else "WorkerStopped"
        events = [*call.pending, retracted(call, reason)]
        return batch_of(call, events, token(call.asked_at, call.attempt), advances=True)

    def _with_events(self, call: ModelCall, reply: ModelReply, events: list[NewEvent]) -> ModelReply:
        batch = batch_of(call, [*call.pending, *events], token(call.asked_at), advances=True)
        reply.commit = replace(reply.commit, events=batch)
        return reply
