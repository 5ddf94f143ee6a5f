"""The feed of a model call: what is streamed becomes events, written a few times a second for whoever follows.

    asking, emit ──► parts in order ──► every 25 ms: adjacent deltas as one ──► the store
                          └── what is left at the end: deltas are thrown away, the rest goes with the outcome

A reply that is whole before the first write adds none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..ports import (
    Batch,
    Completed,
    Events,
    ModelCall,
    NewEvent,
    Restarted,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    token,
)
from ..types.events import ErrorEvent, ModelDelta
from ..types.interface import FINISH_TOOL
from ..types.messages import clean
from ..types.wire import MODEL_ACTIVITY
from .batch import batch_of
from .happened import asked, retracted
from .occasion import facts
from .writer import Writer

INTERVAL = 0.025
"""Seconds between two writes, and from the first delta to the first."""
SILENCE = 0.1
"""Seconds until it is written that a call has begun of which nothing has come yet."""
MOST = 1024 * 1024
"""Characters that wait for the store. A reply that gets further ahead of it is followed no longer, only completed."""

Kind = Literal["text", "thinking", "tool_call"]


@dataclass(slots=True)
class _Piece:
    """Adjacent deltas of one text, one thinking or one call's arguments."""

    kind: Kind
    index: int
    at: str
    texts: list[str] = field(default_factory=list)


class Feed:
    """Of one attempt. All methods belong to the worker's event loop, and none but ``settled`` waits."""

    def __init__(self, store: Events, call: ModelCall, *, stream: bool = True) -> None:
        """Without ``stream`` nothing is written before the outcome, and no deltas at all."""
        self._call = call
        self._stream = stream
        self._waiting: list[NewEvent | _Piece] = list(call.pending)
        call.pending.clear()
        self._size = 0
        self._offsets: dict[tuple[Kind, int], int] = {}
        self._calls: dict[int, tuple[str, str]] = {}
        self._models = 0
        self.streamed = False
        """Whether deltas may have been written."""
        self._writer = Writer(store, self._take, INTERVAL)
        if stream:
            self._writer.within(SILENCE)

    def asking(self, model: str) -> None:
        """``model`` is asked now."""
        self._waiting.append(asked(self._call, model, self._models))
        self._models += 1

    def add(self, events: Sequence[NewEvent]) -> None:
        """``events`` have happened."""
        self._waiting += events

    def emit(self, event: StreamEvent) -> None:
        """The model has streamed ``event``."""
        match event:
            case TextDelta():
                self._add("text", 0, event.text)
            case ThinkingDelta():
                self._add("thinking", 0, event.text)
            case ToolCallDelta():
                known = self._calls.get(event.index, ("", ""))
                self._calls[event.index] = event.id or known[0], event.name or known[1]
                self._add("tool_call", event.index, event.arguments)
            case Restarted():
                self._restart(event)
            case Completed():
                pass

    def stop(self) -> list[NewEvent]:
        """Write no more. What is not known to be written and still has to be; deltas have not."""
        self._writer.stop()
        taken = self._writer.unwritten
        mine = [new for new in taken.events if not isinstance(new.event, ModelDelta)] if taken else []
        mine += [one for one in self._waiting if isinstance(one, NewEvent)]
        self._waiting = []
        return mine

    async def settled(self) -> None:
        """Until a write that was begun before ``stop`` is over, for a while at most."""
        await self._writer.settled()

    def _add(self, kind: Kind, index: int, text: str) -> None:
        if not self._stream or self._writer.late:
            return
        last = self._waiting[-1] if self._waiting else None
        if not (isinstance(last, _Piece) and last.kind == kind and last.index == index):
            last = _Piece(kind, index, facts(self._call)["at"])
            self._waiting.append(last)
        last.texts.append(text)
        self._size += len(text)
        if self._size > MOST:
            self._stream = False
            self._drop_deltas()
            return
        self._writer.within(INTERVAL)

    def _restart(self, event: Restarted) -> None:
        """The next of a chain of models is asked; nothing that the one before has said counts."""
        self._drop_deltas()
        self._offsets.clear()
        self._calls.clear()
        said = facts(self._call)
        failed = ErrorEvent(**said, activity=MODEL_ACTIVITY, error_type=event.error_type, error=event.error)
        self._waiting.append(NewEvent(failed, key=f"failed/{self._call.owner}/{self._models}"))
        # Dropped by the store where nothing was streamed.
        undone = retracted(self._call, event.error_type)
        self._waiting.append(replace(undone, key=f"undone/{self._call.owner}/{self._models}"))
        self.asking(event.model)
        if self._stream:
            self._writer.within(INTERVAL)

    def _drop_deltas(self) -> None:
        self._waiting = [one for one in self._waiting if isinstance(one, NewEvent)]
        self._size = 0

    def _take(self) -> Batch | None:
        if not self._waiting:
            return None
        events = [one if isinstance(one, NewEvent) else self._delta(one) for one in self._waiting]
        self._waiting, self._size = [], 0
        return batch_of(self._call, events, token(self._call.asked_at, self._call.attempt), advances=True)

    def _delta(self, piece: _Piece) -> NewEvent:
        self.streamed = True
        text = clean("".join(piece.texts))
        at = piece.kind, piece.index
        offset = self._offsets.get(at, 0)
        self._offsets[at] = offset + len(text)
        call_id, name = self._calls[piece.index] if piece.kind == "tool_call" else ("", "")
        inside = self._call.agent.output_type.inside if name == FINISH_TOOL and self._call.agent else None
        event = ModelDelta(
            **{**facts(self._call), "at": piece.at},
            iteration=self._call.input.iteration,
            kind=piece.kind,
            text=text,
            offset=offset,
            index=piece.index,
            call_id=call_id,
            name=name,
            inside=inside,
        )
        return NewEvent(event)
