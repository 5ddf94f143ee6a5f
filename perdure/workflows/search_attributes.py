"""Keeps the run's search attributes and memo as its state is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from .. import loop
from ..types.interface import AGENT, WAITING
from ..types.state import RunState
from . import host
from .guard import holds


@contextmanager
def indexing(state: RunState, step: Callable[[], loop.Next | None]) -> Iterator[None]:
    """For the length of the block tell visibility whenever what it is to know of ``state`` has changed.

    Beside the steps, and not between them: a call may begin to wait while others run, and be decided on meanwhile.
    """
    task = asyncio.create_task(_index(state, step))
    try:
        yield
    finally:
        task.cancel()


async def _index(state: RunState, step: Callable[[], loop.Next | None]) -> None:
    def due() -> dict[str, str | int]:
        return loop.to_index(state, step(), host.search_attributes()) if state.indexed else {}

    noted = _Noted(state)
    while True:
        await host.wait_condition(lambda: holds(lambda: noted.due() or bool(due())))
        # Both come in one workflow task: whoever sees the number sees what it counts.
        noted.tell()
        if changed := due():
            host.upsert_search_attributes(changed)


class _Noted:
    """What waits, as the memo has it. An execution that continues another one begins without."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._said: list[dict[str, Any]] | None = None
        self._looked_at: tuple[Hashable, ...] = ()

    def due(self) -> bool:
        """Whether something else waits than when it was told last."""
        now = self._now()
        return now is not None and now != self._looked_at

    def tell(self) -> None:
        """Write what waits, if the memo has something else."""
        if (now := self._now()) is None:
            return
        self._looked_at = now
        wanted = loop.to_note(self._state) if self._looked_at else None
        if wanted != self._said:
            host.upsert_memo({WAITING: wanted})
            self._said = wanted

    def _now(self) -> tuple[Hashable, ...] | None:
        """Nothing in a namespace where nobody would look for it: what was told before is taken back."""
        return loop.waiting_now(self._state) if self._state.noted else ()


def of_child(state: RunState, agent: str) -> TypedSearchAttributes | None:
    """What a child of the run is started with; None where the namespace is not known to have an attribute for it."""
    if AGENT not in (state.indexed or ()):
        return None
    return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword(AGENT), agent)])
