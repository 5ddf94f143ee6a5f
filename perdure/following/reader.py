"""Reads events of a conversation from the store, each once, and fills in what is not stored with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..errors import StoreError, TranscriptCorruptedError
from ..ports import EventRow, Store
from ..store import Chain
from ..types.events import Event, ModelCompleted, ModelDelta, TurnEvent, read_event
from ..types.messages import BlobRef
from .partial import Partials

T = TypeVar("T")

PAGE = 500
"""Events that are read at once."""
WAIT = 5.0
"""Seconds after which the store is looked at in any case."""
PATIENCE = 60.0
"""Seconds that a store may be out of reach before whoever follows is told."""
_LOOK_BACK = 64
"""Numbers that other events may have taken among the deltas of a call."""


class Reader:
    """Of one conversation, behind number ``after``; with ``task_id`` only the events of that turn."""

    def __init__(self, context_id: str, store: Store, after: int, task_id: str | None = None) -> None:
        self._context_id = context_id
        self._store = store
        self._chain = Chain(store)
        self._after = after
        self._task_id = task_id
        self._partials = Partials(self._earlier)

    async def rows(self) -> Sequence[EventRow]:
        """The next ones, none where there are none; :meth:`event` takes them."""
        return await self._page(self._after)

    async def event(self, row: EventRow) -> Event | None:
        """The event of the next row, where it is one that this reader reads."""
        self._after = row.seq
        if self._task_id is not None and row.task_id != self._task_id:
            return None
        event = self._event(row)
        return None if event is None else await self._partials.read(await self._filled(event))

    async def more(self, over: asyncio.Future[Any]) -> None:
        """Wait until there may be more, or ``over`` is done."""
        changed = asyncio.ensure_future(self._changed())
        try:
            await asyncio.wait([changed, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)

    async def _changed(self) -> None:
        try:
            await self._store.changed(self._context_id, self._after, WAIT)
        except StoreError:  # the next read waits for it, or says what is wrong
            await asyncio.sleep(0.1)

    async def _page(self, after: int) -> Sequence[EventRow]:
        return await insist(lambda: self._store.events(self._context_id, after=after, limit=PAGE))

    def _event(self, row: EventRow) -> Event | None:
        return read_event(self._context_id, row.seq, row.task_id, row.type, row.body, row.spans)

    async def _filled(self, event: Event) -> Event:
        """A reply or an answer that is too long for its event, whole."""
        if isinstance(event, ModelCompleted | TurnEvent) and event.blob is not None:
            where = "text" if isinstance(event, ModelCompleted) else "content"
            text = await self._text(event.blob)
            return event if text is None else event.model_copy(update={where: text, "blob": None})
        return event

    async def _text(self, blob: BlobRef) -> str | None:
        try:
            return await insist(lambda: self._chain.resolve_blob(blob))
        except TranscriptCorruptedError:  # it stays a reference: nobody shall be kept from what comes behind
            return None

    async def _earlier(self, event: ModelDelta) -> list[ModelDelta]:
        """Deltas before ``event``: each has a character at least, so they are not far."""
        behind = max(0, event.seq - 1 - event.offset - _LOOK_BACK)
        found: list[ModelDelta] = []
        while behind < event.seq - 1 and (rows := await self._page(behind)):
            read = [self._event(row) for row in rows if row.seq < event.seq]
            found += [one for one in read if isinstance(one, ModelDelta)]
            behind = rows[-1].seq
        return found


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """What ``ask()`` gives, also where the store is locked or away for a while. Raises ``StoreError``."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    while True:
        try:
            return await ask()
        except StoreError as error:
            if not error.retryable or loop.time() > until:
                raise
            await asyncio.sleep(0.5)
