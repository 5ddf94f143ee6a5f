"""Which turns a run had, where nobody answers for its workflow any more, or it has forgotten: its events say."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from temporalio.client import WorkflowExecutionDescription

from ..ports import EventRow, Store
from .reader import PAGE, insist


async def last_turn(store: Store, seen: WorkflowExecutionDescription) -> str | None:
    """The ``task_id`` of the run's last turn; None where it began none, or only before it was opened again."""
    row = await insist(lambda: store.run(seen.id))
    began = seen.raw_description.workflow_execution_info.first_run_id
    if row is not None and not row.scope.startswith(began):  # nothing was recorded since
        return None
    last = None
    async for task_id in _turns(store, seen.id):
        last = task_id
    return last


async def had_turn(store: Store, context_id: str, task_id: str) -> bool:
    """Whether the turn was begun, if it came to nothing else."""
    async with aclosing(_turns(store, context_id)) as turns:
        async for one in turns:
            if one == task_id:
                return True
    return False


async def _turns(store: Store, context_id: str) -> AsyncGenerator[str | None]:
    """The ``task_id`` of every beginning and end of a turn."""
    after = 0
    while rows := await _page(store, context_id, after):
        for row in rows:
            if row.type == "turn":
                yield row.task_id
        after = rows[-1].seq


async def _page(store: Store, context_id: str, after: int) -> Sequence[EventRow]:
    return await insist(lambda: store.events(context_id, after=after, limit=PAGE, children=False))
