"""Deletes one run, or what is old: old runs, and what nothing refers to any more: the collector behind
``perdure store gc``. See decision 039.

The store knows what its rows refer to. What only Temporal knows (open runs, messages that wait, schedules) is read from
there first, and renewed in the store: then the store alone decides.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar

from google.protobuf.message import Message as ProtobufMessage
from temporalio.api.common.v1 import Payload
from temporalio.api.common.v1 import WorkflowExecution as ExecutionMessage
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, DescribeNamespaceRequest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from ..errors import LIST_HINT, InvalidInputError, RunNotFoundError, RunOpenError
from ..ports.retention import Collectable, RunTree
from ..ports.store import RunRow, Store
from ..ports.times import timestamp
from ..store.objects import LargeBlobStore
from ..temporal.errors import translate_service_error
from ..types.interface import WORKFLOW_TYPE
from ..types.limits import parse_seconds
from .audit import audit_steering
from .bulk_actions import KEEP_BULKS
from .deferred_decisions import delete_old_decisions
from .handles import ClientHandle
from .schedules import list_schedule_ids
from .visibility import find_other_namespaces, list_executions, quote_literal
from .waits import reconcile_waits

T = TypeVar("T")
V = TypeVar("V")

logger = logging.getLogger("perdure.client")

MIN_AGE = timedelta(days=2)
"""What is younger is never deleted: a call that has read it a moment ago may refer to it, and clocks differ."""
GRACE = timedelta(days=2)
"""Time after the deletion of a run in which its transcript stays, for a call that continues from it meanwhile."""
MAX_BATCH = 500
_ENDED_STATUSES = ("completed", "failed", "cancelled")
_RESUMABLE_STATUSES = {
    WorkflowExecutionStatus.FAILED: "Failed",
    WorkflowExecutionStatus.CANCELED: "Canceled",
    WorkflowExecutionStatus.TERMINATED: "Terminated",
    WorkflowExecutionStatus.TIMED_OUT: "TimedOut",
}
"""Ends after which a run can be resumed from its history, with the names that queries have."""
_MAX_CONCURRENT_REQUESTS = 10
_PROBED_RUNS = 20
"""Newest runs of the store that are looked for in Temporal, to notice that it is another one."""
_HASH = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class ExecutionState:
    """What Temporal knows of the last execution of a run."""

    name: Literal["open", "closed", "missing"]
    closed_at: datetime | None = None


Verdict = Literal["old", "young", "open", "unknown"]


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collection has deleted, or would delete."""

    dry_run: bool
    before: str
    """What was last used earlier was old enough (ISO 8601, UTC)."""
    runs: int = 0
    """Runs, with the runs below them."""
    nodes: int = 0
    """Nodes of transcripts."""
    blobs: int = 0
    """Large texts and files."""
    bytes: int = 0
    """Bytes of these nodes and blobs in the database."""
    objects: int = 0
    """Objects in the object store."""
    object_bytes: int = 0
    open: int = 0
    """Old trees of runs that were kept because Temporal has one of their runs open."""
    unknown: int = 0
    """Old trees that were kept because one of their runs has no recorded end, and Temporal does not know it."""


async def collect_garbage(
    client: ClientHandle,
    *,
    older_than: float | str | timedelta,
    dry_run: bool = False,
    batch: int = 200,
    lost: bool = False,
) -> GarbageReport:
    """See ``Client.collect_garbage``."""
    try:
        age = timedelta(seconds=parse_seconds(older_than))
    except ValueError as error:
        raise InvalidInputError(f"older_than: {error}") from None
    if age < MIN_AGE:
        raise InvalidInputError(
            f"older_than must be at least {MIN_AGE.days} days, not {older_than}",
            hint="A run that ended a moment ago may be continued at this moment.",
        )
    if not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise InvalidInputError(f"batch must be a number from 1 to {MAX_BATCH}, not {batch!r:.100}")
    store = await client.store()
    collector = Collector(store, TemporalRuns(client), datetime.now(UTC), age, batch, dry_run=dry_run, lost=lost)
    if store.store_id:
        await collector.collect()
        if not dry_run:
            while await store.delete_expired_idempotency(MAX_BATCH) == MAX_BATCH:
                pass
            await delete_old_decisions(store)
            await store.delete_old_bulks(timestamp(datetime.now(UTC) - KEEP_BULKS))
            await reconcile_waits(client)
    return collector.build_report()


