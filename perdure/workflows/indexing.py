"""Keeps the run's search attributes as its state is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from .. import loop
from ..types.indexing import AGENT
from ..types.state import RunState
from . import host


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

    while True:
        await host.wait_condition(lambda: bool(due()))
        host.upsert_search_attributes(due())


def of_child(state: RunState, agent: str) -> TypedSearchAttributes | None:
    """What a child of the run is started with; None where the namespace is not known to have an attribute for it."""
    if AGENT not in (state.indexed or ()):
        return None
    return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword(AGENT), agent)])
