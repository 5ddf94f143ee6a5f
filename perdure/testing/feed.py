"""The events of one conversation in memory, with the semantics of the real stores."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ports import Batch, EventRow, NewEvent
from ..types.events import Span, event_body, lost, read_event


@dataclass(slots=True)
class MemoryFeed:
    """What is recorded, and what the next batch is measured by."""

    context_id: str
    seq: int = 0
    token: str = ""
    rows: list[EventRow] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    open: list[int] = field(default_factory=list)
    """Numbers of the deltas that are neither complete nor retracted."""

    def write(self, batch: Batch, now: str, *, recorded: bool = False) -> bool:
        """See ``ports.events.Batch``; ``recorded`` for what comes with a recorded outcome. False for one too late."""
        if batch.token and batch.token < self.token and not recorded:
            return False
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

    def after(self, seq: int, limit: int) -> list[EventRow]:
        """Events behind number ``seq``, in order."""
        return [row for row in self.rows if row.seq > seq][:limit]

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
            self.rows = [row for row in self.rows if row.type != "model.delta"]
            self.open = []
        self.seq += 1
        if event.type == "model.delta":
            self.open.append(self.seq)
        elif new.key is not None:
            self.keys.add(new.key)
        self.rows.append(EventRow(self.seq, event.task_id, event.type, event_body(event), replaced))


def spans(numbers: list[int]) -> tuple[Span, ...]:
    """Ascending numbers as first and last of each row without a gap."""
    found: list[Span] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)