# ---
# Deletes one run, with those below it.


@dataclass(frozen=True, slots=True)
class Deletion:
    """What the deletion of a run has deleted."""

    runs: int
    """Runs with rows in the store: the run, and those below it."""
    executions: int
    """Executions in Temporal; 0 also where the server does not let this client delete them."""


async def is_id_deleted(store: Store, id: str) -> bool:
    """Whether a person has deleted a run of that id, which is not given again: its audit trail and usage are kept."""
    return bool(await store.find_deleted([id]))


async def delete_run(client: ClientHandle, id: str, *, lost: bool, by: str | None) -> Deletion:
    """See ``Client.delete``."""
    store = await client.store()
    async with audit_steering(client, "delete", id, by=by):
        row = await store.get_run(id)
        if row is not None and row.root is not None:
            raise InvalidInputError(
                f"run {id!r:.200} belongs to run {row.root!r:.200}", hint="Delete that one: it is deleted with it."
            )
        tree = await store.read_tree(id)
        await _check_deletable(client, store, tree, row, lost=lost)
        closed = [run_id for name in tree.statuses for run_id in await _list_closed_executions(client, name)]
        if not await store.delete_tree(tree, timestamp(datetime.now(UTC))[:10], for_good=True):
            raise RunOpenError(
                f"run {id!r:.200} was written to meanwhile, and is not deleted",
                hint="Delete it again once it has ended.",
            )
        runs = sum(status is not None for status in tree.statuses.values())
        return Deletion(runs, await _delete_executions(client, closed))


async def _check_deletable(
    client: ClientHandle, store: Store, tree: RunTree, row: RunRow | None, *, lost: bool
) -> None:
    """Raise the error for a tree of runs that cannot be deleted."""
    runs = TemporalRuns(client)
    states = dict(zip(tree.statuses, await gather_some(runs.find_state, tree.statuses), strict=True))
    if open_id := next((name for name, state in states.items() if state.name == "open"), None):
        raise RunOpenError(
            f"run {open_id!r:.200} has not ended",
            hint="Close it (perdure close) or cancel it first, and delete it then.",
        )
    if row is None:
        if states[tree.root].name == "missing":
            raise RunNotFoundError(f"no run has the id {tree.root!r:.200}", hint=LIST_HINT)
        client.run(tree.root).check_store((await client.run(tree.root).status(decided=False)).store_id, store)
    elif states[tree.root].name == "missing":
        if others := await find_other_namespaces(client.temporal, [row]):
            raise InvalidInputError(
                f"run {tree.root!r:.200} is one of namespace {others[tree.root]!r}",
                hint="Delete it with a client of that namespace.",
            )
        if row.status not in _ENDED_STATUSES and not lost:
            raise RunOpenError(
                f"run {tree.root!r:.200} has no recorded end, and this Temporal does not know it",
                hint="Is it the Temporal of its workers? If the run is lost: lost=True, or `perdure delete --lost`.",
            )


