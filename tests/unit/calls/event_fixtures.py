"""What the store was told: the events of the conversation of ``build``, and stages that tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from perdure.calls.call import CloseCall, CompactCall, CompactReply, ModelCall, ModelReply, RemindCall, ToolCall
from perdure.calls.events import EventsStage
from perdure.calls.failures import FailuresStage
from perdure.calls.journal import JournalStage
from perdure.calls.transcript import TranscriptStage
from perdure.ports.model import StreamEvent
from perdure.ports.store import EventLog
from perdure.store import Chain
from perdure.testing.store import MemoryStore
from perdure.types.events import Event, decode_event
from perdure.types.wire import CloseOutput, CompactOutput, ModelOutput, RemindOutput, ToolOutput
from tests.unit.calls.build import compose

ASKED_AT = "2026-01-01T00:00:00.000000"
NEXT = "2026-01-01T00:00:01.000000"
"""When the call after it was asked for."""


async def events(store: EventLog) -> list[Event]:
    rows = await store.read_events("run-1")
    read = [decode_event("run-1", row.seq, row.task_id, row.type, row.body, row.spans) for row in rows]
    return [event for event in read if event is not None]


def shown(told: Sequence[Event]) -> list[str]:
    """Each by its type and what tells it from others of it."""
    return [" ".join([event.type, *filter(None, (_detail(event, name) for name in _DETAILS))]) for event in told]


async def until(store: MemoryStore, type: str, after: int = 0) -> Event:
    """The next event of ``type`` behind number ``after``."""
    while True:
        for event in await events(store):
            if event.seq > after and event.type == type:
                return event
        last = max((event.seq for event in await events(store)), default=0)
        assert await store.wait_for_event("run-1", last, 30)


Step = StreamEvent | Callable[[ModelCall], Any]


class Model:
    """The innermost call: streams ``script``, in which a function of the call is awaited, and comes to ``answer``."""

    def __init__(self, answer: ModelReply | BaseException, *script: Step) -> None:
        self._answer = answer
        self._script = script

    async def __call__(self, call: ModelCall) -> ModelReply:
        call.feed.report_model("scripted:one")
        for step in self._script:
            if callable(step):
                await step(call)
            else:
                call.feed.emit(step)
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Stages:
    """Those of a worker that tell the store something, around an innermost call."""

    def __init__(self, store: MemoryStore, *, stream: bool = True, by_run: bool = True) -> None:
        self._stages = [
            FailuresStage(store),
            JournalStage(store),
            EventsStage(store, lambda: by_run, stream=stream),
        ]
        self._transcript = TranscriptStage(Chain(store), store, store, store.store_id)

    async def model(self, call: ModelCall, inner: Callable[[Any], Awaitable[ModelReply]]) -> ModelOutput:
        return cast(ModelOutput, await self._run("model", call, inner))

    async def compact(self, call: CompactCall, inner: Callable[[Any], Awaitable[CompactReply]]) -> CompactOutput:
        return cast(CompactOutput, await self._run("compact", call, inner))

    async def close(self, call: CloseCall, inner: Callable[[Any], Awaitable[None]]) -> CloseOutput:
        return cast(CloseOutput, await self._run("close", call, inner))

    async def remind(self, call: RemindCall, inner: Callable[[Any], Awaitable[None]]) -> RemindOutput:
        return cast(RemindOutput, await self._run("remind", call, inner))

    async def _run(self, kind: str, call: Any, inner: Callable[[Any], Awaitable[Any]]) -> Any:
        call.asked_at = call.asked_at or ASKED_AT
        return await compose([*self._stages, self._transcript], inner, kind)(call)

    async def tool(self, call: ToolCall, inner: Callable[[ToolCall], Awaitable[ToolOutput]]) -> ToolOutput:
        call.asked_at = call.asked_at or ASKED_AT
        output: ToolOutput = await compose(self._stages, inner, "tool")(call)
        return output


_DETAILS = ("state", "kind", "text", "content", "message", "error_type", "reason")


def _detail(event: Event, name: str) -> str | None:
    value = getattr(event, name, None)
    return value if isinstance(value, str) else None
