"""Reads events of a conversation from the store, each once, and loads long texts and partial arguments into them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from jiter import from_json

from .. import events
from ..errors import InvalidInputError, StoreError, TranscriptCorruptedError
from ..store import Chain
from ..types.run_states import ENDED_STATES
from .handles import ClientHandle
from .watches import EndWatch, EventPage, EventWatch, join_event_watch

if TYPE_CHECKING:
    from ..ports.store import EventRow, Store

T = TypeVar("T")

EVENTS_PER_PAGE = 500
"""Events per read."""
STORE_RETRY_SECONDS = 60.0
"""Seconds that a store may be unreachable before a follower gets the error."""
SNAPSHOT_RETRY_SECONDS = 5.0
"""The same for a reader that does not wait for new events."""
_LOOKBACK_EVENTS = 64
"""Event numbers by which other events may separate the deltas of a call."""


# ---
# Partial arguments of a streamed tool call, and with them structured output.


EarlierDeltasReader = Callable[["events.ModelDelta"], Awaitable[list["events.ModelDelta"]]]
"""Reads the deltas that may precede the given one."""


_LONG_ARGUMENTS_CHARS = 10_000
"""Above this, arguments are parsed when they have grown by a hundredth, not with every piece: the cost of all pieces
together would grow with the square of their length."""


@dataclass
class _WrittenArguments:
    """The arguments of a call that have been read so far."""

    pieces: list[str]
    chars: int
    parsed_chars: int = 0
    parsed: Any = None

    def parse(self) -> Any:
        """Parse them, if they have grown enough since they were parsed last."""
        if self.chars <= _LONG_ARGUMENTS_CHARS or self.chars - self.parsed_chars >= self.chars // 100:
            self.pieces = ["".join(self.pieces)]
            self.parsed, self.parsed_chars = parse_partial_json(self.pieces[0]), self.chars
        return self.parsed


class PartialArguments:
    """Adds to every delta of a tool call the arguments that can be parsed so far.

    A follower that starts in the middle of a call has not seen its beginning: ``earlier`` reads it.
    """

    def __init__(self, earlier: EarlierDeltasReader) -> None:
        self._earlier = earlier
        self._written: dict[int, _WrittenArguments] = {}

    async def fill_partial(self, event: events.Event) -> events.Event:
        """Return ``event``; the delta of a tool call with ``partial`` set."""
        if isinstance(event, events.ModelStarted | events.ModelCompleted | events.ModelRetracted):
            self._written.clear()
        if not isinstance(event, events.ModelDelta) or event.kind != "tool_call":
            return event
        written = self._written.get(event.index)
        if written is None or written.chars != event.offset:
            before = join_deltas(await self._earlier(event), event) if event.offset else ""
            if before is None:  # its beginning is deleted: the reply is complete by now, and has all the text
                return event
            written = self._written[event.index] = _WrittenArguments([before], len(before))
        written.pieces.append(event.text)
        written.chars += len(event.text)
        arguments = written.parse()
        if event.inside is not None:
            arguments = arguments.get(event.inside) if isinstance(arguments, dict) else None
        return event.model_copy(update={"partial": arguments})


def join_deltas(before: list[events.ModelDelta], event: events.ModelDelta) -> str | None:
    """Join the text before ``event`` from deltas of the same call; None if some of it is missing."""
    text = ""
    for delta in before:
        if _call_key(delta) != _call_key(event):
            continue
        if delta.offset == 0:
            text = ""
        if delta.offset == len(text):
            text += delta.text
    return text if len(text) == event.offset else None


def _call_key(delta: events.ModelDelta) -> tuple[str, int, int]:
    return delta.kind, delta.index, delta.attempt


def parse_partial_json(text: str) -> Any:
    """Parse the JSON of ``text`` as far as it goes, with a string cut where the text ends; None if nothing can be
    parsed yet."""
    try:
        return from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return None


# ---
# Reads of events from the store.


async def retry_store_read(read: Callable[[], Awaitable[T]], seconds: float = STORE_RETRY_SECONDS) -> T:
    """Return the result of ``read()``, retried for ``seconds`` while the store is locked or unreachable.

    Raises ``StoreError``.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await read()
        except StoreError as error:
            if not error.retryable or loop.time() >= deadline:
                raise
            await asyncio.sleep(0.5)


async def iter_own_rows(
    store: Store, context_id: str, after: int = 0, *, retry_seconds: float = STORE_RETRY_SECONDS
) -> AsyncGenerator[EventRow]:
    """Yield the conversation's own events after number ``after``. Raises ``StoreError``."""
    while rows := await _read_page(store, context_id, after, retry_seconds, children=False):
        for row in rows:
            yield row
        after = rows[-1].seq


async def _read_page(
    store: Store, context_id: str, after: int, retry_seconds: float, *, children: bool
) -> Sequence[EventRow]:
    read = partial(store.read_events, context_id, after=after, limit=EVENTS_PER_PAGE, children=children)
    return await retry_store_read(read, retry_seconds)


def decode_row(context_id: str, row: EventRow) -> events.Event | None:
    """Decode a row that was read for ``context_id``; None for an event of a type that only a newer perdure knows."""
    return events.decode_event(row.child or context_id, row.seq, row.task_id, row.type, row.body, row.spans, row.path)