async def _list_closed_executions(client: ClientHandle, id: str) -> list[ExecutionMessage]:
    """List the closed executions of a run; the last one from its description: a list may be a moment old."""
    try:
        description = await client.temporal.get_workflow_handle(id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
            return []
        raise translate_service_error(client.temporal, error) from error
    query = f"WorkflowId = {quote_literal(id)} AND ExecutionStatus != 'Running'"
    listed = [execution.run_id async for execution in list_executions(client, query)]
    run_ids = dict.fromkeys((*listed, description.run_id))
    return [ExecutionMessage(workflow_id=id, run_id=run_id) for run_id in run_ids]


async def _delete_executions(client: ClientHandle, executions: Sequence[ExecutionMessage]) -> int:
    """Delete closed executions, and return how many; 0 where the server does not allow it."""
    temporal, deleted = client.temporal, 0
    for execution in executions:
        request = DeleteWorkflowExecutionRequest(namespace=temporal.namespace, workflow_execution=execution)
        try:
            await temporal.workflow_service.delete_workflow_execution(request)
            deleted += 1
        except RPCError as error:
            if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                logger.warning(
                    "Temporal keeps run %s until its retention ends: %s", execution.workflow_id, error.message
                )
                break
            if error.status != RPCStatusCode.NOT_FOUND:
                raise translate_service_error(temporal, error) from error
    return deleted


# ---
# Collects what is old.


class RunStates(Protocol):
    """What Temporal knows of the runs of a store."""

    async def check_store(self, store: Store, now: datetime) -> None:
        """Raise ``InvalidInputError`` if these are not the runs of ``store``."""

    async def find_state(self, id: str) -> ExecutionState:
        """Return whether the last execution of a run is open, and when it closed."""

    def read_references(self, since: datetime) -> AsyncGenerator[set[str]]:
        """Yield the hashes of what open runs, those that did not complete ``since`` then, and schedules refer to."""


class TemporalRuns:
    """``RunStates`` of a namespace of Temporal."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    async def check_store(self, store: Store, now: datetime) -> None:
        """Raise ``InvalidInputError`` if Temporal knows none of the newest runs, and should: it is another one, and
        what its open runs refer to would be deleted."""
        rows = await store.list_runs(limit=_PROBED_RUNS)
        if not rows:
            return
        temporal = self._client.temporal
        states = await gather_some(self.find_state, [row.context_id for row in rows])
        missing = [row for row, state in zip(rows, states, strict=True) if state.name == "missing"]
        if others := sorted(set((await find_other_namespaces(temporal, missing)).values())):
            raise InvalidInputError(
                f"the store {store.place} has runs of other namespaces, too: {', '.join(others)[:200]}",
                hint="What their open runs refer to cannot be told. Give each namespace a store of its own.",
            )
        if len(missing) < len(rows):
            return
        try:
            request = DescribeNamespaceRequest(namespace=temporal.namespace)
            described = await temporal.workflow_service.describe_namespace(request)
        except RPCError as error:
            raise translate_service_error(temporal, error) from error
        kept = described.config.workflow_execution_retention_ttl.ToTimedelta()
        if rows[0].status not in _ENDED_STATUSES or rows[0].updated_at > timestamp(now - kept):
            raise InvalidInputError(
                f"namespace {temporal.namespace!r} of this Temporal has none of the newest runs of the store "
                f"{store.place} (for instance {rows[0].context_id!r}), so it cannot tell which are open",
                hint="Give the address and the namespace that the workers of this store use.",
            )

    async def find_state(self, id: str) -> ExecutionState:
        """Return whether the last execution of a run is open, and when it closed."""
        try:
            description = await self._client.temporal.get_workflow_handle(id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
                return ExecutionState("missing")
            raise translate_service_error(self._client.temporal, error) from error
        if description.status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW, None):
            return ExecutionState("open")
        return ExecutionState("closed", description.close_time)

    async def read_references(self, since: datetime) -> AsyncGenerator[set[str]]:
        """Yield what open runs and schedules name: all that looks like a hash in their histories and inputs.

        Not only in old runs: one that continued as new a moment ago has the state of one that began long ago. And a run
        that failed or was ended from outside ``since`` then: ``resume`` takes its messages from its history.
        """
        statuses = ", ".join(f"'{status}'" for status in _RESUMABLE_STATUSES.values())
        resumable = f"ExecutionStatus IN ({statuses}) AND CloseTime >= '{since.isoformat()}'"
        query = f"WorkflowType = '{WORKFLOW_TYPE}' AND (ExecutionStatus = 'Running' OR ({resumable}))"
        executions = [execution async for execution in list_executions(self._client, query)]
        needed = [
            (execution.id, execution.run_id)
            for execution in executions
            if execution.status == WorkflowExecutionStatus.RUNNING or execution.status in _RESUMABLE_STATUSES
        ]
        for names in _split(needed, _MAX_CONCURRENT_REQUESTS):
            for references in await gather_some(self._read_history_references, names):
                yield references
        for schedules in _split(await list_schedule_ids(self._client.temporal), _MAX_CONCURRENT_REQUESTS):
            for references in await gather_some(self._read_schedule_references, schedules):
                yield references

    async def _read_history_references(self, name: tuple[str, str | None]) -> set[str]:
        handle = self._client.temporal.get_workflow_handle(name[0], run_id=name[1])
        references: set[str] = set()
        try:
            async for event in handle.fetch_history_events():
                references |= await self._find_hashes(event, f"run {name[0]!r}")
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # deleted meanwhile
                raise translate_service_error(self._client.temporal, error) from error
        return references

    async def _read_schedule_references(self, id: str) -> set[str]:
        try:
            description = await self._client.temporal.get_schedule_handle(id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return set()
            raise translate_service_error(self._client.temporal, error) from error
        return await self._find_hashes(description.raw_description, f"schedule {id!r}")

    async def _find_hashes(self, message: ProtobufMessage, owner: str) -> set[str]:
        payloads: Sequence[Payload] = list(_iter_payloads(message))
        codec = self._client.temporal.data_converter.payload_codec
        if codec is not None and payloads:
            try:
                payloads = await codec.decode(payloads)
            except Exception as error:
                raise InvalidInputError(
                    f"{owner} cannot be decrypted, so what it refers to is not known: {error}",
                    hint="Run the collection with the keys of the workers. Nothing was deleted.",
                ) from error
        return {match.decode() for payload in payloads for match in _HASH.findall(payload.data)}


class Collector:
    """One collection."""

    def __init__(
        self,
        store: Store,
        runs: RunStates,
        now: datetime,
        age: timedelta,
        batch: int,
        *,
        dry_run: bool,
        lost: bool,
    ) -> None:
        self._store, self._runs, self._now = store, runs, now
        self._batch, self._dry_run, self._lost = batch, dry_run, lost
        self._cutoff = now - age
        self._before = timestamp(self._cutoff)
        self._before_day = self._before[:10]
        self._held: set[str] = set()
        """In a dry run: what would have been renewed."""
        self._gone: set[str] = set()
        """In a dry run: what would have been deleted."""
        self._counts = dict.fromkeys(
            ("runs", "nodes", "blobs", "bytes", "objects", "object_bytes", "open", "unknown"), 0
        )

    def build_report(self) -> GarbageReport:
        """Return what was deleted by now."""
        return GarbageReport(self._dry_run, self._before, **self._counts)

    async def collect(self) -> None:
        """Delete what is old. Raises ``StoreError``, and the errors of its ``RunStates`` before anything is deleted."""
        await self._runs.check_store(self._store, self._now)
        await self._renew_in_batches(self._runs.read_references(self._cutoff))
        await self._renew_in_batches(self._read_memory_references())
        await self._delete_runs()
        await self._delete_nodes()
        await self._delete_blobs()
        await self._delete_objects()

    # --- the memory

    async def _read_memory_references(self) -> AsyncGenerator[set[str]]:
        after: tuple[str, str] | None = ("", "")
        while after is not None:
            after, references = await self._store.read_memory_references(after, self._batch)
            yield references

    async def _renew_in_batches(self, references: AsyncIterator[set[str]]) -> None:
        hashes: set[str] = set()
        async for some in references:
            hashes |= some
            if len(hashes) >= self._batch:
                await self._renew(hashes)
                hashes = set()
        await self._renew(hashes)

    async def _renew(self, hashes: Iterable[str]) -> None:
        if self._dry_run:
            self._held |= set(hashes)
            return
        for some in _split(sorted(hashes), self._batch):
            await self._write(self._store.renew(some, self._before_day, timestamp(self._now)[:10]))

    # --- runs

    async def _delete_runs(self) -> None:
        after = ("", "")
        seen: set[str] = set()
        while page := await self._store.read_old_runs(self._before, after, self._batch):
            after = page[-1].created_at, page[-1].context_id
            roots = {run.root for run in page} - seen
            seen |= roots
            for some in _split(sorted(roots), _MAX_CONCURRENT_REQUESTS):
                for tree, verdict in await gather_some(self._judge_root, some):
                    await self._delete_or_keep(tree, verdict)

    async def _judge_root(self, root: str) -> tuple[RunTree, Verdict]:
        tree = await self._store.read_tree(root)
        return tree, await self._judge(tree)

    async def _delete_or_keep(self, tree: RunTree, verdict: Verdict) -> None:
        if verdict == "old" and (self._dry_run or await self._write(self._store.delete_tree(tree, self._get_grace()))):
            self._counts["runs"] += sum(status is not None for status in tree.statuses.values())
            self._held |= set(tree.heads)  # for a dry run: they get the days of grace
            return
        if verdict in ("open", "unknown"):
            self._counts[verdict] += 1
        await self._renew(tree.heads)

    def _get_grace(self) -> str:
        return timestamp(self._cutoff + GRACE)[:10]

    async def _judge(self, tree: RunTree) -> Verdict:
        """Say whether a tree can be deleted. Temporal is asked for all its runs: a message may have reopened one."""
        if tree.updated_at >= self._before:
            return "young"
        unknown = False
        for context_id, status in tree.statuses.items():
            state = await self._runs.find_state(context_id)
            if state.name == "open":
                return "open"
            if state.closed_at is not None and state.closed_at >= self._cutoff:
                return "young"
            unknown |= context_id == tree.root and state.name == "missing" and status not in _ENDED_STATUSES
        return "unknown" if unknown and not self._lost else "old"

    # --- nodes, blobs, objects

    async def _delete_nodes(self) -> None:
        async for page in self._read_pages(self._store.read_old_nodes):
            free = [node for node in page if not node.is_needed]
            while free:
                free = await (self._would_delete_nodes(free) if self._dry_run else self._delete_free_nodes(free))

    async def _delete_free_nodes(self, nodes: Sequence[Collectable]) -> list[Collectable]:
        """Delete ``nodes``, and return what may be free now: their parents, and the transcripts that they replace."""
        above = await self._store.read_nodes_above(nodes, self._before_day)
        names = [node.hash for node in nodes]
        deleted = await self._write(self._store.delete_nodes(names, self._before_day))
        self._count("nodes", deleted)
        return above if deleted else []

    async def _would_delete_nodes(self, nodes: Sequence[Collectable]) -> list[Collectable]:
        nodes = [node for node in nodes if node.hash not in self._held and node.hash not in self._gone]
        holders = await self._store.read_holders([node.hash for node in nodes])
        gone = [node for node in nodes if holders.get(node.hash, set()) <= self._gone]
        self._gone |= {node.hash for node in gone}
        self._count("nodes", gone)
        return await self._store.read_nodes_above(gone, self._before_day) if gone else []

    async def _delete_blobs(self) -> None:
        async for page in self._read_pages(self._store.read_old_blobs):
            if self._dry_run:
                names = [blob.hash for blob in page if blob.hash not in self._held]
                holders = await self._store.read_holders(names)
                deleted = [
                    blob for blob in page if blob.hash not in self._held and holders.get(blob.hash, set()) <= self._gone
                ]
                self._gone |= {blob.hash for blob in deleted}
            else:
                names = [blob.hash for blob in page if not blob.is_needed]
                deleted = await self._write(self._store.delete_blobs(names, self._before_day)) if names else []
            self._count("blobs", deleted)

    async def _delete_objects(self) -> None:
        if isinstance(self._store, LargeBlobStore):
            gone = self._gone if self._dry_run else None
            count, size = await self._store.delete_unused_objects(self._now - MIN_AGE, gone)
            self._counts["objects"], self._counts["object_bytes"] = count, size

    async def _read_pages(
        self, read: Callable[[str, tuple[str, str], int], Awaitable[list[Collectable]]]
    ) -> AsyncGenerator[list[Collectable]]:
        after = ("", "")
        while page := await read(self._before_day, after, self._batch):
            yield page
            after = page[-1].used_on, page[-1].hash

    def _count(self, kind: Literal["nodes", "blobs"], rows: Sequence[Collectable]) -> None:
        self._counts[kind] += len(rows)
        self._counts["bytes"] += sum(row.size for row in rows)

    async def _write(self, write: Awaitable[T]) -> T:
        """Await a write, then rest as long as it took: the calls of the workers go first."""
        began = time.monotonic()
        result = await write
        await asyncio.sleep(time.monotonic() - began)
        return result


async def gather_some(function: Callable[[V], Awaitable[T]], values: Iterable[V]) -> list[T]:
    """Return the results of ``function`` for all ``values``, a few at a time."""
    results: list[T] = []
    for some in _split(values, _MAX_CONCURRENT_REQUESTS):
        results += await asyncio.gather(*map(function, some))
    return results


def _split(values: Iterable[V], size: int) -> Iterator[list[V]]:
    listed = list(values)
    for start in range(0, len(listed), size):
        yield listed[start : start + size]


def _iter_payloads(message: ProtobufMessage) -> Iterator[Payload]:
    """Yield all payloads in a message of Temporal's API."""
    if isinstance(message, Payload):
        yield message
        return
    for _, value in message.ListFields():
        parts: Iterable[Any] = (value,)
        if not isinstance(value, ProtobufMessage | str | bytes | int | float):
            parts = value.values() if hasattr(value, "values") else value  # a map, or a repeated field
        for part in parts:
            if isinstance(part, ProtobufMessage):
                yield from _iter_payloads(part)
