"""How a run ended, as the server says: what no worker could write down is recorded by whoever notices it first."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC
from typing import TYPE_CHECKING, Literal

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from ..errors import RunNotFoundError, ServerUnreachableError, StoreError
from ..ports import Batch, NewEvent, Store, token
from ..translate import run_error
from ..types.events import RunEvent
from .reader import insist

if TYPE_CHECKING:
    from ..reading import Reading

logger = logging.getLogger("perdure.client")

_AGAIN = 1.0
"""Seconds until a server that did not answer is asked again."""

State = Literal["completed", "failed", "cancelled", "terminated", "timed_out"]
_STATES: dict[WorkflowExecutionStatus, State] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


async def until_ended(run: Reading, store: Store) -> None:
    """Wait until the run has ended and its events say so. One long poll, which adds nothing to its history.

    A server that is out of reach is waited for: events may still come, from the store. Raises ``StoreMismatchError``
    where the run is kept in another store.
    """
    # Without a run id: a conversation that was opened again is not over.
    latest = run.client.run(run.id)
    while True:
        try:
            await _closed(latest)
            if await record_end(latest, store):
                return
        except ServerUnreachableError:
            await asyncio.sleep(_AGAIN)
        except RunNotFoundError:  # forgotten meanwhile: nothing more will come
            return


async def record_end(run: Reading, store: Store) -> bool:
    """Record how the last execution of the run ended, once, whoever else follows. False where it has not ended.

    Raises ``RunNotFoundError``, ``ServerUnreachableError``, ``StoreMismatchError``.
    """
    seen = await run.describe()
    state = None if seen.status is None else _STATES.get(seen.status)
    if state is None or seen.close_time is None:
        return False
    await check_place(run, store)
    at = seen.close_time.astimezone(UTC).isoformat(timespec="microseconds")
    event = (await _how(run, seen, state)).model_copy(update={"at": at})
    batch = Batch(run.id, [NewEvent(event, key=f"ended/{seen.run_id}/{state}")], token(at), advances=True)
    try:
        await insist(lambda: store.append(batch))
    except StoreError as error:  # somebody who can write will record it
        logger.warning("the end of run %s could not be recorded: %s", run.id, error.message)
    # Opened again meanwhile, it goes on.
    return (await run.describe()).run_id == seen.run_id


async def check_place(run: Reading, store: Store) -> None:
    """Raise ``StoreMismatchError`` where the store does not know the run because that is kept in another one."""
    if await insist(lambda: store.run(run.id)) is None:
        run.check_store((await run.status()).store_id, store.store_id)


async def _closed(run: Reading) -> None:
    try:
        await run.client.temporal.get_workflow_handle(run.id).result()
    except WorkflowFailureError:
        pass
    except RPCError as error:
        raise run.translated(error) from error


async def _how(run: Reading, seen: WorkflowExecutionDescription, state: State) -> RunEvent:
    if state in ("completed", "cancelled"):  # as a worker says it
        return RunEvent(state=state)
    execution = run.client.temporal.get_workflow_handle(run.id, run_id=seen.run_id)
    try:
        await execution.result(follow_runs=False)
    except WorkflowFailureError as error:
        cause = run_error(run.id, error)
        return RunEvent(state=state, error_type=type(cause).__name__, error=cause.message)
    except RPCError as error:
        raise run.translated(error) from error
    return RunEvent(state=state)
