"""Which turn a run had last, where nobody answers for its workflow any more: its events say."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import WorkflowExecutionDescription

from ..ports import EventRow, Store
from .reader import PAGE, insist


async def last_turn(store: Store, seen: WorkflowExecutionDescription) -> str | None:
    """The ``task_id`` of the run's last turn; None where it began none, or only before it was opened again."""
    row = await insist(lambda: store.run(seen.id))
    began = seen.raw_description.workflow_execution_info.first_run_id
    if row is not None and not row.scope.startswith(began):  # nothing was recorded since
        return None
    last, after = None, 0
    while rows := await _page(store, seen.id, after):
        last = next((one.task_id for one in reversed(rows) if one.type == "turn"), last)
        after = rows[-1].seq
    return last


async def _page(store: Store, context_id: str, after: int) -> Sequence[EventRow]:
    return await insist(lambda: store.events(context_id, after=after, limit=PAGE))
