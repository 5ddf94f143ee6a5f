"""``Turn``: a handle for one turn of a conversation, with its status, result and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowExecutionDescription, WorkflowQueryFailedError
from temporalio.service import RPCError

from ..errors import (
    PerdureError,
    RunCancelledError,
    RunClosedError,
    RunNotFoundError,
    ServerUnreachableError,
    StoreError,
    build_error,
)
from ..temporal.workflow_tasks import has_unhandled_events
from ..types.interface import OutputT, Response, TurnStatus
from ..types.messages import MessageInput
from .event_reader import iter_own_rows, retry_store_read
from .follow import follow_turn
from .streams import OutputForm, StreamReader
from .tasks import background_task
from .visibility import build_closed_status
from .watches import join_event_watch

if TYPE_CHECKING:
    from ..ports.store import TurnRow
    from ..types.events import Event
    from .run import Run


_STORE_READ_FIRST_DELAY, _STORE_READ_MAX_DELAY = 0.005, 0.1
"""Seconds between an event and the read that looks whether it has ended the turn: the first and the longest delay."""
_WORKFLOW_POLL_SECONDS = 2.0
"""Seconds between two requests to the workflow, while the store has no change."""
_WORKFLOW_POLL_FIRST_DELAY, _WORKFLOW_POLL_MAX_DELAY = 0.05, 1.0
"""The same delays for a client without the store."""

_CATCH_UP_FIRST_DELAY = 0.01
"""The first delay once the store has the end, which the workflow gets a few milliseconds later."""

ANSWER_TIMEOUT = timedelta(seconds=5)
"""How long a worker may take to return the workflow's status, before the run counts as waiting for a worker."""


