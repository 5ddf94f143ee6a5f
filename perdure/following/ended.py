"""How a run ended, as the server says: what no worker could write down is recorded by the first who follows the run."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Literal

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from ..errors import RunNotFoundError, ServerUnreachableError, StoreError
from ..ports import Batch, NewEvent, Store, token
from ..translate import run_error
from ..types.events import RunEvent
from .reader import PATIENCE, insist

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


@dataclass(frozen=True, slots=True)
class End:
    """The end of an execution, where the store may not have it."""

    event: RunEvent
    key: str
    """By which the store keeps it once."""
    run_id: str


async def until_ended(run: Reading, store: Store) -> End | None:
    """Wait until the run has ended and its events say so. One long poll, which adds nothing to its history.

    A server that is out of reach is waited for: events may still come, from the store. Returns the end where the store
    did not take it. Raises ``StoreMismatchError`` where the run is kept in another store.
    """
    # Without a run id: a conversation that was opened again is not over.
    latest = run.client.run(run.id)
    while True:
        try:
            await _closed(latest)
            end = await end_of(run, store)
            if end is not None:
                recorded = await _record(run, store, end)
                # Opened again meanwhile, it goes on.
                if (await run.describe()).run_id == end.run_id:
                    return None if recorded else end
        except ServerUnreachableError:
            await asyncio.sleep(_AGAIN)
        except RunNotFoundError:  # forgotten meanwhile: nothing more will come
            return None


async def end_of(run: Reading, store: Store, patience: float = PATIENCE) -> End | None:
    """How the last execution of the run ended, as the server says; None where it has not ended. Writes nothing.

    ``patience``: see :func:`~perdure.following.reader.insist`.
    Raises ``RunNotFoundError``, ``ServerUnreachableError``, ``StoreMismatchError``.
    """
    seen = await run.describe()
    state = None if seen.status is None else _STATES.get(seen.status)
    if state is None or seen.close_time is None:
        return None
    await check_place(run, store, patience)
    at = seen.close_time.astimezone(UTC).isoformat(timespec="microseconds")
    event = (await _how(run, seen, state)).model_copy(update={"at": at})
    return End(event, f"ended/{seen.run_id}/{state}", seen.run_id)


async def _record(run: Reading, store: Store, end: End) -> bool:
    """Record it, whoever else follows once. Tried once: a follower that cannot write is shown the end all the same."""
    batch = Batch(run.id, [NewEvent(end.event, key=end.key)], token(end.event.at), advances=True)
    try:
        await store.append(batch)
    except StoreError as error:  # another follower who can write will record it
        logger.warning("the end of run %s could not be recorded: %s", run.id, error.message)
        return False
    return True


async def check_place(run: Reading, store: Store, patience: float = PATIENCE) -> None:
    """Raise ``StoreMismatchError`` where the store does not know the run because that is kept in another one."""
    if await insist(lambda: store.run(run.id), patience) is None:
        run.check_store((await run.status()).store_id, store.store_id, store.place)


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
