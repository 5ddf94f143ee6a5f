"""The owner stage: a run whose id is that of another's conversation, or of a deleted one, reads and writes nothing.

The store refuses each such write in its transaction. This stage looks before anything is read, asked or written: at the
first call of a turn, and at an ending, which then is recorded nowhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import InvalidInputError, RunIdError
from ..ports.store import RunRow, Store
from ..types.interface import check_run_labels
from ..types.run_ids import build_run_id_error
from ..types.wire import CloseOutput, ConversationFacts
from .call import CloseCall, CompactCall, ModelCall, OutputT
from .retries import retry_store

CallT = TypeVar("CallT", bound=ModelCall | CompactCall)


class RunOwnerStage:
    """Refuses the calls of a run whose id belongs to a run of another root, tenant or user, or was deleted.

    It is around the failures stage, which would add the error to the other's events.
    """

    def __init__(self, store: Store, waiting: Callable[[str], None] = lambda _: None) -> None:
        self._store = store
        self._report_waiting = waiting

    async def step(self, call: CallT, next: Callable[[CallT], Awaitable[OutputT]]) -> OutputT:
        """Around the first model call, and what comes before it. Raises ``RunIdError`` for a foreign run."""
        if call.input.iteration <= 1:
            await self._check_owner(call.input)
        return await next(call)

    async def close(self, call: CloseCall, next: Callable[[CloseCall], Awaitable[CloseOutput]]) -> CloseOutput:
        """Around the record of an ending: a foreign run ends without one."""
        try:
            await self._check_owner(call.input)
        except RunIdError:
            return CloseOutput(head=call.input.head, store_id=call.input.store_id)
        return await next(call)

    async def _check_owner(self, task: ConversationFacts) -> None:
        row = await retry_store(lambda: self._store.get_run(task.context_id), self._report_waiting)
        if row is None:
            if await retry_store(lambda: self._store.find_deleted([task.context_id]), self._report_waiting):
                raise build_run_id_error()
        elif _is_foreign(task, row):
            raise build_run_id_error()


def _is_foreign(task: ConversationFacts, row: RunRow) -> bool:
    """Whether the row of the run's id is that of another's run. One that goes on with a conversation may have no labels
    (it gets those of the row), and no parent (a client has opened a subagent's conversation again)."""
    own = {"tenant": row.tenant, "user": row.user}
    root = task.lineage.root if task.lineage is not None and task.is_child else None
    if task.resume:
        try:
            check_run_labels(task.context_id, own, tenant=task.tenant, user=task.user)
        except InvalidInputError:
            return True
        return root is not None and row.root != root
    if own != {"tenant": task.tenant, "user": task.user}:
        return True
    return row.root != root and (root is not None or row.scope != task.scope)
