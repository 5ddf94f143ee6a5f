"""What Temporal's visibility has of runs, and the status of closed ones.

Also creates the store, unless runs of the task queue are kept in one that is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter
from temporalio.api.common.v1 import WorkflowExecution as ExecutionMessage
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    ListNamespacesRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import VersioningBehavior
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from .. import _config as config
from ..errors import InvalidInputError, PerdureError, StoreError
from ..temporal.errors import is_missing_attribute, translate_service_error
from ..types.approvals import WaitingCall
from ..types.interface import (
    AGENT_ATTRIBUTE,
    PENDING_ATTRIBUTE,
    STATUS_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    USER_ATTRIBUTE,
    WAITING_MEMO,
    WORKFLOW_TYPE,
    Status,
)
from ..types.run_states import ENDED_STATES, OPEN_STATES
from .handles import ClientHandle, RunHandle
from .run_states import RunSummary, read_store_memo, refine_states

if TYPE_CHECKING:
    from ..ports.store import RunRow, Store

logger = logging.getLogger("perdure.client")

_PENDING_ADAPTER = TypeAdapter(tuple[WaitingCall, ...], config=ConfigDict(defer_build=True))
MAY_WAIT_FILTER = f"({PENDING_ATTRIBUTE} > 0 OR {PENDING_ATTRIBUTE} IS NULL)"
"""Runs that may have pending calls. A run without the attribute is included and must be asked: it may have begun to
wait a moment ago, or none of its workers can set the attribute."""
_STORE_SEARCH_RUNS = 100
"""Runs that are searched for a store id before a store is made."""
_SEARCHED_EVENTS = 50
"""The last events of a run that are searched for its store and its head."""
_MAX_NAMESPACES, _SYSTEM_NAMESPACE = 50, "temporal-system"
"""Namespaces that are searched for a run that only the store has, and Temporal's own, which is not."""
_NAMESPACES_SECONDS = 2.0
_MAX_ROW_DELAY = timedelta(minutes=1)
"""Longest time between the start of a run and its row in the store, for both to count as one run."""
STATUS_NAMES = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}
RUNS_QUERY = f"WorkflowType = '{WORKFLOW_TYPE}'"
ROOTS_FILTER = "ParentWorkflowId IS NULL"
IDS_PER_QUERY = 100
INDEXED_STATES = ("waiting", "paused")
"""States of an open run other than running, as its search attribute has them."""


OPEN = "open"
"""A filter: every open run, whatever its state."""


# ---
# Queries of Temporal's visibility, by search attributes where the namespace has them.


def build_agent_filter(agent: str) -> str:
    """Build the filter for runs of ``agent``, and for runs without the agent attribute."""
    return f"({AGENT_ATTRIBUTE} = {quote_literal(agent)} OR {AGENT_ATTRIBUTE} IS NULL)"


def build_label_filters(labels: Mapping[str, str | None]) -> list[str]:
    """Build the filters for the runs of a tenant and a user. Unlike with agents, runs without the attribute are left
    out: they may be many, and the store has those whose tenant it knows."""
    attributes = {"tenant": TENANT_ATTRIBUTE, "user": USER_ATTRIBUTE}
    return [f"{attributes[name]} = {quote_literal(value)}" for name, value in labels.items() if value is not None]


