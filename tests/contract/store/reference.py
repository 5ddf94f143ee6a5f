"""What the stores are compared with: events, their numbers, waits, failing calls and outbox in plain Python, without
SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perdure.ports.failures import (
    HELD_UP_ATTEMPTS,
    FailedAttempts,
    FailingCall,
    FailureChange,
    FailureFilter,
    find_failure_changes,
)
from perdure.ports.outbox import OutboxRow, WriteOptions
from perdure.ports.store import Claim, Commit, EventBatch, EventRow, NewEvent, build_spans
from perdure.ports.waits import WaitRow, find_wait_changes
from perdure.types.events import Span, build_worker_lost_retraction, decode_event, encode_event_body
from perdure.types.run_ids import build_run_id_error
from perdure.types.subagents import PathStep


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
        self,
        batch: EventBatch,
        now: str,
        on_written: Callable[[int, int], None],
        confirm: Callable[[int], bool],
        *,
        recorded: bool = False,
    ) -> bool:
        """Write ``batch``, see :class:`perdure.ports.store.EventBatch`; ``recorded`` for a batch of a recorded outcome.
        False if it is too late. ``on_written`` is called with index and number of each event that is written, and
        ``confirm`` with the index of each that is not known to be written already: false drops it."""
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
            if new.key in self.keys or not confirm(index):
                continue
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


class ReferenceStore:
    """The methods of a store that the comparisons call. ``now`` is the clock of all rows."""

    def __init__(self, *, now: Callable[[], str]) -> None:
        self.write_options = WriteOptions()
        self._now = now
        self._feeds: dict[str, MemoryFeed] = {}
        self._owners: dict[str, tuple[str, int]] = {}
        """By key of the journal the owner of its claim, and how often it was claimed."""
        self._outcomes: dict[str, bytes] = {}
        self._waits: dict[tuple[str, str], tuple[WaitRow, int]] = {}
        self._failing: dict[tuple[str, str], FailingCall] = {}
        self._failed: Counter[tuple[str, str, FailureChange, str | None, str | None]] = Counter()
        self._outbox: list[OutboxRow] = []

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def append(self, batch: EventBatch) -> bool:
        return self._write(batch)

    async def claim(self, key: str, owner: str, *, again: bool, events: EventBatch) -> Claim:
        assert again, "no comparison claims without"
        other, starts = self._owners.get(key, (None, 0))
        self._owners[key] = owner, starts + 1
        self._write(events)
        return Claim("new", starts=starts + 1, begun_by=other)

    async def commit(self, commit: Commit) -> bytes:
        assert commit.outcome is not None
        assert commit.events is not None
        recorded = self._outcomes.get(commit.outcome.key)
        if recorded is None:
            self._check_root(commit.events)
            self._outcomes[commit.outcome.key] = commit.outcome.body
            self._write(commit.events, recorded=True)
        return recorded or commit.outcome.body

    async def read_events(self, context_id: str, *, children: bool = True) -> list[EventRow]:
        feed = self._feeds.get(context_id)
        return [] if feed is None else feed.read_after(0, 1000, children=children)

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        feed = self._feeds.get(context_id)
        return feed.seq if feed is not None and feed.seq > after else 0

    async def list_waits(self, *, limit: int) -> list[WaitRow]:
        rows = [
            replace(
                row, body=next((event.body for event in self._feeds[row.root].stream.rows if event.seq == seq), None)
            )
            for row, seq in self._waits.values()
        ]
        return sorted(rows, key=WaitRow.get_cursor)[:limit]

    async def list_failing_calls(self, *, held_up: bool, limit: int) -> list[FailingCall]:
        rows = [row for row in self._failing.values() if row.held_up_at is not None or not held_up]
        return sorted(rows, key=lambda row: (row.since, row.context_id, row.call))[:limit]

    async def sum_failed_attempts(self, by: str, filter: FailureFilter, *, limit: int) -> list[FailedAttempts]:
        assert by == "agent"
        sums: dict[tuple[str, str, str, int | None, str], tuple[int, int]] = {}
        for (agent, action, change, _, _), number in self._failed.items():
            status = int(change.status) if change.status else None
            cause = agent, change.kind, change.source, status, change.error_type
            attempts, ended = sums.get(cause, (0, 0))
            sums[cause] = attempts + number, ended + number * (action == "end")
        return [FailedAttempts(*cause, *numbers) for cause, numbers in sums.items()]  # type: ignore[arg-type]  # a kind

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int) -> list[OutboxRow]:
        rows = [replace(row, taken=1) for row in self._outbox if row.target == target]
        return sorted(rows, key=lambda row: (row.created_at, row.stream, row.seq))[:limit]

    async def count_keys(self) -> dict[str | None, dict[str, int]]:
        streams = {id(feed.stream): feed.stream for feed in self._feeds.values()}
        counts = {"journal": len(self._outcomes), "events": sum(len(stream.rows) for stream in streams.values())}
        present = {table: count for table, count in counts.items() if count}
        return {self.write_options.key_id: present} if present else {}

    def _check_root(self, batch: EventBatch) -> None:
        feed = self._feeds.get(batch.context_id)
        if feed is not None and batch.lineage is not None and feed.root != batch.lineage.root:
            raise build_run_id_error()

    def _get_or_create_feed(self, batch: EventBatch) -> MemoryFeed:
        """Return the feed of the conversation; its first batch fixes the stream of its events."""
        if batch.context_id not in self._feeds:
            feed = self._feeds[batch.context_id] = MemoryFeed(batch.context_id)
            if batch.lineage is not None:
                feed.root, feed.path = batch.lineage.root, batch.lineage.path
                feed.stream = self._feeds.setdefault(feed.root, MemoryFeed(feed.root)).stream
        return self._feeds[batch.context_id]

    def _write(self, batch: EventBatch, *, recorded: bool = False) -> bool:
        self._check_root(batch)
        feed, now = self._get_or_create_feed(batch), self._now()
        is_of_lost_worker = "" != (batch.token or batch.scheduled) < feed.token
        events = [new.event for new in batch.events]
        changes = [] if is_of_lost_worker else find_wait_changes(batch.context_id, events, batch.lineage)
        targets = self.write_options.find_targets(events)
        stream = feed.root or feed.context_id
        failures = {
            change.position: change
            for change in find_failure_changes(events, agent=batch.agent, tenant=batch.tenant, user=batch.user)
        }

        def confirm_event(index: int) -> bool:
            change = failures.get(index)
            if change is None or change.action not in ("hold_up", "recover"):
                return True
            of_call = batch.context_id, change.call
            row = self._failing.get(of_call)
            if row is None or is_of_lost_worker:
                return False
            if change.action == "recover":
                return self._failing.pop(of_call).held_up_at is not None
            if row.attempts < HELD_UP_ATTEMPTS or row.held_up_at is not None:
                return False
            self._failing[of_call] = replace(row, held_up_at=change.at)
            return True

        def note_failure(change: FailureChange) -> None:
            named = change._replace(position=0, action="fail", call="", error="", at="", next_at="", key="")
            self._failed[batch.agent, change.action, named, batch.tenant, batch.user] += 1
            of_call = batch.context_id, change.call
            if change.action == "end":
                self._failing.pop(of_call, None)
            elif change.action == "fail":
                first = self._failing.get(of_call)
                labels = batch.agent, batch.tenant, batch.user
                cause = change.kind, change.source, change.error_type, change.error
                status = int(change.status) if change.status else None
                row = FailingCall(*of_call, stream, *labels, *cause, status, 1, change.at, change.at, change.next_at)
                if first is not None:
                    row = replace(
                        row, attempts=first.attempts + 1, since=first.since, held_up_at=first.held_up_at,
                        tenant=first.tenant, user=first.user,
                    )  # fmt: skip
                self._failing[of_call] = row

        def end_failing(call: str | None = None, *, tools: bool = False) -> None:
            for (context_id, name), row in list(self._failing.items()):
                if context_id == batch.context_id and call in (None, name) and (not tools or row.kind == "tool"):
                    del self._failing[context_id, name]

        def note_event(index: int, seq: int) -> None:
            if index in failures and failures[index].action in ("fail", "end", "count"):
                note_failure(failures[index])
            if events[index].type == "model.started":
                end_failing(tools=True)
            for change in (change for change in changes if change.position == index):
                of_call = change.context_id, change.call_id or ""
                if change.kind is None and change.context_id == batch.context_id:
                    end_failing(change.call_id)
                if change.call_id is None:
                    self._waits = {name: row for name, row in self._waits.items() if name[0] != change.context_id}
                elif change.kind is None:
                    self._waits.pop(of_call, None)
                else:
                    wait = WaitRow(
                        *of_call, stream, change.kind, batch.agent, change.tool, change.hash, change.created_at
                    )
                    self._waits[of_call] = replace(wait, expires_at=change.expires_at), seq
            for _, target in (pair for pair in targets if pair[0] == index and pair[1] in self.write_options.outbox):
                row = OutboxRow(stream, seq, target, batch.context_id, events[index].type, now)
                self._outbox.append(row)

        return feed.write(batch, now, note_event, confirm_event, recorded=recorded)
