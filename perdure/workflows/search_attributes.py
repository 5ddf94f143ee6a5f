"""Keep the run's search attributes and memo up to date with its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from ..loop.decide import NextStep
from ..loop.status import build_label_attributes, build_waiting_key, build_waiting_memo, list_changed_search_attributes
from ..types.interface import AGENT_ATTRIBUTE, WAITING_MEMO
from ..types.state import RunState
from .guard import Guard
from .host import get_host, outlive_cancellation


@contextmanager
def sync_visibility(state: RunState, step: Callable[[], NextStep | None], guard: Guard) -> Iterator[None]:
    """Within the block, update search attributes and memo whenever their values for ``state`` have changed. Each
    ``step`` is decided on by a change through ``guard``.

    Runs in parallel with the steps: a call may begin to wait while others run, and be decided on meanwhile.
    """
    task = asyncio.create_task(_run_visibility_sync(state, step, guard))
    try:
        yield
    finally:
        task.cancel()


async def _run_visibility_sync(state: RunState, step: Callable[[], NextStep | None], guard: Guard) -> None:
    def changed_attributes() -> dict[str, str | int]:
        return (
            list_changed_search_attributes(state, step(), get_host().search_attributes())
            if state.search_attributes
            else {}
        )

    def waits() -> tuple[Hashable, ...] | None:
        # In a namespace where no client reads the memo it stays empty; an earlier value is removed.
        return build_waiting_key(state) if state.memo_is_written else ()

    written_key: tuple[Hashable, ...] = ()  # a continued execution begins with a memo without this value
    written_memo: list[dict[str, Any]] | None = None

    def has_news() -> bool:
        return waits() not in (None, written_key) or bool(changed_attributes())

    while True:
        with outlive_cancellation():
            await get_host().wait_condition(guard.once_per_change(has_news))
        # Both change in one workflow task: a client that sees the number of waits also sees the waits.
        if (key := waits()) is not None:
            written_key = key
            if (memo := build_waiting_memo(state) if key else None) != written_memo:
                get_host().upsert_memo({WAITING_MEMO: memo})
                written_memo = memo
        if changed := changed_attributes():
            get_host().upsert_search_attributes(changed)


def build_child_search_attributes(state: RunState, agent: str) -> TypedSearchAttributes | None:
    """Build the search attributes that a child is started with; None if the namespace is not known to have them."""
    wanted = {AGENT_ATTRIBUTE: agent, **build_label_attributes(state)}
    pairs = [
        SearchAttributePair(SearchAttributeKey.for_keyword(name), str(value))
        for name, value in wanted.items()
        if name in (state.search_attributes or ())
    ]
    return TypedSearchAttributes(pairs) if pairs else None