def quote_literal(text: str) -> str:
    """Quote a text for a query."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


async def list_executions(
    client: ClientHandle, query: str, *filters: str, status: str | None = None
) -> AsyncGenerator[WorkflowExecution]:
    """Yield the executions of ``query``, filtered by ``filters`` where the namespace has the attributes that they use.

    With ``status`` only those with that ``PerdureStatus``, and ``InvalidInputError`` if the namespace does not have the
    attribute.
    """
    if status is not None:
        query = f"{query} AND {STATUS_ATTRIBUTE} = {quote_literal(status)}"
    executions = client.temporal.list_workflows(" AND ".join((query, *filters)))
    try:
        first = await anext(executions, None)
    except RPCError as error:
        if not (filters or status) or not is_missing_attribute(error):
            raise translate_service_error(client.temporal, error) from error
        executions = client.temporal.list_workflows(query)
        try:
            first = await anext(executions, None)
        except RPCError as missing:
            if status is None or not is_missing_attribute(missing):
                raise translate_service_error(client.temporal, missing) from missing
            raise build_missing_status_error(status) from None
    if first is not None:
        yield first
        try:
            async for execution in executions:
                yield execution
        except RPCError as error:
            raise translate_service_error(client.temporal, error) from error


def build_missing_status_error(status: str) -> InvalidInputError:
    """Build the error for a ``status`` in a namespace without its search attribute."""
    return InvalidInputError(
        f"the namespace has no search attribute {STATUS_ATTRIBUTE}, so it cannot tell which runs are {status}",
        hint="`perdure server setup` registers it. Without it, `perdure approvals` asks every open run.",
    )


def build_status_filter(status: str | None) -> str:
    """Build the filter for runs in ``status``, or in any. Raises ``InvalidInputError`` for an unknown one."""
    if status is None:
        return "ExecutionStatus != 'ContinuedAsNew'"
    if status in INDEXED_STATES:
        return f"ExecutionStatus = 'Running' AND {STATUS_ATTRIBUTE} = {quote_literal(status)}"
    if status == OPEN or status in OPEN_STATES:
        return "ExecutionStatus = 'Running'"
    if status not in _EXECUTION_STATUSES:
        known = ", ".join((OPEN, *OPEN_STATES, *ENDED_STATES))
        raise InvalidInputError(f"status: there is no status {status!r:.60}", hint=f"The statuses are {known}.")
    return f"ExecutionStatus = '{_EXECUTION_STATUSES[status]}'"


_EXECUTION_STATUSES = {
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Canceled",
    "terminated": "Terminated",
    "timed_out": "TimedOut",
}


def attribute_of(execution: WorkflowExecution, name: str) -> Any:
    """Return the value of a run's search attribute; None if the run has not set it."""
    return next((pair.value for pair in execution.typed_search_attributes if pair.key.name == name), None)


# ---
# What Temporal has of a run.


async def find_other_namespaces(temporal: TemporalClient, rows: Sequence[RunRow]) -> dict[str, str]:
    """Return the namespaces of those runs of ``rows``, which only the store has, that are in another one of the server.

    The store does not know a run's namespace, and an id is unique within one only: a run counts as another's if an
    execution there began within a minute of its row, or has written the row. Takes 2 s at most; a namespace that does
    not answer, or is not shown to this client, is left out.
    """
    namespaces: dict[str, str] = {}
    if not rows:
        return namespaces
    batches = [rows[start : start + IDS_PER_QUERY] for start in range(0, len(rows), IDS_PER_QUERY)]
    service, slots = temporal.workflow_service, asyncio.Semaphore(_MAX_NAMESPACES)

    async def search(name: str, batch: Sequence[RunRow]) -> None:
        async with slots:
            with suppress(RPCError):
                async for run_id in _find_in_namespace(service, name, batch):
                    namespaces[run_id] = name

    with suppress(RPCError, TimeoutError):
        async with asyncio.timeout(_NAMESPACES_SECONDS):
            listed = await service.list_namespaces(ListNamespacesRequest(page_size=_MAX_NAMESPACES))
            names = {described.namespace_info.name for described in listed.namespaces}
            others = sorted(names - {temporal.namespace, _SYSTEM_NAMESPACE})
            await asyncio.gather(*(search(name, batch) for batch in batches for name in others))
    return namespaces


