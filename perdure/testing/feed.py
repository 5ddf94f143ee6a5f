"""The events of conversations in memory, with the semantics of the real stores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..ports import Batch, EventRow, NewEvent
from ..types.events import Span, event_body, lost, read_event
from ..types.lineage import PathStep


@dataclass(slots=True)
class MemoryStream:
    """The events of a conversation and of all runs below it, in one order."""

    seq: int = 0
    rows: list[EventRow] = field(default_factory=list)


@dataclass(slots=True)
class MemoryFeed:
    """What the next batch of a conversation is measured by, and the stream that its events stand in."""

    context_id: str
    stream: MemoryStream = field(default_factory=MemoryStream)
    root: str | None = None
    """The run at the top of the stream; None for that one itself."""
    path: tuple[PathStep, ...] = ()
    """The way down from there by which it was begun last."""
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

    def write(self, batch: Batch, now: str, *, recorded: bool = False) -> bool:
        """See ``ports.events.Batch``; ``recorded`` for what comes with a recorded outcome. False for one too late."""
        if batch.token and batch.token < self.token and not recorded:
            return False
        if batch.lineage is not None and batch.lineage.root == self.root:
            self.path = batch.lineage.path
        settles = recorded and any(new.event.type in ("model.completed", "model.retracted") for new in batch.events)
        if batch.token > self.token:
            if self.open and not settles:
                first = next(row for row in self.rows if row.seq == self.open[0])
                delta = read_event(self.context_id, first.seq, first.task_id, first.type, first.body)
                assert delta is not None
                self._add(NewEvent(lost(delta, now)))
            if batch.advances:
                self.token = batch.token
        for new in batch.events:
            self._add(new)
        return True

    def after(self, seq: int, limit: int, *, children: bool) -> list[EventRow]:
        """Events behind number ``seq``, in order."""
        found = [row for row in self.stream.rows if row.seq > seq and self._has(row, children=children)]
        return [self._seen(row) for row in found[:limit]]

    def _has(self, row: EventRow, *, children: bool) -> bool:
        assert row.child is not None, "each says whose it is"
        return row.child == self.context_id or (children and row.child.startswith(f"{self.context_id}/"))

    def _seen(self, row: EventRow) -> EventRow:
        """As it is seen from this conversation."""
        if row.child == self.context_id:
            return replace(row, child=None, path=())
        return replace(row, path=row.path[len(self.path) :])

    def _add(self, new: NewEvent) -> None:
        event = new.event
        if new.key is not None and new.key in self.keys:
            return
        replaced: tuple[Span, ...] = ()
        if event.type == "model.retracted":
            replaced, self.open = spans(self.open), []
            if not replaced:
                return
        elif event.type == "model.completed":
            replaced = spans([row.seq for row in self.rows if row.type == "model.delta"])
            self.stream.rows = [
                row for row in self.stream.rows if row.child != self.context_id or row.type != "model.delta"
            ]
            self.open = []
        self.stream.seq += 1
        if event.type == "model.delta":
            self.open.append(self.seq)
        elif new.key is not None:
            self.keys.add(new.key)
        row = EventRow(self.seq, event.task_id, event.type, event_body(event), replaced, self.context_id, self.path)
        self.stream.rows.append(row)


def spans(numbers: list[int]) -> tuple[Span, ...]:
    """Ascending numbers as first and last of each row without a gap."""
    found: list[Span] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)
