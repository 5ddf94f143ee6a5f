"""Calls to the Temporal frontend: search attributes, workflow starts, namespaces, failing workflow tasks."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowExecution as ExecutionMessage
from temporalio.api.enums.v1 import IndexedValueType, PendingWorkflowTaskState, TaskQueueType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    GetClusterInfoRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client as TemporalClient
from temporalio.client import ScheduleActionStartWorkflow, WorkflowExecutionDescription, WorkflowHandle
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from ..errors import RuntimeSetupError, ServerStartError
from ..types.interface import (
    AGENT_ATTRIBUTE,
    SEARCH_ATTRIBUTES,
    TENANT_ATTRIBUTE,
    USER_ATTRIBUTE,
    WORKFLOW_TYPE,
    build_run_memo,
)
from .errors import DENIED_STATUSES, build_namespace_error, is_missing_attribute, translate_rpc_error

RECHECK_SECONDS = 60.0
"""Seconds after which a namespace's attributes are queried again: the delay until ``perdure server setup`` takes
effect."""
_RPC_TIMEOUT = timedelta(seconds=2)
"""A start, or a model call's reply, does not wait longer for a slow server."""
_ALIAS_COLUMN = re.compile(r"(?:Custom)?([A-Za-z]+?)(?:\d+|Field)")
"""The column of a namespace's attribute, which gives its type: ``Keyword01``, ``Int03``."""
_CLOUD_HINT = "On Temporal Cloud: tcld namespace search-attributes add, or the namespace's page."


@dataclass(frozen=True, slots=True)
class NamespaceAttributes:
    """The attributes of :data:`SEARCH_ATTRIBUTES` in a namespace."""

    names: tuple[str, ...]
    """Attributes with the right type."""
    mistyped: Mapping[str, str]
    """Attributes of another type, with that type."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Attributes that are missing in any type."""
        return tuple(name for name in SEARCH_ATTRIBUTES if name not in self.names and name not in self.mistyped)

    def __str__(self) -> str:
        """The problems, in a line; "" if all attributes exist."""
        problems = [f"missing: {', '.join(self.missing)}"] if self.missing else []
        for name, kind in self.mistyped.items():
            problems.append(f"{name} is of type {kind} and must be {SEARCH_ATTRIBUTES[name]}")
        return "; ".join(problems)


async def find_search_attributes(service: ServiceClient, namespace: str) -> NamespaceAttributes:
    """Query the search attributes of ``namespace``. Raises ``RPCError``."""
    try:
        request = ListSearchAttributesRequest(namespace=namespace)
        response = await service.operator_service.list_search_attributes(request, timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status not in DENIED_STATUSES:
            raise
        types = await _read_aliases(service, namespace)
    else:
        types = {name: _format_attribute_type(kind) for name, kind in response.custom_attributes.items()}
    present_types = {name: types[name] for name in SEARCH_ATTRIBUTES if name in types}
    return NamespaceAttributes(
        tuple(name for name, kind in present_types.items() if kind == SEARCH_ATTRIBUTES[name]),
        {name: kind for name, kind in present_types.items() if kind != SEARCH_ATTRIBUTES[name]},
    )


async def _read_aliases(service: ServiceClient, namespace: str) -> dict[str, str]:
    """Read the same from the namespace's description, which every client may read."""
    request = DescribeNamespaceRequest(namespace=namespace)
    described = await service.workflow_service.describe_namespace(request, timeout=_RPC_TIMEOUT)
    columns = described.config.custom_search_attribute_aliases
    return {name: match[1] for column, name in columns.items() if (match := _ALIAS_COLUMN.fullmatch(column))}


async def register_search_attributes(service: ServiceClient, namespace: str) -> tuple[str, ...]:
    """Register the missing attributes in ``namespace``, and return their names. Raises ``RuntimeSetupError``."""
    try:
        attributes = await find_search_attributes(service, namespace)
        if attributes.mistyped:
            raise RuntimeSetupError(
                f"namespace {namespace!r} has another search attribute of that name: {attributes}",
                hint="Remove or rename it. Until then runs have no such attributes; the inbox queries every open run.",
            )
        if attributes.missing:
            types = {name: parse_attribute_type(SEARCH_ATTRIBUTES[name]) for name in attributes.missing}
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=types)
            await service.operator_service.add_search_attributes(request)
    except RPCError as error:
        raise _build_registration_error(namespace, error) from error
    return attributes.missing