async def _find_in_namespace(service: WorkflowService, name: str, rows: Sequence[RunRow]) -> AsyncGenerator[str]:
    """Yield the ids of those of ``rows`` that are runs of namespace ``name``. Raises ``RPCError``."""
    missing = {row.context_id: row for row in rows}
    continuations: dict[str, str] = {}
    request = ListWorkflowExecutionsRequest(namespace=name, query=build_ids_query(missing))
    while True:
        page = await service.list_workflow_executions(request)
        for execution in page.executions:
            run_id, execution_id = execution.execution.workflow_id, execution.execution.run_id
            row = missing.get(run_id)
            if row is not None and _has_written(row, execution_id, execution.start_time.ToDatetime(UTC)):
                del missing[run_id]
                yield run_id
            else:
                continuations.setdefault(run_id, execution_id)
        if not page.next_page_token:
            break
        request.next_page_token = page.next_page_token
    # Of a run that has continued as new, the first execution may be deleted; lists do not say which it was.
    for run_id in continuations.keys() & missing.keys():
        latest = ExecutionMessage(workflow_id=run_id, run_id=continuations[run_id])
        describe = DescribeWorkflowExecutionRequest(namespace=name, execution=latest)
        described = await service.describe_workflow_execution(describe)
        if _has_written(missing[run_id], described.workflow_execution_info.first_run_id):
            yield run_id


def _has_written(row: RunRow, first_run_id: str, began: datetime | None = None) -> bool:
    """Whether the execution with that first run id, which began at that time, is the run of ``row``."""
    if began is not None and abs(datetime.fromisoformat(row.created_at) - began) < _MAX_ROW_DELAY:
        return True
    return first_run_id != "" and row.scope.startswith(first_run_id)


async def create_store(store: Store, temporal: TemporalClient, task_queue: str) -> None:
    """Make the store, unless runs of the task queue are kept in a store: that one is missing then, and a new empty one
    in its place would strand those runs.

    Temporal is queried once in a store's life. Raises ``StoreError``.
    """
    if not config.is_new_store_allowed():
        query = f"WorkflowType = '{WORKFLOW_TYPE}' AND TaskQueue = {quote_literal(task_queue)}"
        missing = f"there is no store at {store.place}"
        way_out = "To begin with an empty store, in which such runs cannot continue, set PERDURE_NEW_STORE=1 once."
        try:
            async for execution in temporal.list_workflows(query, limit=_STORE_SEARCH_RUNS):
                if (store_id := await _find_store_id(temporal, execution)) is not None:
                    await store.open(create=False)
                    if store.store_id:  # another worker that started at the same time has made it
                        return
                    put_back = "Put that store back there (is its volume mounted?), or correct PERDURE_STORE_URL."
                    raise StoreError(
                        f"{missing}, and run {execution.id!r} of task queue {task_queue!r} is kept in store {store_id}",
                        hint=f"{put_back} {way_out}",
                    )
        except RPCError as error:
            unknown = f"Temporal does not say whether runs of task queue {task_queue!r} are kept in one"
            raise StoreError(
                f"{missing}, and {unknown}: {error.message}", hint=f"Let this client list and read workflows. {way_out}"
            ) from error
    await store.open()
    logging.getLogger("perdure.store").info(
        "made a new store, %s, at %s: no run of task queue %r has one", store.store_id, store.place, task_queue
    )


async def _find_store_id(temporal: TemporalClient, execution: WorkflowExecution) -> str | None:
    """Return the ``store_id`` in the last events of a run; None if it has used no store yet."""
    async for fields in _read_last_fields(temporal, execution.id, execution.run_id):
        store_id = fields.get("store_id")
        if isinstance(store_id, str) and store_id:
            return store_id
    return None


async def find_last_head(temporal: TemporalClient, execution: WorkflowExecution) -> tuple[str, str] | None:
    """Return the newest head in the last events of a run, and the ``store_id`` of the store that has it. None if they
    have none."""
    async for fields in _read_last_fields(temporal, execution.id, execution.run_id):
        head, store_id = fields.get("head"), fields.get("store_id")
        if isinstance(head, str) and isinstance(store_id, str) and head and store_id:
            return head, store_id
    return None


