"""Events of a run, in order, from the store: those that are there, then those that come, until the run has ended.

    store ── rows behind `after` ──► event ──► whoever follows
      ▲                                          │ no more rows
      └── changed() or the run has ended ◄───────┘

Whoever follows may go away at any time and come back with the number of the last event that it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import RunNotFoundError, StoreError
from ..ports import EventRow, Store
from ..store import Chain
from ..types.events import Event, ModelCompleted, ModelDelta, RunEvent, TurnEvent, read_event
from .ended import ended, record_end
from .partial import Partials

if TYPE_CHECKING:
    from ..reading import Reading
    from ..turn import Turn

PAGE = 500
"""Events that are read at once."""
WAIT = 5.0
"""Seconds after which the store is looked at in any case."""
PATIENCE = 60.0
"""Seconds that a store may be out of reach before whoever follows is told."""
_ASK = 0.5
"""Seconds without an event after which a turn is asked for the first time whether it is over."""
_LOOK_BACK = 64
"""Numbers that other events may have taken among the deltas of a call."""


async def follow(run: Reading, after: int = 0, *, wait: bool = True) -> AsyncIterator[Event]:
    """The events of ``run`` behind number ``after``, until it has ended; without ``wait`` those that are there.

    Raises ``RunNotFoundError``, ``TranscriptUnavailableError`` where the client has no store, ``StoreError``.
    """
    store = await run.store()
    known = await _is_known(run, store)
    reader = _Reader(run, store, after)
    async for event in reader.there():
        yield event
    if not (wait and known):
        return
    closing = asyncio.ensure_future(ended(run))
    try:
        while True:
            over = closing.done()
            if over and not await _recorded(run, store, closing.result()):
                closing = asyncio.ensure_future(ended(run))  # opened again: it goes on
                over = False
            async for event in reader.there():
                yield event
            if over:
                return
            await reader.more(closing)
    finally:
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)


async def follow_turn(turn: Turn, after: int = 0) -> AsyncIterator[Event]:
    """The events of one turn behind number ``after``, until it has ended. Raises as :func:`follow`."""
    if turn.task_id is None:
        await turn.status()
    events = follow(turn.run, after)
    over, idle = False, _ASK
    pending: asyncio.Future[Event] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))
            # Asked when nothing comes: the end of the turn may lie before `after`, or have no event.
            done, _ = await asyncio.wait([pending], timeout=0.0 if over else idle)
            if not done:
                if over:
                    return
                over, idle = await turn.over(), WAIT
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            if event.task_id == turn.task_id:
                yield event
                over = _ends(event) and await turn.over()
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await events.aclose()  # type: ignore[attr-defined]  # an async generator


def _ends(event: Event) -> bool:
    return isinstance(event, TurnEvent) and event.state != "started"


class _Reader:
    """Reads a run's events, each once."""

    def __init__(self, run: Reading, store: Store, after: int) -> None:
        self._run = run
        self._store = store
        self._chain = Chain(store)
        self._after = after
        self._partials = Partials(self._earlier)

    async def there(self) -> AsyncIterator[Event]:
        """Those that are there and were not read yet."""
        while True:
            rows = await self._insist()
            for row in rows:
                event = _event(self._run.id, row)
                if event is not None:
                    yield await self._partials.read(await self._filled(event))
                self._after = row.seq
            if len(rows) < PAGE:
                return

    async def more(self, closing: asyncio.Future[RunEvent]) -> None:
        """Wait until there may be more."""
        changed = asyncio.ensure_future(self._changed())
        try:
            either: list[asyncio.Future[Any]] = [changed, closing]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)

    async def _changed(self) -> None:
        try:
            await self._store.changed(self._run.id, self._after, WAIT)
        except StoreError:  # the next read waits for it, or says what is wrong
            await asyncio.sleep(0.1)

    async def _insist(self) -> Sequence[EventRow]:
        """The next rows, also where the store is locked or away for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while True:
            try:
                return await self._store.events(self._run.id, after=self._after, limit=PAGE)
            except StoreError as error:
                if not error.retryable or loop.time() > until:
                    raise
                await asyncio.sleep(0.5)

    async def _filled(self, event: Event) -> Event:
        """A reply or an answer that is too long for its event, whole."""
        if isinstance(event, ModelCompleted) and event.blob is not None:
            return event.model_copy(update={"text": await self._chain.resolve_blob(event.blob), "blob": None})
        if isinstance(event, TurnEvent) and event.blob is not None:
            return event.model_copy(update={"content": await self._chain.resolve_blob(event.blob), "blob": None})
        return event

    async def _earlier(self, event: ModelDelta) -> list[ModelDelta]:
        """Deltas before ``event``: each has a character at least, so they are not far."""
        behind = max(0, event.seq - 1 - event.offset - _LOOK_BACK)
        found: list[ModelDelta] = []
        while behind < event.seq - 1:
            rows = await self._store.events(self._run.id, after=behind, limit=PAGE)
            read = [_event(self._run.id, row) for row in rows if row.seq < event.seq]
            found += [one for one in read if isinstance(one, ModelDelta)]
            if len(rows) < PAGE:
                break
            behind = rows[-1].seq
        return found


def _event(context_id: str, row: EventRow) -> Event | None:
    return read_event(context_id, row.seq, row.task_id, row.type, row.body, row.spans)


async def _is_known(run: Reading, store: Store) -> bool:
    """Whether the server knows the run. Raises ``RunNotFoundError`` where the store does not know it either."""
    try:
        await run.describe()
    except RunNotFoundError:
        if await store.run(run.id) is None and not await store.events(run.id, limit=1):
            raise
        return False
    return True


async def _recorded(run: Reading, store: Store, event: RunEvent) -> bool:
    try:
        return await record_end(run, store, event)
    except RunNotFoundError:  # forgotten between two looks
        return True
