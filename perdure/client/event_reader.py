"""Reads events of a conversation from the store, each once, and loads long texts and partial arguments into them.

Also builds the text of streamed replies from events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from jiter import from_json

from ..errors import InvalidInputError, StoreError, TranscriptCorruptedError
from ..ports import EventRow, Store
from ..store import Chain
from ..types.events import (
    Event,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    TurnEvent,
    decode_event,
    encode_event_body,
)
from ..types.messages import BlobRef

if TYPE_CHECKING:
    from .run import Run


# ---
# The text of streamed replies, from events to pieces of text for display.


class LiveText:
    """Returns the text to show for each event, so that all text of a reply is shown once.

    A retracted reply is written again by another attempt. While its text is the same, nothing more is shown; where it
    differs, a new line begins with the whole reply, because shown text cannot be taken back. An interrupted or
    abandoned reply is not written again. Text of subagents is not part of the run's text.
    """

    def __init__(self) -> None:
        self.reply = ""
        """The last complete reply."""
        self._of: tuple[str | None, int] | None = None
        """The turn and iteration of the current reply."""
        self._shown = ""
        """The text of the current reply shown so far, of all attempts."""
        self._said = ""
        """The text of the current attempt."""
        self.restarted = False
        """Whether the last piece began the reply again."""

    def feed(self, event: Event) -> str:
        """Return the text to show for ``event``; "" for nothing."""
        self.restarted = False
        if event.path:
            return ""
        if isinstance(event, ModelStarted | ModelDelta | ModelCompleted) and self._of != (
            event.task_id,
            event.iteration,
        ):
            self._of = event.task_id, event.iteration
            self._shown = self._said = ""
        if isinstance(event, ModelStarted):
            self._said = ""
        elif isinstance(event, ModelRetracted) and event.reason == "Interrupted":
            self._of = None
        elif isinstance(event, ModelDelta) and event.kind == "text":
            # A follower that starts in the middle of a reply has not seen the text before.
            self._said = self._said[: event.offset] + event.text
            return self._take_piece()
        elif isinstance(event, ModelCompleted):
            self._said = self.reply = event.text
            piece = self._take_piece(whole=True)
            self._of = None
            return piece
        return ""

    def _take_piece(self, *, whole: bool = False) -> str:
        said, shown = self._said, self._shown
        if said.startswith(shown):
            self._shown = said
            return said[len(shown) :]
        if shown.startswith(said) and not whole:
            return ""
        if whole and shown and said.endswith(shown):  # following began in the middle of the reply
            return ""
        self._shown, self.restarted = said, True
        return f"\n{said}"


# ---
# Partial arguments of a streamed tool call, and with them structured output.


EarlierDeltasReader = Callable[[ModelDelta], Awaitable[list[ModelDelta]]]
"""Reads the deltas that may precede the given one."""


class PartialArguments:
    """Adds to every delta of a tool call the arguments that can be parsed so far.

    A follower that starts in the middle of a call has not seen its beginning: ``earlier`` reads it.
    """

    def __init__(self, earlier: EarlierDeltasReader) -> None:
        self._earlier = earlier
        self._arguments: dict[int, str] = {}

    async def fill_partial(self, event: Event) -> Event:
        """Return ``event``; the delta of a tool call with ``partial`` set."""
        if isinstance(event, ModelStarted | ModelCompleted | ModelRetracted):
            self._arguments.clear()
        if not isinstance(event, ModelDelta) or event.kind != "tool_call":
            return event
        known: str | None = self._arguments.get(event.index, "")
        if len(known or "") != event.offset:
            known = join_deltas(await self._earlier(event), event)
        if known is None:  # its beginning is deleted: the reply is complete by now, and has all the text
            return event
        self._arguments[event.index] = text = known + event.text
        found = parse_partial_json(text)
        if event.inside is not None:
            found = found.get(event.inside) if isinstance(found, dict) else None
        return event.model_copy(update={"partial": found})


def join_deltas(before: list[ModelDelta], event: ModelDelta) -> str | None:
    """Join the text before ``event`` from deltas of the same call; None if some of it is missing."""
    text = ""
    for delta in before:
        if (delta.kind, delta.index, delta.attempt) != (event.kind, event.index, event.attempt):
            continue
        if delta.offset == 0:
            text = ""
        if delta.offset == len(text):
            text += delta.text
    return text if len(text) == event.offset else None


def parse_partial_json(text: str) -> Any:
    """Parse the JSON of ``text`` as far as it goes, with a string cut where the text ends; None if nothing can be
    parsed yet."""
    try:
        return from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return None


T = TypeVar("T")

EVENTS_PER_PAGE = 500
"""Events per read."""
STORE_WAIT_SECONDS = 5.0
"""Seconds after which the store is read even without a notification."""
STORE_RETRY_SECONDS = 60.0
"""Seconds that a store may be unreachable before a follower gets the error."""
SNAPSHOT_RETRY_SECONDS = 5.0
"""The same for a reader that does not wait for new events."""
_LOOKBACK_EVENTS = 64
"""Event numbers by which other events may separate the deltas of a call."""


class EventReader:
    """Reads the events of one conversation and of the runs below it, after number ``after``.

    With ``task_id`` only the events of that turn and of the runs that it starts; without ``children`` only the
    conversation's own events.
    """

    def __init__(
        self,
        context_id: str,
        store: Store,
        after: int,
        task_id: str | None = None,
        *,
        children: bool = True,
        patience: float = STORE_RETRY_SECONDS,
    ) -> None:
        """``patience``: see :func:`retry_store_read`. Raises ``InvalidInputError`` for an ``after`` that is not an
        integer."""
        if not isinstance(after, int) or isinstance(after, bool):
            raise InvalidInputError(
                f"after is the number of the last event that was seen, not {after!r:.100}",
                hint="It is event.seq; int(…) makes a number of what a header or a file has.",
            )
        self._context_id = context_id
        self._store = store
        self._chain = Chain(store)
        self._after = self._seen = after
        self._task_id = task_id
        self._children = children
        self._patience = patience
        self._partials: dict[str, PartialArguments] = {}

    async def read_rows(self) -> Sequence[EventRow]:
        """Read the next rows, empty if there are none; pass each to :meth:`build_event`."""
        return await self._read_page(self._context_id, self._after, children=self._children)

    async def build_event(self, row: EventRow) -> Event | None:
        """Build the event of the next row; None if it is not one of this reader's."""
        self._after = row.seq
        self._seen = max(self._seen, row.seq)
        if self._task_id is not None and (row.path[0].task_id if row.path else row.task_id) != self._task_id:
            return None
        event = self._decode_row(row)
        if event is None:
            return None
        partials = self._partials.setdefault(event.context_id, PartialArguments(self._read_earlier_deltas))
        if event.type == "run" and event.state not in ("started", "waiting", "paused"):
            del self._partials[event.context_id]  # a run may have started many others
        return await partials.fill_partial(await self._load_long_text(event))

    async def build_unrecorded_end(self, end: RunEvent) -> RunEvent | None:
        """Return ``end`` as the event after the last one, for a run whose events do not yet have that end.

        It is not stored, so a conversation that is reopened gives its number to another event. None if the events have
        the end, or if ``after`` is past it.
        """
        latest = await self._retry_read(lambda: self._store.wait_for_event(self._context_id, 0, 0.0))
        behind, told = max(0, latest - _LOOKBACK_EVENTS), ""
        while rows := await self._read_page(self._context_id, behind, children=False):
            behind = rows[-1].seq
            told = next(
                (event.state for row in reversed(rows) if isinstance(event := self._decode_row(row), RunEvent)), told
            )
        if latest + 1 <= self._after or told == end.state:
            return None
        event = decode_event(self._context_id, latest + 1, None, end.type, encode_event_body(end), ())
        return event if isinstance(event, RunEvent) else None

    async def wait_for_more(self, over: asyncio.Future[Any]) -> None:
        """Wait until there may be more events, or ``over`` is done."""
        changed = asyncio.ensure_future(self._wait_for_change())
        try:
            await asyncio.wait([changed, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)

    async def _wait_for_change(self) -> None:
        """Wait for an event after ``_seen``: the numbers are shared with events that this reader does not read."""
        try:
            latest = await self._store.wait_for_event(self._context_id, self._seen, STORE_WAIT_SECONDS)
            self._seen = max(latest, self._seen)
        except StoreError:  # the next read retries, or raises the error
            await asyncio.sleep(0.1)

    async def _read_page(self, of: str, after: int, *, children: bool) -> Sequence[EventRow]:
        return await self._retry_read(
            lambda: self._store.read_events(of, after=after, limit=EVENTS_PER_PAGE, children=children)
        )

    async def _retry_read(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await retry_store_read(ask, self._patience)

    def _decode_row(self, row: EventRow) -> Event | None:
        of = row.child or self._context_id
        return decode_event(of, row.seq, row.task_id, row.type, row.body, row.spans, row.path)

    async def _load_long_text(self, event: Event) -> Event:
        """Load the text of a reply or an answer that is too long for its event."""
        if isinstance(event, ModelCompleted | TurnEvent) and event.blob is not None:
            where = "text" if isinstance(event, ModelCompleted) else "content"
            text = await self._load_blob(event.blob)
            return event if text is None else event.model_copy(update={where: text, "blob": None})
        return event

    async def _load_blob(self, blob: BlobRef) -> str | None:
        try:
            return await self._retry_read(lambda: self._chain.resolve_blob(blob))
        except TranscriptCorruptedError:  # the reference stays, so that the events after it can still be read
            return None

    async def _read_earlier_deltas(self, event: ModelDelta) -> list[ModelDelta]:
        """Read the deltas of the same run before ``event``, back to the beginning of its call.

        Each has at least one character, so they are near, unless other runs have taken numbers between them.
        """
        back = event.offset + _LOOKBACK_EVENTS
        while True:
            behind = max(0, event.seq - 1 - back)
            found = [one async for one in self._iter_earlier_events(event, behind)]
            begun = any(isinstance(one, ModelStarted) or _is_call_start(one, event) for one in found)
            if begun or not behind:
                return [one for one in found if isinstance(one, ModelDelta)]
            back *= 4

    async def _iter_earlier_events(self, event: ModelDelta, behind: int) -> AsyncIterator[Event]:
        """Yield the events of the same run before ``event``."""
        of = event.context_id
        while behind < event.seq - 1 and (rows := await self._read_page(of, behind, children=False)):
            for row in rows:
                read = decode_event(of, row.seq, row.task_id, row.type, row.body, row.spans)
                if read is not None and row.seq < event.seq:
                    yield read
            behind = rows[-1].seq


def _is_call_start(one: Event, event: ModelDelta) -> bool:
    """Whether ``one`` is the first delta of the call of ``event``."""
    if not isinstance(one, ModelDelta) or one.offset:
        return False
    return (one.kind, one.index, one.attempt) == (event.kind, event.index, event.attempt)


async def retry_store_read(ask: Callable[[], Awaitable[T]], patience: float = STORE_RETRY_SECONDS) -> T:
    """Return the result of ``ask()``, retried for ``patience`` seconds while the store is locked or unreachable.

    Raises ``StoreError``.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while True:
        try:
            return await ask()
        except StoreError as error:
            if not error.retryable or loop.time() > until:
                raise
            await asyncio.sleep(0.5)


# ---
# The text of a run's replies as a stream.


async def stream_reply_text(run: Run) -> AsyncGenerator[str]:
    """Yield pieces of text; every reply after the first begins on a new line.

    Raises the run's error, as ``run.result()`` does, after all text has been yielded.
    """
    live, between = LiveText(), ""
    async with aclosing(run.events(children=False)) as events:
        async for event in events:
            if piece := live.feed(event):
                yield between + piece
                between = ""
            if event.type == "model.completed" and event.text:
                between = "\n"
    await run.result()