async def _read_last_fields(temporal: TemporalClient, id: str, run_id: str) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what a run and its activities were given and returned in its last events, the newest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=temporal.namespace,
        execution=ExecutionMessage(workflow_id=id, run_id=run_id),
        maximum_page_size=_SEARCHED_EVENTS,
    )
    try:
        response = await temporal.workflow_service.get_workflow_execution_history_reverse(request)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return
        raise
    for event in response.history.events:
        values = (
            event.activity_task_scheduled_event_attributes.input,
            event.activity_task_completed_event_attributes.result,
            event.workflow_execution_started_event_attributes.input,
            event.workflow_execution_completed_event_attributes.result,
        )
        for payload in (payload for payloads in values for payload in payloads.payloads):
            try:
                [value] = await temporal.data_converter.decode([payload])
            except Exception:  # noqa: S112  # written with another client's codec or converter
                continue
            for fields in (value, value.get("state")) if isinstance(value, dict) else ():
                if isinstance(fields, dict):
                    yield fields


async def list_runs_of_schedule(client: ClientHandle, id: str, limit: int) -> list[RunSummary]:
    """List the runs that schedule ``id`` has started, the newest first."""
    ours = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus != 'ContinuedAsNew'"
    query = f"{ours} AND TemporalScheduledById = {quote_literal(id)}"
    executions = [execution async for execution in client.temporal.list_workflows(query)]
    newest = sorted(executions, key=lambda execution: execution.start_time, reverse=True)[:limit]
    return await refine_states(client, [await build_run_summary(client, execution) for execution in newest])


async def select_roots(client: ClientHandle, rows: Sequence[RunRow], limit: int) -> list[RunRow]:
    """The first ``limit`` of ``rows``, which have no recorded parent, that no other workflow has started.

    The listing has left out runs with a parent, so Temporal is asked for them: one that an author's workflow has
    started has none in the store.
    """
    roots: list[RunRow] = []
    for start in range(0, len(rows), IDS_PER_QUERY):
        batch = rows[start : start + IDS_PER_QUERY]
        executions = list_executions(client, build_ids_query(row.context_id for row in batch))
        started = {execution.id async for execution in executions if execution.parent_id}
        roots += [row for row in batch if row.context_id not in started]
        if len(roots) >= limit:
            break
    return roots[:limit]


async def has_recorded_parent(client: ClientHandle, id: str) -> bool:
    """Whether the events of run ``id`` are recorded as those of a subagent.

    For an execution without a parent: a message has opened the subagent's run again.
    """
    if "/" not in id or client.store_url is None:  # a subagent's id begins with its parent's
        return False
    row = await (await client.store()).get_run(id)
    return row is not None and row.root is not None


def build_ids_query(ids: Iterable[str]) -> str:
    return f"{RUNS_QUERY} AND WorkflowId IN ({', '.join(map(quote_literal, ids))})"


async def build_run_summary(client: ClientHandle, execution: WorkflowExecution) -> RunSummary:
    status = "unknown" if execution.status is None else STATUS_NAMES.get(execution.status, "unknown")
    indexed_status = attribute_of(execution, STATUS_ATTRIBUTE)
    if status == "running" and indexed_status in INDEXED_STATES:
        status = indexed_status
    name = await find_agent_name(client, execution)
    labels = await read_labels(execution)
    return RunSummary(
        execution.id,
        name,
        status,
        execution.start_time,
        execution.close_time,
        tenant=labels.get("tenant"),
        user=labels.get("user"),
        execution=execution.run_id,
        store_id=await read_store_memo(execution) if execution.close_time is None else None,
        is_indexed=indexed_status is not None,
    )


async def read_labels(execution: WorkflowExecution) -> dict[str, str]:
    """Return the tenant and the user of a run, as far as Temporal has them."""
    attributes = {"tenant": TENANT_ATTRIBUTE, "user": USER_ATTRIBUTE}
    labels = {name: attribute_of(execution, attribute) for name, attribute in attributes.items()}
    in_memo = execution.raw_info.memo.fields
    if any(value is None and name in in_memo for name, value in labels.items()):  # the namespace lacks the attribute
        with suppress(Exception):  # written with another codec
            memo = await execution.memo()
            labels = {name: value or memo.get(name) for name, value in labels.items()}
    return {name: value for name, value in labels.items() if isinstance(value, str)}


