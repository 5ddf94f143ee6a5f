"""Acts on the runs of a bulk action: the activity of ``BulkActionWorkflow``. docs/decisions/074-bulk-actions.md.

An attempt is recorded before it begins, and what became of the run behind it. A later attempt compares the run with the
execution that was chosen: a worker that was lost in between has resumed or cancelled it, and nothing is done again.
Attempts may overlap, where a worker that counts as lost still acts: their requests have the same ids, of which Temporal
carries out one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionDescription
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode, ServiceClient

from ..calls.heartbeat import Heartbeat
from ..client.audit import audit_caller
from ..client.bulk_actions import KEEP_BULKS
from ..client.client import Client
from ..client.run import Run
from ..client.run_states import refine_states
from ..client.visibility import STATUS_NAMES, attribute_of, build_run_summary
from ..errors import PerdureError, RunClosedError, ServerUnreachableError, StoreError
from ..ports.bulk_actions import BulkOutcome, BulkRow, BulkRunRow
from ..ports.store import Store
from ..ports.test_seams import reach_point
from ..ports.times import timestamp
from ..temporal.errors import translate_service_error
from ..types.interface import STATUS_ATTRIBUTE
from ..types.messages import clean_text
from ..workflows.bulk_action import BATCH_SECONDS, BULK_ACTIVITY

logger = logging.getLogger("perdure.worker.bulk_actions")

_RUN_SECONDS = 60.0
"""Longest time of one run; then it counts as failed."""
_PAGE = 100
_DETAIL_CHARS = 300

Result = tuple[BulkOutcome, str | None]


class BulkActivity:
    """Acts on pending runs at the rate of their bulk action, until it is done, stopped, or ``BATCH_SECONDS`` are
    over."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn(name=BULK_ACTIVITY)
    async def act(self, raw: Any) -> dict[str, Any]:
        """Act on runs; the answer counts the runs by outcome, and says how many are ``left``."""
        async with Heartbeat():
            name = raw.get("id") if isinstance(raw, dict) else None
            try:
                bulk = await self._store.get_bulk(name) if isinstance(name, str) else None
                if bulk is None:
                    raise ApplicationError(
                        f"the store {self._store.place}, which this worker has, has no bulk action {name!r:.100}",
                        non_retryable=True,
                    )
                if raw.get("stop"):
                    await self._store.end_bulk(bulk.id, "stopped")
                elif bulk.state == "running":
                    await self._act(bulk)
                return await self._build_answer(bulk.id)
            except (StoreError, ServerUnreachableError, RPCError) as error:  # the rest is pending
                raise ApplicationError(f"{type(error).__name__}: {error}", type=type(error).__name__) from None

    async def _build_answer(self, id: str) -> dict[str, Any]:
        bulk, counts = await self._store.get_bulk(id), (await self._store.count_bulk_runs([id]))[id]
        left = counts.get("pending", 0) if bulk is not None and bulk.state == "running" else 0
        return {"left": left, **dict[str, int](counts.items())}

    async def _act(self, bulk: BulkRow) -> None:
        client = Client(_connect_idempotently(bulk.id), task_queue=activity.info().task_queue)
        client.share_store(self._store)
        pacer = _Pacer(bulk.per_second, bulk.concurrency)
        after, ends_at = -1, asyncio.get_running_loop().time() + BATCH_SECONDS
        try:
            while runs := await self._store.list_bulk_runs(bulk.id, outcome="pending", after=after, limit=_PAGE):
                after = runs[-1].position
                for run in runs:
                    if asyncio.get_running_loop().time() > ends_at:
                        return
                    if await pacer.start(self._act_on_run, client, bulk, run):
                        return
        finally:
            await pacer.finish()
        pacer.raise_error()
        if (await self._store.count_bulk_runs([bulk.id]))[bulk.id].get("pending"):
            return  # one was lost: the next activity acts on it
        if await self._store.end_bulk(bulk.id, "completed"):
            await self._store.delete_old_bulks(timestamp(datetime.now(UTC) - KEEP_BULKS))

    async def _act_on_run(self, client: Client, bulk: BulkRow, run: BulkRunRow) -> bool:
        """Act on one run, and record what became of it. Returns whether the bulk action has ended meanwhile."""
        attempt = await self._store.begin_bulk_run(bulk.id, run.context_id)
        if attempt is None:
            current = await self._store.get_bulk(bulk.id)
            return current is None or current.state != "running"
        handle: Run[Any] = client.run(run.context_id)
        try:
            async with asyncio.timeout(_RUN_SECONDS):
                with audit_caller(bulk.auth, bulk.origin, request=bulk.id):
                    change = _resume if bulk.verb == "resume" else _cancel
                    outcome, detail = await change(handle, bulk, run, is_first=attempt == 1)
        except TimeoutError:
            outcome, detail = "failed", f"there was no answer within {_RUN_SECONDS:g} s"
        except PerdureError as error:
            if type(error) in (StoreError, ServerUnreachableError):  # of all runs
                raise
            outcome, detail = "failed", f"{type(error).__name__}: {error.message}"
        reach_point("bulk.acted")
        text = None if detail is None else clean_text(detail)[:_DETAIL_CHARS]
        await self._store.settle_bulk_run(bulk.id, run.context_id, outcome, text)
        return False


