"""How a run ended, as the server says: what no worker could write down is recorded by whoever notices it first."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import TYPE_CHECKING, Literal

from temporalio import exceptions as temporal
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from ..ports import Batch, NewEvent, Store, token
from ..translate import run_error
from ..types.events import RunEvent

if TYPE_CHECKING:
    from ..reading import Reading

_AGAIN = 1.0
"""Seconds until a server that did not answer is asked again."""

State = Literal["completed", "failed", "cancelled", "terminated", "timed_out"]


async def ended(run: Reading) -> RunEvent:
    """Wait until the run has ended; how. One long poll, which adds nothing to its history.

    Raises ``RunNotFoundError`` where the server has forgotten it.
    """
    # Without a run id: a conversation that was opened again is not over.
    handle = run.client.temporal.get_workflow_handle(run.id)
    while True:
        try:
            await handle.result()
        except WorkflowFailureError as error:
            cause = run_error(run.id, error)
            return RunEvent(state=_state(error), error_type=type(cause).__name__, error=cause.message)
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise run.translated(error) from error
            await asyncio.sleep(_AGAIN)  # out of reach: events may still come, from the store
        else:
            return RunEvent(state="completed")


async def record_end(run: Reading, store: Store, event: RunEvent) -> bool:
    """Record ``event`` as the last of its execution, once, whoever else follows.

    False where it is not the last any more: the conversation was opened again meanwhile.
    """
    latest = run.client.run(run.id)
    seen = await latest.describe()
    if seen.close_time is None:
        return False
    closed = seen.close_time.astimezone(UTC).isoformat(timespec="microseconds")
    event = event.model_copy(update={"at": closed})
    batch = Batch(run.id, [NewEvent(event, key=f"ended/{seen.run_id}/{event.state}")], token(closed), advances=True)
    if await store.append(batch):
        return True
    return (await latest.describe()).run_id == seen.run_id  # else something was recorded after it all the same


def _state(error: WorkflowFailureError) -> State:
    cause = error.cause
    if isinstance(cause, temporal.CancelledError):
        return "cancelled"
    if isinstance(cause, temporal.TerminatedError):
        return "terminated"
    return "timed_out" if isinstance(cause, temporal.TimeoutError) else "failed"