class Turn(StreamReader[OutputT]):
    """A handle of a turn; making one sends no request."""

    def __init__(self, run: Run[OutputT], task_id: str | None = None) -> None:
        self.run = run
        self.task_id: str = task_id or ""
        """Id of the turn; of ``run.turn()``, empty until a request has found which turn that is."""

    def __repr__(self) -> str:
        return f"<Turn {self.task_id or 'present'} of {self.run.id}>"

    async def status(self) -> TurnStatus:
        """Return the status of the turn; ``state`` is ``unknown`` for an unknown turn. Raises ``RunNotFoundError``."""
        if (final := await self._read_final_status()) is not None:
            return final
        return await self._find_status()

    async def _find_status(self, *, is_open: bool = False) -> TurnStatus:
        """Ask Temporal. ``is_open``: the run has probably not closed, so that its workflow can be asked at once."""
        status = await (self._ask_open_run() if is_open else self._ask_run())
        if status.state == "completed":
            with suppress(StoreError):  # the status is not from there
                row = await self._read_turn_row()
                if row is not None and row.status == "completed":
                    self.run.client.known_ends.put(self._end_key, row.asked_at, len(row.asked_at))
        return status

    async def _ask_open_run(self) -> TurnStatus:
        try:
            status = TurnStatus.model_validate(await self.run.ask_workflow("turn", self.task_id or None))
        except PerdureError:  # closed meanwhile, or no worker answers
            return await self._ask_run()
        return status if status.state != "unknown" else await self._ask_run()

    async def _ask_run(self) -> TurnStatus:
        try:
            description = await self.run.describe()
            if build_closed_status(description) is not None:
                return await self._read_status_of_closed_run(description)
        except ServerUnreachableError:
            return self._build_running_status()
        except RunNotFoundError:  # deleted after Temporal's retention
            if (recorded := await self._read_recorded_status()) is not None:
                return recorded
            raise
        try:
            status = TurnStatus.model_validate(await self.run.ask_workflow("turn", self.task_id or None))
        except RunClosedError:  # closed between the two requests
            return await self._ask_run()
        except PerdureError:  # no worker answers
            return await self._read_status_without_worker()
        if status.state == "unknown":  # no longer in the workflow's state, or of an earlier execution
            return await self._read_recorded_status() or await self._build_abandoned_status(status)
        self.task_id = self.task_id or status.task_id
        return status

    async def result(self) -> Response[OutputT]:
        """Wait for the response, with the messages up to it where this client has the store.

        Raises the turn's error; ``RunCancelledError``; ``RunNotFoundError`` for an unknown turn. Logs a warning if no
        worker polls the task queue for 10 s.
        """
        async with background_task(self.warn_without_worker()):
            return await self._build_response(await self.wait_for_end())

    def events(self, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
        """Yield the events of the turn after number ``after`` until it has ended; without ``wait`` only those recorded
        so far.

        Includes the events of its subagents' runs, unless ``children`` is false. Raises ``RunNotFoundError`` for an
        unknown turn; else as :meth:`Run.events`.
        """
        return follow_turn(self, after, wait=wait, children=children)

    @property
    def output_form(self) -> OutputForm:
        """What the client knows of its output: that of the run."""
        return self.run.output_form

    async def warn_without_worker(self) -> None:
        """See :meth:`Run.warn_without_worker`."""
        await self.run.warn_without_worker()

    async def over(self) -> bool:
        """Whether the turn has ended. Raises ``RunNotFoundError`` for an unknown turn."""
        status = await self.status()
        if status.state == "unknown":
            raise self.build_unknown_turn_error(status)
        return status.state != "running"

    async def wait_for_end(self, known: TurnStatus | None = None) -> TurnStatus:
        """Wait until the turn has ended, and return its status: ``unknown`` at once for an unknown turn. Raises
        ``RunNotFoundError``.

        ``known`` is its status of a moment ago.
        """
        status = known or await self.status()
        delay, answered = _WORKFLOW_POLL_FIRST_DELAY, False
        while status.state == "running":
            if self.run.has_store and not answered:
                answered = await self._wait_for_store_change()
                delay = _CATCH_UP_FIRST_DELAY
            else:  # also if the workflow does not have the answer yet, or a later one will follow
                await asyncio.sleep(delay)
                delay = min(delay * 1.5, _WORKFLOW_POLL_MAX_DELAY)
            status = await self._find_status(is_open=answered)
        return status

    async def interrupt(
        self, message: MessageInput | None = None, *, id: str | None = None, by: str | None = None
    ) -> None:
        """See :meth:`Run.interrupt`: it interrupts the current turn of the run."""
        await self.run.interrupt(message, id=id, by=by)

    async def _build_response(self, status: TurnStatus) -> Response[OutputT]:
        if status.state == "completed" and status.response is not None:
            return await self.run.with_messages(status.response)
        if status.state == "failed":
            raise build_error(status.error_type, status.error or "the turn failed")
        if status.state == "cancelled":
            raise RunCancelledError(
                status.error or f"run {self.run.id!r} was cancelled before this turn had its answer"
            )
        raise self.build_unknown_turn_error(status)

    def build_unknown_turn_error(self, status: TurnStatus) -> RunNotFoundError:
        """Build the error for a turn that the run does not have."""
        hint = f"perdure events {self.run.id} shows the turns that it had."
        if not self.run.has_store:
            hint = "The store also has turns of long ago: give this client store_url=…."
        return RunNotFoundError(f"run {self.run.id!r} has no turn {status.task_id!r}", hint=hint)

    def _build_running_status(self) -> TurnStatus:
        return TurnStatus(task_id=self.task_id, state="running")

    async def _read_status_without_worker(self) -> TurnStatus:
        """Return the status of a turn of an open run for which no worker answers.

        The store has an answer as soon as the model has given it. It is the turn's response only when the workflow has
        it too: until then a message may join the turn and get an answer of its own.
        """
        if (recorded := await self._read_recorded_status()) is None:
            return self._build_running_status()
        now = await self.run.describe()  # after the store was read: by now the call that wrote it may be pending
        busy = now.raw_description.pending_activities or await has_unhandled_events(self.run.client.temporal, now)
        return self._build_running_status() if busy else recorded

    async def _read_status_of_closed_run(self, description: WorkflowExecutionDescription) -> TurnStatus:
        """Return the status of a turn of a closed run. If nothing is recorded of the turn (terminated, timed out,
        refused), it ended as the run did."""
        if (recorded := await self._read_recorded_status()) is not None:
            return recorded
        last_turn = await self._find_last_turn(description)
        if not self.task_id:
            self.task_id = last_turn or ""
            if (recorded := await self._read_recorded_status()) is not None:
                return recorded
        answer = None
        if last_turn is None or self.task_id != last_turn:
            answer = await self._query_closed_workflow(description.run_id)
        if answer and (status := TurnStatus.model_validate(answer)).state != "running":
            if status.state == "unknown":
                return await self._build_abandoned_status(status)
            self.task_id = self.task_id or status.task_id
            return status
        status = await self._build_status_from_run_end(description.run_id)
        if not self.run.has_store:  # without a worker it is unknown whether the turn had its answer before a failure
            return status if status.state == "completed" or answer is not None else self._build_running_status()
        if status.state != "running":
            return status
        return await self._build_abandoned_status(status.model_copy(update={"state": "unknown"}))

    async def _query_closed_workflow(self, run_id: str) -> Any:
        """Query a closed execution for the turn: it has no workflow task left that a query could wedge.

        None if no worker answers. Empty if the query fails: the run had not begun, or was terminated with events that
        no workflow task had processed.
        """
        execution = self.run.client.temporal.get_workflow_handle(self.run.id, run_id=run_id)
        args = [self.task_id] if self.task_id else []
        try:
            return await execution.query("turn", args=args, rpc_timeout=ANSWER_TIMEOUT)
        except WorkflowQueryFailedError:
            return {}
        except RPCError:
            return None

    async def _find_last_turn(self, description: WorkflowExecutionDescription) -> str | None:
        """Return the ``task_id`` of the run's last turn by its events; None without a store, and for a run without a
        turn since it was reopened."""
        if not self.run.has_store:
            return None
        store = await self.run.client.store()
        row = await retry_store_read(lambda: store.get_run(self.run.id))
        execution = description.raw_description.workflow_execution_info
        if row is not None and not row.scope.startswith(execution.first_run_id):  # nothing was recorded since
            return None
        return (await self._read_turn_ids() or [None])[-1]

    async def _read_turn_ids(self) -> list[str | None]:
        """Read the ``task_id`` of every turn event of the run."""
        rows = iter_own_rows(await self.run.client.store(), self.run.id)
        return [row.task_id async for row in rows if row.type == "turn"]

    async def _build_status_from_run_end(self, run_id: str) -> TurnStatus:
        """Build the status of the turn from the end of execution ``run_id``: that of a failed run is the turn's, that
        of a completed one only if this was the last turn. Otherwise ``running``."""
        end = await self.run.read_end(run_id)
        if isinstance(end, PerdureError):
            state = "cancelled" if isinstance(end, RunCancelledError) else "failed"
            fields = {"task_id": self.task_id, "state": state, "error_type": type(end).__name__}
            return TurnStatus.model_validate(fields | {"error": end.message})
        if not end.task_id or (self.task_id and self.task_id != end.task_id):
            return self._build_running_status()
        self.task_id = end.task_id
        return TurnStatus(task_id=end.task_id, state="completed", response=end)

    async def _build_abandoned_status(self, status: TurnStatus) -> TurnStatus:
        """Build the status of a turn that the store has and that its execution never ended; ``status`` if the store has
        no such turn."""
        if not self.task_id or not self.run.has_store:
            return status
        # A turn that was cut off in its first model call has events, but no row.
        if await self._read_turn_row() is None and self.task_id not in await self._read_turn_ids():
            return status
        why = f"run {self.run.id!r} was ended before this turn had its answer, and has been opened again since"
        return TurnStatus(task_id=status.task_id, state="cancelled", error=why)

    async def _wait_for_store_change(self) -> bool:
        """Wait until the store has the end of the turn (True), or it is time to ask the workflow again.

        Watching the store costs the workers nothing. The workflow's state is decisive: a message may extend the turn.
        """
        store = await self.run.client.store()
        delay, seen = _STORE_READ_FIRST_DELAY, 0
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(_WORKFLOW_POLL_SECONDS),
                join_event_watch(self.run.client, store, self.run.id) as watch,
            ):
                while True:
                    row = await self._read_turn_row()
                    if row is not None and row.status != "running":
                        return True
                    seen = await watch.wait_for_event(seen)
                    await asyncio.sleep(delay)
                    delay = min(delay * 1.3, _STORE_READ_MAX_DELAY)
        return False

    async def _read_turn_row(self) -> TurnRow | None:
        if not self.task_id or not self.run.has_store:
            return None
        return await (await self.run.client.store()).get_turn(self.run.id, self.task_id)

    async def _read_recorded_status(self) -> TurnStatus | None:
        """Read the recorded status of an ended turn; None if there is none."""
        row = await self._read_turn_row()
        return None if row is None or row.status == "running" else _build_recorded_status(row)

    async def _read_final_status(self) -> TurnStatus | None:
        """Read the recorded status of a turn that its workflow, asked by this client before, has called completed; None
        for others.

        The store has an answer a moment before the workflow, and a message may extend the turn until then. After that
        the row says all, unless a reset lets a later call write it anew.
        """
        if (asked_at := self.run.client.known_ends.get(self._end_key)) is None:
            return None
        try:
            row = await self._read_turn_row()
        except StoreError:
            return None
        if row is None or row.status != "completed" or row.asked_at != asked_at:
            self.run.client.known_ends.remove(self._end_key)
            return None
        return _build_recorded_status(row)

    @property
    def _end_key(self) -> str:
        return f"turn\0{self.run.id}\0{self.task_id}"


def _build_recorded_status(row: TurnRow) -> TurnStatus:
    fields: dict[str, Any] = {"task_id": row.task_id, "state": row.status}
    result = row.result or b"{}"
    if row.status == "completed":
        fields["response"] = Response.model_validate_json(result)
    else:
        fields |= {name: text for name, text in json.loads(result).items() if name in ("error_type", "error")}
    return TurnStatus.model_validate(fields)