@dataclass
class EventReader:
    """Reads the events of one conversation and of the runs below it, after number ``after``.

    With ``task_id`` only the events of that turn and of the runs that it starts; without ``children`` only the
    conversation's own events; without ``texts`` long texts stay references, and deltas have no ``partial``. Without
    ``wait`` it reads the events recorded so far, and gives up on a store that is unreachable for
    ``SNAPSHOT_RETRY_SECONDS``. Raises ``InvalidInputError`` for an ``after`` that is not an integer.
    """

    context_id: str
    store: Store
    after: int
    task_id: str | None = None
    children: bool = True
    wait: bool = True
    texts: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.after, int) or isinstance(self.after, bool):
            raise InvalidInputError(
                f"after is the number of the last event that was seen, not {self.after!r:.100}",
                hint="It is event.seq; int(…) converts a header's or a file's text.",
            )
        self._seen = self.after
        self._chain = Chain(self.store)
        self._retry_seconds = STORE_RETRY_SECONDS if self.wait else SNAPSHOT_RETRY_SECONDS
        self._partials: dict[str, PartialArguments] = {}

    async def read_until(self, client: ClientHandle, ending: EndWatch[Any]) -> AsyncGenerator[events.Event]:
        """Yield events until ``ending`` is over and all events recorded by then are read. Raises what its end
        raises."""
        async with join_event_watch(client, self.store, self.context_id) as watch:
            while not ending.is_over:
                async with aclosing(self.read_recorded(watch, to_end=False)) as events:
                    async for event in events:
                        yield event
                # The numbers are shared with events that this reader does not read.
                self._seen = await watch.wait_for_event(self._seen, ending)
        ending.end.result()
        async with aclosing(self.read_recorded()) as events:
            async for event in events:
                yield event

    async def read_recorded(
        self, watch: EventWatch | None = None, *, to_end: bool = True
    ) -> AsyncGenerator[events.Event]:
        """Yield the events recorded so far: up to an empty page, or without ``to_end`` to one that is not full, which
        with ``watch`` may be one that another follower has read a moment ago."""
        while rows := (page := await self._read_page(watch)).rows:
            for row in rows:
                if (event := await self._build_event(row, page.decoded)) is not None:
                    yield event
            if len(rows) < EVENTS_PER_PAGE and not to_end:
                return

    async def _read_page(self, watch: EventWatch | None) -> EventPage:
        if watch is None:
            rows = await _read_page(
                self.store, self.context_id, self.after, self._retry_seconds, children=self.children
            )
            return EventPage(rows)
        return await self._retry(lambda: watch.read_page(self.after, children=self.children, limit=EVENTS_PER_PAGE))

    async def build_unrecorded_end(self, end: events.RunEvent) -> events.RunEvent | None:
        """Return ``end`` as the event after the last one, for a run whose events do not yet have that end.

        It is not stored, so a conversation that is reopened gives its number to another event. None if the events have
        the end, or if ``after`` is past it.
        """
        latest = await self._retry(lambda: self.store.wait_for_event(self.context_id, 0, 0.0))
        recorded_state = ""
        async for row in self._iter_own_rows(self.context_id, max(0, latest - _LOOKBACK_EVENTS)):
            if isinstance(event := decode_row(self.context_id, row), events.RunEvent):
                recorded_state = event.state
        if latest + 1 <= self.after or recorded_state == end.state:
            return None
        return end.model_copy(update={"context_id": self.context_id, "seq": latest + 1})

    async def _build_event(self, row: EventRow, decoded: dict[int, events.Event | None] | None) -> events.Event | None:
        """Build the event of the next row; None if it is not one of this reader's. ``decoded`` has those of its page
        that another reader has built, for readers without ``texts``: programs may change what they are given."""
        self.after = row.seq
        self._seen = max(self._seen, row.seq)
        if self.task_id is not None and (row.path[0].task_id if row.path else row.task_id) != self.task_id:
            return None
        if not self.texts and decoded is not None:
            if row.seq not in decoded:
                decoded[row.seq] = decode_row(self.context_id, row)
            return decoded[row.seq]
        event = decode_row(self.context_id, row)
        if event is None or not self.texts:
            return event
        partials = self._partials.setdefault(event.context_id, PartialArguments(self._read_earlier_deltas))
        if event.type == "run" and event.state in ENDED_STATES:
            del self._partials[event.context_id]  # a run may have started many others
        return await partials.fill_partial(await self._load_long_text(event))

    async def _retry(self, read: Callable[[], Awaitable[T]]) -> T:
        return await retry_store_read(read, self._retry_seconds)

    async def _load_long_text(self, event: events.Event) -> events.Event:
        """Load the text of a reply or an answer that is too long for its event."""
        if not isinstance(event, events.ModelCompleted | events.TurnEvent) or (blob := event.blob) is None:
            return event
        try:
            text = await self._retry(lambda: self._chain.resolve_blob(blob))
        except TranscriptCorruptedError:  # the reference stays, so that the events after it can still be read
            return event
        return event.model_copy(update={"text" if event.type == "model.completed" else "content": text, "blob": None})

    async def _read_earlier_deltas(self, event: events.ModelDelta) -> list[events.ModelDelta]:
        """Read the deltas of the same run before ``event``, back to the beginning of its call.

        Each has at least one character, so they are near, unless other runs have taken numbers between them.
        """
        lookback = event.offset + _LOOKBACK_EVENTS
        while True:
            after = max(0, event.seq - 1 - lookback)
            deltas: list[events.ModelDelta] = []
            has_start = False
            async with aclosing(self._iter_own_rows(event.context_id, after)) as rows:
                async for row in rows:
                    if row.seq >= event.seq:
                        break
                    earlier = decode_row(event.context_id, row)
                    if isinstance(earlier, events.ModelStarted):
                        has_start = True
                    elif isinstance(earlier, events.ModelDelta):
                        deltas.append(earlier)
                        has_start = has_start or (not earlier.offset and _call_key(earlier) == _call_key(event))
            if has_start or not after:
                return deltas
            lookback *= 4

    def _iter_own_rows(self, context_id: str, after: int) -> AsyncGenerator[EventRow]:
        return iter_own_rows(self.store, context_id, after, retry_seconds=self._retry_seconds)
