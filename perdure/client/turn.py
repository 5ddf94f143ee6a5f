"""``Turn``: a handle for one turn of a conversation, with its status, result and events; and turns found in the
store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowExecutionDescription, WorkflowFailureError, WorkflowHandle

from ..errors import (
    PerdureError,
    RunCancelledError,
    RunClosedError,
    RunNotFoundError,
    ServerUnreachableError,
    build_error,
)
from ..ports import EventRow, Store, TurnRow
from ..temporal_service import build_run_error, has_unhandled_events
from ..types.events import Event
from ..types.interface import Response, TurnStatus
from ..types.messages import MessageInput
from .event_reader import EVENTS_PER_PAGE, retry_store_read
from .follow import follow_turn
from .visibility import build_closed_status

if TYPE_CHECKING:
    from .run import Run


# ---
# The turns of a run by its events, for a workflow that no worker answers for, or that no longer has the turn.


async def find_last_turn(store: Store, seen: WorkflowExecutionDescription) -> str | None:
    """Return the ``task_id`` of the run's last turn; None if it has none, or only turns from before it was reopened."""
    row = await retry_store_read(lambda: store.get_run(seen.id))
    began = seen.raw_description.workflow_execution_info.first_run_id
    if row is not None and not row.scope.startswith(began):  # nothing was recorded since
        return None
    last = None
    async for task_id in _iter_turn_ids(store, seen.id):
        last = task_id
    return last


async def has_turn(store: Store, context_id: str, task_id: str) -> bool:
    """Whether the events have the turn, also if nothing but its start was recorded."""
    async with aclosing(_iter_turn_ids(store, context_id)) as turns:
        async for one in turns:
            if one == task_id:
                return True
    return False


async def _iter_turn_ids(store: Store, context_id: str) -> AsyncGenerator[str | None]:
    """Yield the ``task_id`` of every turn event."""
    after = 0
    while rows := await _read_own_events(store, context_id, after):
        for row in rows:
            if row.type == "turn":
                yield row.task_id
        after = rows[-1].seq


async def _read_own_events(store: Store, context_id: str, after: int) -> Sequence[EventRow]:
    return await retry_store_read(
        lambda: store.read_events(context_id, after=after, limit=EVENTS_PER_PAGE, children=False)
    )


_STORE_POLL_FIRST_DELAY, _STORE_POLL_MAX_DELAY = 0.02, 0.2
"""Seconds between two reads of the store: the first and the longest delay."""
_WORKFLOW_POLL_SECONDS = 2.0
"""Seconds between two requests to the workflow, while the store has no change."""
_WORKFLOW_POLL_FIRST_DELAY, _WORKFLOW_POLL_MAX_DELAY = 0.05, 1.0
"""The same delays for a client without the store."""


