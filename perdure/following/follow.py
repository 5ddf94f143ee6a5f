"""Events of a run, in order, from the store: those that are there, then those that come, until the run has ended.

    store ── rows behind `after` ──► event ──► whoever follows
      ▲                                          │ no more rows
      └── changed(), or it is over ◄─────────────┘

Whoever follows may go away at any time and come back with the number of the last event that it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from ..errors import RunNotFoundError
from ..ports import Store
from ..told import again, delays, to_begin
from ..types.events import Event, RunEvent, TurnEvent
from .ended import End, check_place, end_of, until_ended
from .reader import GLANCE, PAGE, PATIENCE, WAIT, Reader

if TYPE_CHECKING:
    from ..reading import Reading
    from ..turn import Turn

_STRANGE = 5.0
"""Seconds without anything of a run in the store after which the run is asked whether it is kept there."""
_SOON, _LATEST = 0.02, 1.0
"""Seconds between two questions whether a turn is over whose end was said."""


async def follow(run: Reading, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
    """The events of ``run`` behind number ``after``, until it has ended; without ``wait`` those that are there.

    With those of the runs below it, unless ``children`` is false.
    Raises ``RunNotFoundError``, ``TranscriptUnavailableError`` where the client has no store, ``StoreMismatchError``
    where it has another one than the run, ``StoreError``.
    """
    store = await run.store()
    over = asyncio.ensure_future(_over(run, store, wait=wait))
    reader = Reader(run.id, store, after, children=children, patience=PATIENCE if wait else GLANCE)
    async with aclosing(_until(over, reader, wait=wait)) as events:
        async for event in events:
            yield event
    if (end := over.result()) is not None and (untold := await reader.untold(end.event)) is not None:
        yield untold


async def follow_turn(turn: Turn, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
    """The events of one turn behind number ``after``, until it has ended; without ``wait`` those that are there.

    Raises as :func:`follow`; ``RunNotFoundError`` for a turn that nobody knows, too.
    """
    store = await turn.run.store()
    if not await _named(turn):
        return
    said = asyncio.Event()
    over = asyncio.ensure_future(_turn_over(turn, store, said, wait=wait))
    patience = PATIENCE if wait else GLANCE
    reader = Reader(turn.run.id, store, after, turn.task_id, children=children, patience=patience)
    async with aclosing(_until(over, reader, wait=wait)) as events:
        async for event in events:
            if event.path:  # another run's turn
                pass
            elif isinstance(event, TurnEvent):
                said.set() if event.state != "started" else said.clear()
            elif not isinstance(event, RunEvent):
                said.clear()  # a message has extended it
            yield event


async def _until(over: asyncio.Future[Any], reader: Reader, *, wait: bool) -> AsyncGenerator[Event]:
    """What ``reader`` reads until ``over`` is done, to the last that is there then. Raises what ``over`` raises.

    Without ``wait`` nothing is read before: ``over`` is done soon.
    """
    try:
        if not wait:
            await asyncio.wait([over])
        while True:
            last = over.done()
            if last:
                over.result()
            while rows := await reader.rows():
                for row in rows:
                    if (event := await reader.event(row)) is not None:
                        yield event
                if len(rows) < PAGE and not last:
                    break
            if last:
                return
            await reader.more(over)
    finally:
        over.cancel()
        await asyncio.gather(over, return_exceptions=True)


# --- when it is over


async def _over(run: Reading, store: Store, *, wait: bool) -> End | None:
    """Until the run has ended and its events say so; without ``wait`` as far as it has. Returns an end that its events
    may not say: without ``wait`` nothing is written.

    Raises ``RunNotFoundError`` where neither the server nor the store knows the run.
    """
    left = delays()
    while True:
        try:
            await run.describe()
            break
        except RunNotFoundError:
            if await store.run(run.id) is not None or await store.events(run.id, limit=1):
                return None  # long ago
            if not wait or not await to_begin(run) or not await again(left):
                raise
    return await _ended(run, store) if wait else await end_of(run.client.run(run.id), store, GLANCE)


async def _ended(run: Reading, store: Store) -> End | None:
    ended = asyncio.ensure_future(until_ended(run, store))
    try:
        await asyncio.wait([ended], timeout=_STRANGE)
        if not ended.done():
            await check_place(run, store)
        return await ended
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


async def _named(turn: Turn) -> bool:
    """Wait until it is known which turn is meant; false where the run has ended without one."""
    delay = _SOON
    while turn.task_id is None:
        if await turn.over():
            return turn.task_id is not None
        if turn.task_id is None:  # nobody answers for the workflow yet
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _LATEST)
    return True


async def _turn_over(turn: Turn, store: Store, said: asyncio.Event, *, wait: bool) -> None:
    """Until the turn is over. The workflow is asked: at first, when an end was ``said``, and now and then.

    The store has an end before the workflow knows it, and a message that it is given meanwhile extends the turn. Raises
    ``RunNotFoundError`` for a turn that nobody knows.
    """
    if await turn.over() or not wait:
        return
    run = asyncio.ensure_future(_ended(turn.run, store))
    run.add_done_callback(lambda _: said.set())
    delay = _SOON
    try:
        while not await turn.over():
            if run.done():
                run.result()
            if not (said.is_set() or run.done()):
                delay = _SOON
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT):
                        await said.wait()
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 1.5, _LATEST)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