def read_deployment_version(description: WorkflowExecutionDescription) -> dict[str, Any]:
    """Return the fields ``version`` and ``version_pinned`` of a run's status from its description; {} without one."""
    info = description.raw_description.workflow_execution_info.versioning_info
    override, version = info.versioning_override, info.deployment_version
    is_pinned = info.behavior == _PINNED
    if override.HasField("pinned"):
        version, is_pinned = override.pinned.version, True
    elif override.auto_upgrade:
        is_pinned = False
    if not version.build_id:
        return {}
    return {"version": f"{version.deployment_name}.{version.build_id}", "version_pinned": is_pinned}


_PINNED = int(VersioningBehavior.PINNED)


async def find_agent_name(client: ClientHandle, execution: WorkflowExecution) -> str:
    """Return the agent's name of a run from Temporal, or from the store for a run that a plain Temporal client started.

    "" if neither has it: a list of runs does not fail for a missing name.
    """
    if name := attribute_of(execution, AGENT_ATTRIBUTE):
        return str(name)
    try:
        name = str((await execution.memo()).get("agent", ""))
    except Exception:  # written with another codec
        name = ""
    if name or client.store_url is None:
        return name
    try:
        row = await (await client.store()).get_run(execution.id)
    except StoreError:
        return ""
    return row.agent if row is not None else ""


async def add_recorded_labels(client: ClientHandle, run: RunSummary) -> RunSummary:
    """Return ``run`` with the tenant and the user that the store has: Temporal lacks those of a run that a plain client
    has started, and that has ended at once, and the namespace may lack the attributes."""
    row = None if client.store_url is None else await (await client.store()).get_run(run.id)
    return run if row is None else replace(run, tenant=run.tenant or row.tenant, user=run.user or row.user)


def has_labels(run: RunSummary, labels: Mapping[str, str | None]) -> bool:
    return all(value in (None, getattr(run, name)) for name, value in labels.items())


def has_agent_and_status(run: RunSummary, agent: str | None, status: str | None) -> bool:
    if agent is not None and run.agent != agent:
        return False
    return status in (None, run.status) or (status == OPEN and run.status in OPEN_STATES)


def build_closed_status(description: WorkflowExecutionDescription) -> Status | None:
    """Build the status of a closed run; None while it is open."""
    if description.status is None or description.status == WorkflowExecutionStatus.RUNNING:
        return None
    name = STATUS_NAMES.get(description.status, "failed")
    return Status.model_validate(
        {
            "state": name if name in ENDED_STATES else "failed",
            "agent": "",
            "context_id": description.id,
            "since": description.close_time.isoformat() if description.close_time else None,
        }
    )


async def read_end_fields(run: RunHandle, closed: Status, run_id: str) -> dict[str, Any]:
    """Read the fields of the status of a closed execution that its result has, or its error, and its description does
    not: once, as it ends once."""
    if closed.state not in ("completed", "failed"):
        return {}
    known, key = run.client.known_ends, f"execution\0{run_id}"
    if (fields := known.get(key)) is None:
        end = await run.read_end(run_id)
        if isinstance(end, PerdureError):
            fields = {"reason": f"{type(end).__name__}: {end}"}
        else:
            names = ("task_id", "head", "store_id", "usage", "cost_usd", "unanswered")
            fields = {"iteration": end.iterations} | {name: getattr(end, name) for name in names}
        known.put(key, fields, len(str(fields)))
    return dict(fields)


async def read_pending_memo(execution: WorkflowExecution) -> tuple[WaitingCall, ...] | None:
    """Return the pending calls of the run ``execution``; None if only the run itself has them.

    That is a run without the attribute of their number, or whose memo does not have them: the list is too long for it,
    or the run has just continued as new. Number and list are written together.
    """
    count = attribute_of(execution, PENDING_ATTRIBUTE)
    if not isinstance(count, int):
        return None
    if count == 0:
        return ()
    try:
        pending = _PENDING_ADAPTER.validate_python((await execution.memo()).get(WAITING_MEMO) or ())
    except Exception as error:  # an unavailable or different codec, or a memo written by another program
        logger.warning("the pending calls of run %s cannot be read from its memo: %s", execution.id, error)
        return None
    return pending if len(pending) == count else None