class Turn:
    """A handle of a turn; making one sends no request. ``task_id`` is None until the turn is resolved."""

    def __init__(self, run: Run, task_id: str | None = None) -> None:
        self.run = run
        self.task_id = task_id

    def __repr__(self) -> str:
        return f"<Turn {self.task_id or 'present'} of {self.run.id}>"

    async def status(self) -> TurnStatus:
        """Return the status of the turn; ``state`` is ``unknown`` for an unknown turn. Raises ``RunNotFoundError``."""
        try:
            seen = await self.run.describe()
        except ServerUnreachableError:
            return self._build_running_status()
        except RunNotFoundError:  # deleted after Temporal's retention
            if (recorded := await self._read_recorded_status()) is not None:
                return recorded
            raise
        if build_closed_status(seen) is not None:
            return await self._read_status_of_closed_run(seen)
        try:
            status = TurnStatus.model_validate(await self.run.ask_workflow("turn", self.task_id))
        except RunClosedError:  # closed between the two requests
            return await self.status()
        except PerdureError:  # no worker answers
            return await self._read_status_without_worker()
        if status.state == "unknown":  # no longer in the workflow's state, or of an earlier execution
            return await self._read_recorded_status() or await self._build_abandoned_status(status)
        self.task_id = self.task_id or status.task_id
        return status

    async def result(self) -> Response:
        """Wait for the response, with the messages up to it where this client has the store.

        Raises the turn's error; ``RunCancelledError``; ``RunNotFoundError`` for an unknown turn. Logs a warning if no
        worker polls the task queue for 10 s.
        """
        watch = asyncio.ensure_future(self.run.warn_without_worker())
        try:
            return await self._wait_for_response()
        finally:
            watch.cancel()

    def events(self, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
        """Yield the events of the turn after number ``after`` until it has ended; without ``wait`` only those recorded
        so far.

        Includes the events of its subagents' runs, unless ``children`` is false. Raises ``RunNotFoundError`` for an
        unknown turn; else as :meth:`Run.events`.
        """
        return follow_turn(self, after, wait=wait, children=children)

    async def over(self) -> bool:
        """Whether the turn has ended. Raises ``RunNotFoundError`` for an unknown turn."""
        status = await self.status()
        if status.state == "unknown":
            raise self._build_unknown_turn_error(status)
        return status.state != "running"

    async def interrupt(
        self, message: MessageInput | None = None, *, id: str | None = None, by: str | None = None
    ) -> None:
        """See :meth:`Run.interrupt`: it interrupts the current turn of the run."""
        await self.run.interrupt(message, id=id, by=by)

    async def _wait_for_response(self) -> Response:
        delay, answered = _WORKFLOW_POLL_FIRST_DELAY, False
        while True:
            status = await self.status()
            if status.state != "running":
                return await self._build_response(status)
            if self.run.has_store and not answered:
                answered = await self._wait_for_store_change()
            else:  # also if the workflow does not have the answer yet, or a later one will follow
                await asyncio.sleep(delay)
                delay = min(delay * 1.5, _WORKFLOW_POLL_MAX_DELAY)

    async def _build_response(self, status: TurnStatus) -> Response:
        if status.state == "completed" and status.response is not None:
            return await self.run.with_messages(status.response)
        if status.state == "failed":
            raise build_error(status.error_type, status.error or "the turn failed")
        if status.state == "cancelled":
            why = f"run {self.run.id!r} was cancelled before this turn had its answer"
            raise RunCancelledError(status.error or why)
        raise self._build_unknown_turn_error(status)

    def _build_unknown_turn_error(self, status: TurnStatus) -> RunNotFoundError:
        hint = f"perdure events {self.run.id} shows the turns that it had."
        if not self.run.has_store:
            hint = "A turn of long ago is in the store: give this client store_url=…."
        return RunNotFoundError(f"run {self.run.id!r} has no turn {status.task_id!r}", hint=hint)

    def _build_running_status(self) -> TurnStatus:
        return TurnStatus(task_id=self.task_id or "", state="running")

    async def _read_status_without_worker(self) -> TurnStatus:
        """Return the status of a turn of an open run for which no worker answers.

        The store has an answer as soon as the model has given it. It is the turn's response only when the workflow has
        it too: until then a message may join the turn and get an answer of its own.
        """
        if (recorded := await self._read_recorded_status()) is None:
            return self._build_running_status()
        seen = await self.run.describe()  # after the store was read: by now the call that wrote it may be pending
        busy = seen.raw_description.pending_activities or await has_unhandled_events(self.run.client.temporal, seen)
        return self._build_running_status() if busy else recorded

    async def _read_status_of_closed_run(self, seen: WorkflowExecutionDescription) -> TurnStatus:
        """Return the status of a turn of a closed run. If nothing is recorded of the turn (terminated, timed out,
        refused), it ended as the run did."""
        if (recorded := await self._read_recorded_status()) is not None:
            return recorded
        latest = await find_last_turn(await self.run.store(), seen) if self.run.has_store else None
        if self.task_id is None:
            self.task_id = latest
            if (recorded := await self._read_recorded_status()) is not None:
                return recorded
        known, said = latest is not None and self.task_id == latest, None
        if not known:
            said = await self.run.query_closed_execution(
                str(seen.run_id), "turn", *([self.task_id] if self.task_id else [])
            )
        if said and (status := TurnStatus.model_validate(said)).state != "running":
            if status.state == "unknown":
                return await self._build_abandoned_status(status)
            self.task_id = self.task_id or status.task_id
            return status
        last = self.run.client.temporal.get_workflow_handle(self.run.id, run_id=seen.run_id)
        over = await self._build_status_from_run_end(last, self._build_running_status())
        if not self.run.has_store:  # without a worker it is unknown whether the turn had its answer before a failure
            return over if over.state == "completed" or said is not None else self._build_running_status()
        return (
            over
            if over.state != "running"
            else await self._build_abandoned_status(over.model_copy(update={"state": "unknown"}))
        )

    async def _build_status_from_run_end(self, last: WorkflowHandle[Any, Any], status: TurnStatus) -> TurnStatus:
        """Return ``status``, or a status built from the end of the run, if that ended the turn or the turn was the last
        one."""
        try:
            response = Response.model_validate(await last.result(follow_runs=False))
        except WorkflowFailureError as error:
            why = build_run_error(self.run.id, error)
            state = "cancelled" if isinstance(why, RunCancelledError) else "failed"
            over = {"task_id": status.task_id, "state": state, "error_type": type(why).__name__, "error": why.message}
            return TurnStatus.model_validate(over)
        if not response.task_id or status.task_id not in ("", response.task_id):
            return status
        self.task_id = response.task_id
        return TurnStatus(task_id=response.task_id, state="completed", response=response)

    async def _build_abandoned_status(self, status: TurnStatus) -> TurnStatus:
        """Build the status of a turn that the store has and that its execution never ended; ``status`` if the store has
        no such turn."""
        if not await self._is_turn_recorded():
            return status
        why = f"run {self.run.id!r} was ended before this turn had its answer, and has been opened again since"
        return TurnStatus(task_id=status.task_id, state="cancelled", error=why)

    async def _wait_for_store_change(self) -> bool:
        """Wait until the store has the end of the turn (True), or it is time to ask the workflow again.

        Polling the store costs the workers nothing. The workflow's state is decisive: a message may extend the turn.
        """
        until = asyncio.get_running_loop().time() + _WORKFLOW_POLL_SECONDS
        delay = _STORE_POLL_FIRST_DELAY
        while asyncio.get_running_loop().time() < until:
            row = await self._read_turn_row()
            if row is not None and row.status != "running":
                return True
            await asyncio.sleep(delay)
            delay = min(delay * 1.3, _STORE_POLL_MAX_DELAY)
        return False

    async def _read_turn_row(self) -> TurnRow | None:
        if self.task_id is None or not self.run.has_store:
            return None
        return await (await self.run.store()).get_turn(self.run.id, self.task_id)

    async def _is_turn_recorded(self) -> bool:
        """Whether the store has the turn, also one without a row because it was cut off in its first model call."""
        if self.task_id is None or not self.run.has_store:
            return False
        return await self._read_turn_row() is not None or await has_turn(
            await self.run.store(), self.run.id, self.task_id
        )

    async def _read_recorded_status(self) -> TurnStatus | None:
        """Read the recorded status of an ended turn; None if there is none."""
        row = await self._read_turn_row()
        if row is None or row.status == "running":
            return None
        said: dict[str, Any] = {"task_id": row.task_id, "state": row.status}
        result = row.result or b"{}"
        if row.status == "completed":
            said["response"] = Response.model_validate_json(result)
        else:
            said |= {name: why for name, why in json.loads(result).items() if name in ("error_type", "error")}
        return TurnStatus.model_validate(said)
