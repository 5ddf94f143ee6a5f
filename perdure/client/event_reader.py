"""Reads events of a conversation from the store, each once, and fills in what is not stored with them."""

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
# The text of replies as it comes, for a person: from events to pieces of text.


class LiveText:
    """Says what to show of each event, so that everything that a reply says is shown, and once.

    A reply that is retracted is written again by another attempt. As far as that says the same, nothing more is shown;
    where it goes another way, a new line begins, and with it the whole reply: what was shown cannot be unsaid. One that
    is interrupted, or given up, is not written again. What subagents say is not said by the run.
    """

    def __init__(self) -> None:
        self.reply = ""
        """The last one that is whole."""
        self._of: tuple[str | None, int] | None = None
        """The turn and iteration of the present reply."""
        self._shown = ""
        """Of the present reply, by whichever attempt."""
        self._said = ""
        """By the present attempt."""
        self.restarted = False
        """Whether the last piece began a reply anew."""

    def feed(self, event: Event) -> str:
        """What to show now, "" for nothing."""
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
            # Someone who comes in the middle of a reply has not seen what stands before.
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
        if whole and shown and said.endswith(shown):  # it was followed from the middle on
            return ""
        self._shown, self.restarted = said, True
        return f"\n{said}"


# ---
# Arguments of a tool call, and with them structured output, as far as they have streamed.


EarlierDeltasReader = Callable[[ModelDelta], Awaitable[list[ModelDelta]]]
"""Reads the deltas that may stand before one."""


class PartialArguments:
    """Gives every delta of a tool call what can be read of its arguments so far.

    Whoever begins to follow in the middle of a call has not seen its beginning: ``earlier`` reads it.
    """

    def __init__(self, earlier: EarlierDeltasReader) -> None:
        self._earlier = earlier
        self._arguments: dict[int, str] = {}

    async def fill_partial(self, event: Event) -> Event:
        """``event``, of a tool call's delta with ``partial``."""
        if isinstance(event, ModelStarted | ModelCompleted | ModelRetracted):
            self._arguments.clear()
        if not isinstance(event, ModelDelta) or event.kind != "tool_call":
            return event
        known: str | None = self._arguments.get(event.index, "")
        if len(known or "") != event.offset:
            known = join_deltas(await self._earlier(event), event)
        if known is None:  # its beginning is gone: the reply is complete by now, and says it all
            return event
        self._arguments[event.index] = text = known + event.text
        found = parse_partial_json(text)
        if event.inside is not None:
            found = found.get(event.inside) if isinstance(found, dict) else None
        return event.model_copy(update={"partial": found})


def join_deltas(before: list[ModelDelta], event: ModelDelta) -> str | None:
    """The text before ``event``, from deltas of the same call; None where some of it is missing."""
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
    """The JSON of ``text`` as far as it goes, a text in it cut where it ends; None where nothing can be read yet."""
    try:
        return from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return None


T = TypeVar("T")

EVENTS_PER_PAGE = 500
"""Events that are read at once."""
STORE_WAIT_SECONDS = 5.0
"""Seconds after which the store is looked at in any case."""
STORE_RETRY_SECONDS = 60.0
"""Seconds that a store may be out of reach before a follower is told."""
SNAPSHOT_RETRY_SECONDS = 5.0
"""The same for a reader who wants what is there now."""
_LOOKBACK_EVENTS = 64
"""Numbers that other events may have taken among the deltas of a call."""


class EventReader:
    """Of one conversation and of the runs below it, behind number ``after``.

    With ``task_id`` only what happens in that turn, and in the runs that it begins; without ``children`` only the
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
        """``patience``: see :func:`retry_store_read`. Raises ``InvalidInputError`` for an ``after`` that is no
        number."""
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
        """The next ones, none where there are none; :meth:`event` takes them."""
        return await self._read_page(self._context_id, self._after, children=self._children)

    async def build_event(self, row: EventRow) -> Event | None:
        """The event of the next row, where it is one that this reader reads."""
        self._after = row.seq
        self._seen = max(self._seen, row.seq)
        if self._task_id is not None and (row.path[0].task_id if row.path else row.task_id) != self._task_id:
            return None
        event = self._decode_row(row)
        if event is None:
            return None
        partials = self._partials.setdefault(event.context_id, PartialArguments(self._read_earlier_deltas))
        if event.type == "run" and event.state not in ("started", "waiting", "paused"):
            del self._partials[event.context_id]  # a run may have begun many others
        return await partials.fill_partial(await self._load_long_text(event))

    async def build_unrecorded_end(self, end: RunEvent) -> RunEvent | None:
        """``end`` as the event behind the last one, for a run whose events do not say yet that it has ended so.

        It is not stored, so a conversation that is opened again gives its number to another event. None where the
        events say it, or where ``after`` is behind it.
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
        """Wait until there may be more, or ``over`` is done."""
        changed = asyncio.ensure_future(self._wait_for_change())
        try:
            await asyncio.wait([changed, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)

    async def _wait_for_change(self) -> None:
        """Others are numbered together with what is read here: whoever waits has looked up to ``_seen``."""
        try:
            latest = await self._store.wait_for_event(self._context_id, self._seen, STORE_WAIT_SECONDS)
            self._seen = max(latest, self._seen)
        except StoreError:  # the next read waits for it, or says what is wrong
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
        """A reply or an answer that is too long for its event, whole."""
        if isinstance(event, ModelCompleted | TurnEvent) and event.blob is not None:
            where = "text" if isinstance(event, ModelCompleted) else "content"
            text = await self._load_blob(event.blob)
            return event if text is None else event.model_copy(update={where: text, "blob": None})
        return event

    async def _load_blob(self, blob: BlobRef) -> str | None:
        try:
            return await self._retry_read(lambda: self._chain.resolve_blob(blob))
        except TranscriptCorruptedError:  # it stays a reference: nobody shall be kept from what comes behind
            return None

    async def _read_earlier_deltas(self, event: ModelDelta) -> list[ModelDelta]:
        """Deltas of the same run before ``event``, back to where its call begins.

        Each has a character at least, so they are not far, unless other runs have taken numbers among them.
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
        """Events of the run of ``event`` before it."""
        of = event.context_id
        while behind < event.seq - 1 and (rows := await self._read_page(of, behind, children=False)):
            for row in rows:
                read = decode_event(of, row.seq, row.task_id, row.type, row.body, row.spans)
                if read is not None and row.seq < event.seq:
                    yield read
            behind = rows[-1].seq


def _is_call_start(one: Event, event: ModelDelta) -> bool:
    """Whether ``one`` is the beginning of the call that ``event`` is a part of."""
    if not isinstance(one, ModelDelta) or one.offset:
        return False
    return (one.kind, one.index, one.attempt) == (event.kind, event.index, event.attempt)


async def retry_store_read(ask: Callable[[], Awaitable[T]], patience: float = STORE_RETRY_SECONDS) -> T:
    """What ``ask()`` gives, also where the store is locked or away for a while: for ``patience`` seconds.

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
# The text of a run's replies as it comes, from a start to its answer.


async def stream_reply_text(run: Run) -> AsyncGenerator[str]:
    """Pieces of text; a reply behind another one begins on a new line.

    Raises the run's error, as ``run.result()`` does, when what there was has been given out.
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
