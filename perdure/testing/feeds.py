"""The events of conversations in memory, with the semantics of the real stores, for :class:`.store.MemoryStore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..ports import EventBatch, EventRow, NewEvent
from ..ports.store import build_spans
from ..types.events import Span, build_worker_lost_retraction, decode_event, encode_event_body
from ..types.subagents import PathStep


@dataclass(slots=True)
class MemoryStream:
    """The events of a conversation and of all runs below it, in one order."""

    seq: int = 0
    rows: list[EventRow] = field(default_factory=list)


@dataclass(slots=True)
class MemoryFeed:
    """The feed of a conversation: the state that its next batch is compared with, and the stream of its events."""

    context_id: str
    stream: MemoryStream = field(default_factory=MemoryStream)
    root: str | None = None
    """The root run of the stream; None for the root itself."""
    path: tuple[PathStep, ...] = ()
    """The path from the root by which it was started last."""
    token: str = ""
    keys: set[str] = field(default_factory=set)
    open: list[int] = field(default_factory=list)
    """Numbers of the deltas that are neither complete nor retracted."""

    @property
    def seq(self) -> int:
        """The last number of the stream."""
        return self.stream.seq

    @property
    def rows(self) -> list[EventRow]:
        """The events of this conversation alone."""
        return [row for row in self.stream.rows if row.child == self.context_id]

    def write(
        self, batch: EventBatch, now: str, on_written: Callable[[int, int], None], *, recorded: bool = False
    ) -> bool:
        """Write ``batch``, see :class:`perdure.ports.EventBatch`; ``recorded`` for a batch of a recorded outcome. False
        if it is too late. ``on_written`` is called with the index and the number of each event that is written."""
        if batch.token and batch.token < self.token and not recorded:
            return False
        if batch.lineage is not None:
            self.path = batch.lineage.path
        ends_deltas = any(new.event.type in ("model.completed", "model.retracted") for new in batch.events)
        if batch.token > self.token:
            if self.open and not (recorded and ends_deltas):
                first = next(row for row in self.rows if row.seq == self.open[0])
                delta = decode_event(self.context_id, first.seq, first.task_id, first.type, first.body)
                assert delta is not None
                self._add_event(NewEvent(build_worker_lost_retraction(delta, now)))
            if batch.advances:
                self.token = batch.token
        for index, new in enumerate(batch.events):
            if self._add_event(new):
                on_written(index, self.seq)
        return True

    def read_after(self, seq: int, limit: int, *, children: bool) -> list[EventRow]:
        """Events after number ``seq``, in order."""
        rows = [row for row in self.stream.rows if row.seq > seq and self._has_row(row, children=children)]
        return [self._localize_row(row) for row in rows[:limit]]

    def _has_row(self, row: EventRow, *, children: bool) -> bool:
        assert row.child is not None, "a memory stream names the run of every row, also the root's"
        return row.child == self.context_id or (children and row.child.startswith(f"{self.context_id}/"))

    def _localize_row(self, row: EventRow) -> EventRow:
        """Return the row relative to this conversation."""
        if row.child == self.context_id:
            return replace(row, child=None, path=())
        return replace(row, path=row.path[len(self.path) :])

    def _add_event(self, new: NewEvent) -> bool:
        event = new.event
        if new.key is not None and new.key in self.keys:
            return False
        spans: tuple[Span, ...] = ()
        if event.type == "model.retracted":
            spans, self.open = build_spans(self.open), []
            if not spans:
                return False
        elif event.type == "model.completed":
            spans = build_spans(row.seq for row in self.rows if row.type == "model.delta")
            self.stream.rows = [
                row for row in self.stream.rows if row.child != self.context_id or row.type != "model.delta"
            ]
            self.open = []
        self.stream.seq += 1
        if event.type == "model.delta":
            self.open.append(self.seq)
        elif new.key is not None:
            self.keys.add(new.key)
        body = encode_event_body(event)
        self.stream.rows.append(EventRow(self.seq, event.task_id, event.type, body, spans, self.context_id, self.path))
        return True