def _build_registration_error(namespace: str, error: RPCError) -> RuntimeSetupError:
    if error.status in DENIED_STATUSES:
        options = " ".join(f'--search-attribute "{name}={kind}"' for name, kind in SEARCH_ATTRIBUTES.items())
        return RuntimeSetupError(
            f"no permission to register search attributes in namespace {namespace!r}: {error.message}",
            hint=f"Have an administrator do it. {_CLOUD_HINT} They are: {options}",
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        return build_namespace_error(namespace)
    return RuntimeSetupError(f"namespace {namespace!r} refuses the search attributes: {error.message}")


@dataclass(slots=True)
class _AttributesEntry:
    attributes: NamespaceAttributes | None = None
    expires_at: float = 0.0
    """Time of the next query, of ``time.monotonic()``."""
    is_refreshing: bool = False


_attributes_cache: WeakKeyDictionary[TemporalClient, _AttributesEntry] = WeakKeyDictionary()


async def get_search_attributes(temporal: TemporalClient) -> NamespaceAttributes | None:
    """Return the attributes of the client's namespace, cached for ``RECHECK_SECONDS``. None if they are unknown.

    Never raises: they only make finding runs quicker.
    """
    entry = _attributes_cache.setdefault(temporal, _AttributesEntry())
    if time.monotonic() < entry.expires_at or (entry.is_refreshing and entry.attributes is not None):
        return entry.attributes
    entry.is_refreshing = True
    try:
        entry.attributes = await find_search_attributes(temporal.service_client, temporal.namespace)
    except RPCError:  # the cached value stays: an unreachable server has lost nothing
        pass
    finally:
        entry.is_refreshing, entry.expires_at = False, time.monotonic() + RECHECK_SECONDS
    return entry.attributes


def forget_search_attributes(temporal: TemporalClient) -> None:
    """Drop the cached attributes: the next call queries them."""
    _attributes_cache.pop(temporal, None)


async def build_start_attributes(temporal: TemporalClient, start: Mapping[str, Any]) -> TypedSearchAttributes:
    """Return the attributes of a new run with the input ``start``: its agent, tenant and user, if the namespace has
    attributes for them."""
    attributes = await get_search_attributes(temporal)
    known = () if attributes is None else attributes.names
    fields = {AGENT_ATTRIBUTE: "agent", TENANT_ATTRIBUTE: "tenant", USER_ATTRIBUTE: "user"}
    wanted = {name: start[field] for name, field in fields.items() if start.get(field) is not None and name in known}
    return build_search_attributes(wanted) if wanted else TypedSearchAttributes.empty


def build_search_attributes(values: Mapping[str, object]) -> TypedSearchAttributes:
    """Build attributes from values: texts are keywords, numbers are integers."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_int(name), value)
            if isinstance(value, int)
            else SearchAttributePair(SearchAttributeKey.for_keyword(name), str(value))
            for name, value in values.items()
        ]
    )


def parse_attribute_type(name: str) -> IndexedValueType.ValueType:
    """Convert ``"Keyword"`` into Temporal's value."""
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name.upper()}")


def _format_attribute_type(kind: IndexedValueType.ValueType) -> str:
    words = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").split("_")
    return "".join(word.capitalize() for word in words)


# ---
# Namespaces, and the pollers of task queues.


async def check_namespace(temporal: TemporalClient) -> None:
    """Raise ``RuntimeSetupError`` if the server does not have the client's namespace."""
    request = DescribeNamespaceRequest(namespace=temporal.namespace)
    try:
        await temporal.workflow_service.describe_namespace(request, timeout=_RPC_TIMEOUT)
    except RPCError as error:  # a client may lack the permission, or the server be busy: the next request shows it
        if error.status == RPCStatusCode.NOT_FOUND:
            raise build_namespace_error(temporal.namespace) from error


async def describe_task_queue(
    temporal: TemporalClient,
    task_queue: str,
    kind: TaskQueueType.ValueType,
    *,
    timeout: float | None = None,
    stats: bool = False,
) -> DescribeTaskQueueResponse:
    """Return the pollers of a task queue, to which versions Temporal routes its tasks, and with ``stats`` what waits in
    it. Raises ``RPCError``."""
    queue = TaskQueue(name=task_queue)
    request = DescribeTaskQueueRequest(namespace=temporal.namespace, task_queue=queue, task_queue_type=kind)
    request.report_stats = stats
    return await temporal.workflow_service.describe_task_queue(
        request, retry=timeout is None, timeout=None if timeout is None else timedelta(seconds=timeout)
    )


async def find_pollers(
    temporal: TemporalClient, task_queue: str, kind: TaskQueueType.ValueType, *, timeout: float | None = None
) -> dict[str, datetime]:
    """Return when each worker has polled the task queue last: by identity, by the server's clock. The server lists
    workers for minutes after they have stopped. Raises ``RPCError``."""
    polls: dict[str, datetime] = {}
    for poller in (await describe_task_queue(temporal, task_queue, kind, timeout=timeout)).pollers:
        at = poller.last_access_time.ToDatetime(UTC)
        polls[poller.identity] = max(polls.get(poller.identity, at), at)
    return polls


# ---
# Starts of workflows by perdure's clients.