class _IdempotentService(ServiceClient):
    """Hands requests on, with the same request id for each start and each signal of a run that is sent for ``key``: of
    those, Temporal carries out one in an execution."""

    def __init__(self, inner: ServiceClient, key: str) -> None:
        super().__init__(inner.config)
        self._inner, self._key = inner, key

    @property
    def worker_service_client(self) -> Any:
        """See base class."""
        return self._inner.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """See base class."""
        self._inner.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        """See base class."""
        self._inner.update_api_key(api_key)

    async def _rpc_call(self, rpc: str, req: Any, *arguments: Any, **options: Any) -> Any:
        match rpc:
            case "start_workflow_execution":
                req.request_id = self._build_request_id(rpc, req.workflow_id)
            case "signal_workflow_execution":
                req.request_id = self._build_request_id(rpc, req.signal_name, req.workflow_execution.workflow_id)
        return await self._inner._rpc_call(rpc, req, *arguments, **options)

    def _build_request_id(self, *parts: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, "\n".join((self._key, *parts))))


def _connect_idempotently(key: str) -> TemporalClient:
    config = activity.client().config()
    config["service_client"] = _IdempotentService(config["service_client"], key)
    return TemporalClient(**config)


class _Pacer:
    """Starts work at even intervals, so many pieces at a time."""

    def __init__(self, per_second: float, concurrency: int) -> None:
        self._interval = 1 / per_second
        self._slots = asyncio.Semaphore(concurrency)
        self._next_at = asyncio.get_running_loop().time()
        self._tasks: set[asyncio.Task[bool]] = set()
        self._error: BaseException | None = None
        self._is_over = False

    async def start(self, work: Any, *arguments: Any) -> bool:
        """Start the work when it is its turn; true if a piece that was started before has said that it is over. Raises
        its error."""
        loop = asyncio.get_running_loop()
        await self._slots.acquire()
        await asyncio.sleep(max(self._next_at - loop.time(), 0))
        self._next_at = max(self._next_at, loop.time() - self._interval) + self._interval
        if self._is_over or self._error is not None:
            self._slots.release()
            self.raise_error()
            return True
        task = asyncio.create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return False

    def _end(self, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if task.cancelled():
            return
        self._error = self._error or task.exception()
        self._is_over = self._is_over or (task.exception() is None and task.result())

    async def finish(self) -> None:
        """Wait for what was started; cancel it if the caller is cancelled."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            raise

    def raise_error(self) -> None:
        """Raise the first error of a piece."""
        if self._error is not None:
            raise self._error


async def _resume(run: Run[Any], bulk: BulkRow, chosen: BulkRunRow, *, is_first: bool) -> Result:
    execution = await run.describe()
    if await _has_changed(run, chosen, execution):
        return ("skipped", "it was continued meanwhile") if is_first else ("acted", None)
    if execution.close_time is None and not await _is_paused(run, execution):
        return ("skipped", "it is running") if is_first else ("acted", None)
    try:
        await run.resume(by=bulk.by)
    except RunClosedError as error:  # it has completed
        return "skipped", error.message
    return "acted", None


async def _cancel(run: Run[Any], bulk: BulkRow, chosen: BulkRunRow, *, is_first: bool) -> Result:
    execution = await run.describe()
    if await _has_changed(run, chosen, execution):
        return ("skipped", "it was continued meanwhile") if is_first else ("acted", None)
    if execution.close_time is not None:
        name = "ended" if execution.status is None else STATUS_NAMES.get(execution.status, "ended")
        return ("skipped", f"it has ended: {name}") if is_first else ("acted", None)
    try:
        await run.cancel(by=bulk.by)
    except RunClosedError as error:
        return "skipped", error.message
    return "acted", None


async def _is_paused(run: Run[Any], execution: WorkflowExecutionDescription) -> bool:
    status = attribute_of(execution, STATUS_ATTRIBUTE)
    if status is None:  # the namespace lacks the attribute: as the run was chosen
        [summary] = await refine_states(run.client, [await build_run_summary(run.client, execution)])
        status = summary.status
    return bool(status == "paused")


async def _has_changed(run: Run[Any], chosen: BulkRunRow, execution: WorkflowExecutionDescription) -> bool:
    """Whether the run has another execution than the one that was chosen, or than those that continue it as new."""
    if execution.run_id == chosen.execution:
        return False
    try:
        before = await run.client.temporal.get_workflow_handle(run.id, run_id=chosen.execution).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise translate_service_error(run.client.temporal, error) from error
    return _get_chain(before) != _get_chain(execution)


def _get_chain(execution: WorkflowExecutionDescription) -> str:
    return execution.raw_description.workflow_execution_info.first_run_id
