"""Keeps the run's search attributes and memo as its state is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from .. import loop
from ..types.interface import AGENT_ATTRIBUTE, WAITING_MEMO
from ..types.state import RunState
from . import host
from .guard import is_condition_met


@contextmanager
def sync_visibility(state: RunState, step: Callable[[], loop.NextStep | None]) -> Iterator[None]:
    """For the length of the block tell visibility whenever what it is to know of ``state`` has changed.

    Beside the steps, and not between them: a call may begin to wait while others run, and be decided on meanwhile.
    """
    task = asyncio.create_task(_run_visibility_sync(state, step))
    try:
        yield
    finally:
        task.cancel()


async def _run_visibility_sync(state: RunState, step: Callable[[], loop.NextStep | None]) -> None:
    def changed_attributes() -> dict[str, str | int]:
        return loop.list_changed_search_attributes(state, step(), host.search_attributes()) if state.indexed else {}

    def waits() -> tuple[Hashable, ...] | None:
        # Nothing in a namespace where nobody would look for it: what was told before is taken back.
        return loop.build_waiting_key(state) if state.noted else ()

    told: tuple[Hashable, ...] = ()  # an execution that continues another one begins with a memo without it
    noted: list[dict[str, Any]] | None = None

    def has_news() -> bool:
        return waits() not in (None, told) or bool(changed_attributes())

    while True:
        await host.wait_condition(lambda: is_condition_met(has_news))
        # Both come in one workflow task: whoever sees the number sees what it counts.
        if (now := waits()) is not None:
            told = now
            if (wanted := loop.build_waiting_memo(state) if now else None) != noted:
                host.upsert_memo({WAITING_MEMO: wanted})
                noted = wanted
        if changed := changed_attributes():
            host.upsert_search_attributes(changed)


def build_child_search_attributes(state: RunState, agent: str) -> TypedSearchAttributes | None:
    """What a child of the run is started with; None where the namespace is not known to have an attribute for it."""
    if AGENT_ATTRIBUTE not in (state.indexed or ()):
        return None
    return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword(AGENT_ATTRIBUTE), agent)])