TASK_TIMEOUT = timedelta(seconds=5)
"""Timeout of one workflow task: the time that a run stands still after its worker was killed in a task. Temporal's
default is 10 s; a task here takes milliseconds, and a replay of the longest history about two seconds."""


async def start_run_workflow(
    temporal: TemporalClient,
    id: str,
    start: dict[str, Any],
    *,
    task_queue: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.REJECT_DUPLICATE,
    memo: dict[str, Any] | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start a run with the input ``start``. ``memo`` is added to that of every run.

    Raises the SDK's ``WorkflowAlreadyStartedError``, which has a different meaning for each caller; else a
    ``PerdureError``.
    """

    attributes = await build_start_attributes(temporal, start)
    while True:
        try:
            return await temporal.start_workflow(
                WORKFLOW_TYPE,
                start,
                id=id,
                task_queue=task_queue,
                task_timeout=TASK_TIMEOUT,
                id_reuse_policy=reuse,
                memo={**build_run_memo(start), **(memo or {})},
                search_attributes=attributes,
            )
        except RPCError as error:
            if not attributes or not is_missing_attribute(error):
                raise translate_rpc_error(temporal, id, error) from error
            forget_search_attributes(temporal)  # the attribute was removed since the check
            attributes = TypedSearchAttributes.empty


def build_schedule_action(id: str, start: dict[str, Any], *, task_queue: str) -> ScheduleActionStartWorkflow:
    """Build the action of a schedule, which starts a run each time. ``id`` is the prefix of its runs' ids.

    It has no search attributes, which the run sets itself: in a namespace that has lost one, no run would start.
    """
    return ScheduleActionStartWorkflow(
        WORKFLOW_TYPE, start, id=id, task_queue=task_queue, task_timeout=TASK_TIMEOUT, memo=build_run_memo(start)
    )


# ---
# Identity and setup of a server.


_NAMESPACE_CHECKS, _NAMESPACE_POLL_SECONDS = 150, 0.2
"""Most checks of whether a server serves a new namespace, and the seconds between two."""
RETENTION = timedelta(days=3650)
"""How long Temporal keeps closed runs: the dev server's default of 24 hours would lose them over a weekend."""


_RETENTION_MESSAGE = Duration(seconds=int(RETENTION.total_seconds()))


async def read_cluster_id(address: str, *, seconds: float, starting: bool = False) -> str | None:
    """Return the id of the Temporal cluster at ``address``; None if none answers, or if it is ``starting`` and does not
    serve its default namespace yet."""
    try:
        async with asyncio.timeout(seconds):
            service = await _connect_service(address)
            info = await service.workflow_service.get_cluster_info(GetClusterInfoRequest())
            if starting:
                # The frontend answers before it can serve: it describes a namespace from the database, and serves it
                # once that is in its own list, which on a busy machine was seconds later.
                await service.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
                await service.workflow_service.count_workflow_executions(
                    CountWorkflowExecutionsRequest(namespace="default")
                )
    except (TimeoutError, RuntimeError, RPCError):
        return None
    return info.cluster_id or None


async def keep_closed_runs(address: str) -> bool:
    """Raise the default namespace's retention to :data:`RETENTION`, since start-dev has no flag for it.

    Returns:
        Whether it was shorter before.

    Raises:
        ServerStartError: the server refuses.
    """
    try:
        service = (await _connect_service(address)).workflow_service
        current = await service.describe_namespace(DescribeNamespaceRequest(namespace="default"), retry=True)
        if current.config.workflow_execution_retention_ttl.seconds >= RETENTION.total_seconds():
            return False
        config = NamespaceConfig(workflow_execution_retention_ttl=_RETENTION_MESSAGE)
        await service.update_namespace(UpdateNamespaceRequest(namespace="default", config=config), retry=True)
    except (RuntimeError, RPCError) as error:
        raise ServerStartError(f"the Temporal dev server cannot be set up: {error}") from error
    return True


async def index_runs(address: str, namespace: str = "default") -> None:
    """Register the search attributes by which runs are found. They are optional, so this raises nothing: ``perdure
    doctor`` reports what is missing, and ``perdure server setup`` the reason."""
    with suppress(RuntimeError, RuntimeSetupError):
        await register_search_attributes(await _connect_service(address), namespace)


async def ensure_namespace(service: ServiceClient, namespace: str) -> None:
    """Register ``namespace`` if it is missing, and wait until the server serves it.

    Raises:
        RuntimeSetupError: the server refuses, for instance an invalid name.
    """
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=_RETENTION_MESSAGE)
    try:
        await service.workflow_service.register_namespace(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise RuntimeSetupError(f"the namespace {namespace!r} cannot be made: {error.message}") from error
    for _ in range(_NAMESPACE_CHECKS):
        if await _is_served(service, namespace):
            return
        await asyncio.sleep(_NAMESPACE_POLL_SECONDS)


async def _is_served(service: ServiceClient, namespace: str) -> bool:
    """Whether the server serves ``namespace``: it reads its own list of them every few seconds."""
    try:
        await service.workflow_service.count_workflow_executions(CountWorkflowExecutionsRequest(namespace=namespace))
    except RPCError as error:
        return error.status is not RPCStatusCode.NOT_FOUND
    return True


async def _connect_service(address: str) -> ServiceClient:
    return await ServiceClient.connect(ConnectConfig(target_host=address))


# ---
# Workflow tasks of an open run in its history: a task that fails repeatedly, and events without a task.


_HISTORY_PAGE = 50
"""Events per page, read from a history's end."""
_MAX_HISTORY_EVENTS = 500
"""Most events that are searched for the task before a failing one."""
_MAX_ERROR_CHARS = 300
_ORDINARY_CAUSES = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Causes for which a task is repeated in normal operation."""
_REPLAY_EVENT = re.compile(r"HistoryEvent\(id: (\d+)")
"""The SDK's text for the event of a history that it cannot replay."""


@dataclass(frozen=True, slots=True)
class FailingTask:
    """A workflow task that fails repeatedly: the run stands still."""

    run_id: str
    attempt: int
    error: str
    reset_to: int | None
    """Event id of the task to which a reset helps: a WorkflowTaskCompleted. None if none was found."""

    def __str__(self) -> str:
        return f"its workflow task fails, attempt {self.attempt}: {self.error}"

    @property
    def way_out(self) -> str:
        """The way out, for an operator."""
        named = f"--workflow-id {shlex.quote(self.run_id)} --event-id {self.reset_to}"
        reset = f"temporal workflow reset {named} --reason stuck"
        reset_hint = f", or reset it to before the task that fails: {reset}" if self.reset_to else ""
        return f"Run workers of the version that began it{reset_hint}"


async def find_failing_task(temporal: TemporalClient, run: WorkflowExecutionDescription) -> FailingTask | None:
    """Find the workflow task that fails repeatedly; None if none does, according to the last events."""
    task = run.raw_description.pending_workflow_task
    if task.attempt < 2:
        return None
    failed = None
    async for event in _read_last_events(temporal, run):
        if event.HasField("workflow_task_completed_event_attributes"):
            if failed is None:
                return None  # the task was lost with its worker, and did not fail
            event_match = _REPLAY_EVENT.search(failed)
            if event_match is None or event.event_id < int(event_match[1]):
                return FailingTask(run.id, task.attempt, failed[:_MAX_ERROR_CHARS], event.event_id)
        elif failed is None and event.HasField("workflow_task_failed_event_attributes"):
            attributes = event.workflow_task_failed_event_attributes
            if attributes.cause in _ORDINARY_CAUSES:
                return None
            failed = await _decode_failure_message(temporal, attributes.failure)
    return None if failed is None else FailingTask(run.id, task.attempt, failed[:_MAX_ERROR_CHARS], None)


async def has_unhandled_events(temporal: TemporalClient, run: WorkflowExecutionDescription) -> bool:
    """Whether an open run has, or may have, an event that no workflow task has handled yet.

    A pending task does not prove it: the cause may be a client's query of the run's status.
    """
    if not run.raw_description.HasField("pending_workflow_task"):
        return False
    if run.raw_description.pending_workflow_task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED:
        return True  # new events enter the history when the task ends, or its worker is found to be lost
    async for event in _read_last_events(temporal, run):
        if event.event_id > run.history_length:
            return True  # the run has continued since it was described
        if event.HasField("workflow_task_completed_event_attributes"):
            return False
        name = event.WhichOneof("attributes") or ""
        by_workflow = hasattr(getattr(event, name, None), "workflow_task_completed_event_id")
        if not by_workflow and not name.startswith("workflow_task_"):
            return True
    return True


async def _read_last_events(temporal: TemporalClient, run: WorkflowExecutionDescription) -> AsyncIterator[HistoryEvent]:
    """Iterate over the last events, the latest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=temporal.namespace,
        execution=ExecutionMessage(workflow_id=run.id, run_id=run.run_id or ""),
        maximum_page_size=_HISTORY_PAGE,
    )
    for _ in range(_MAX_HISTORY_EVENTS // _HISTORY_PAGE):
        page = await temporal.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        for event in page.history.events:
            yield event
        if not page.next_page_token:
            return
        request.next_page_token = page.next_page_token


async def _decode_failure_message(temporal: TemporalClient, failure: Failure) -> str:
    try:
        error = await temporal.data_converter.decode_failure(failure)
    except Exception:  # an unreachable codec
        return " ".join(failure.message.split())
    return " ".join(str(getattr(error, "message", error)).split())
