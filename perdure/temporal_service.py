"""The search attributes of a namespace: which of perdure's it has, and how it gets them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from google.protobuf.duration_pb2 import Duration
from temporalio import exceptions as temporal
from temporalio.api.common.v1 import WorkflowExecution as ExecutionMessage
from temporalio.api.enums.v1 import IndexedValueType, PendingWorkflowTaskState, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetClusterInfoRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client as TemporalClient
from temporalio.client import (
    ScheduleActionStartWorkflow,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from .errors import (
    LIST_HINT,
    InvalidInputError,
    PerdureError,
    RunCancelledError,
    RunClosedError,
    RunError,
    RunNotFoundError,
    RuntimeSetupError,
    ServerStartError,
    ServerUnreachableError,
    build_error,
)
from .types.interface import AGENT_ATTRIBUTE, SEARCH_ATTRIBUTES, WORKFLOW_TYPE

RECHECK_SECONDS = 60.0
"""Seconds after which a namespace is asked again what it has: so long does ``perdure server setup`` take to be seen."""
_RPC_TIMEOUT = timedelta(seconds=2)
"""A start, or a model call's reply, does not wait longer for a server that is slow to say what it has."""
_DENIED_STATUSES = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)
"""What a server says whose operator service is not for everybody: Temporal Cloud's, for instance."""
_ALIAS_COLUMN = re.compile(r"(?:Custom)?([A-Za-z]+?)(?:\d+|Field)")
"""The column behind an attribute of a namespace, which says its type: ``Keyword01``, ``Int03``."""
_CLOUD_HINT = "On Temporal Cloud: tcld namespace search-attributes add, or the namespace's page."


@dataclass(frozen=True, slots=True)
class NamespaceAttributes:
    """What a namespace has of :data:`SEARCH_ATTRIBUTES`."""

    names: tuple[str, ...]
    """Those that are there with their types."""
    mistyped: Mapping[str, str]
    """Those of another type, and which."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that are not there, in any type."""
        return tuple(name for name in SEARCH_ATTRIBUTES if name not in self.names and name not in self.mistyped)

    def __str__(self) -> str:
        """What is wrong, in a line; "" where all are there."""
        said = [f"missing: {', '.join(self.missing)}"] if self.missing else []
        said += [
            f"{name} is of type {kind} and must be {SEARCH_ATTRIBUTES[name]}" for name, kind in self.mistyped.items()
        ]
        return "; ".join(said)


async def find_search_attributes(service: ServiceClient, namespace: str) -> NamespaceAttributes:
    """What ``namespace`` has. Raises ``RPCError``."""
    try:
        asked = ListSearchAttributesRequest(namespace=namespace)
        listed = await service.operator_service.list_search_attributes(asked, timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status not in _DENIED_STATUSES:
            raise
        types = await _read_aliases(service, namespace)
    else:
        types = {name: _format_attribute_type(kind) for name, kind in listed.custom_attributes.items()}
    here = {name: types[name] for name in SEARCH_ATTRIBUTES if name in types}
    return NamespaceAttributes(
        tuple(name for name, kind in here.items() if kind == SEARCH_ATTRIBUTES[name]),
        {name: kind for name, kind in here.items() if kind != SEARCH_ATTRIBUTES[name]},
    )


async def _read_aliases(service: ServiceClient, namespace: str) -> dict[str, str]:
    """The same from the namespace's description, which every client may read."""
    request = DescribeNamespaceRequest(namespace=namespace)
    described = await service.workflow_service.describe_namespace(request, timeout=_RPC_TIMEOUT)
    columns = described.config.custom_search_attribute_aliases
    return {name: match[1] for column, name in columns.items() if (match := _ALIAS_COLUMN.fullmatch(column))}


async def register_search_attributes(service: ServiceClient, namespace: str) -> tuple[str, ...]:
    """Give ``namespace`` the attributes that it lacks, and say which. Raises ``RuntimeSetupError``."""
    try:
        found = await find_search_attributes(service, namespace)
        if found.mistyped:
            raise RuntimeSetupError(
                f"namespace {namespace!r} has another search attribute of that name: {found}",
                hint="Remove or rename it. Until then runs are served without; the inbox asks every open run.",
            )
        if found.missing:
            wanted = {name: parse_attribute_type(SEARCH_ATTRIBUTES[name]) for name in found.missing}
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=wanted)
            await service.operator_service.add_search_attributes(request)
    except RPCError as error:
        raise _build_registration_error(namespace, error) from error
    return found.missing


def _build_registration_error(namespace: str, error: RPCError) -> RuntimeSetupError:
    if error.status in _DENIED_STATUSES:
        wanted = " ".join(f'--search-attribute "{name}={kind}"' for name, kind in SEARCH_ATTRIBUTES.items())
        return RuntimeSetupError(
            f"you may not register search attributes in namespace {namespace!r}: {error.message}",
            hint=f"Have an administrator do it. {_CLOUD_HINT} They are: {wanted}",
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        way_out = "Name another one (--namespace), or create it: temporal operator namespace create."
        return RuntimeSetupError(f"there is no namespace {namespace!r}: {error.message}", hint=way_out)
    return RuntimeSetupError(f"namespace {namespace!r} does not take the search attributes: {error.message}")


@dataclass(slots=True)
class _AttributesEntry:
    attributes: NamespaceAttributes | None = None
    expires_at: float = 0.0
    """When it is to be asked for again: ``time.monotonic()``."""
    is_refreshing: bool = False


_attributes_cache: WeakKeyDictionary[TemporalClient, _AttributesEntry] = WeakKeyDictionary()


async def get_search_attributes(temporal: TemporalClient) -> NamespaceAttributes | None:
    """What the client's namespace has, as it was seen last; asked for now and then. None where it cannot be told.

    Never raises: nothing depends on it but how quickly runs are found.
    """
    entry = _attributes_cache.setdefault(temporal, _AttributesEntry())
    if time.monotonic() < entry.expires_at or (entry.is_refreshing and entry.attributes is not None):
        return entry.attributes
    entry.is_refreshing = True
    try:
        entry.attributes = await find_search_attributes(temporal.service_client, temporal.namespace)
    except RPCError:  # it stays as it was: a server that is away has lost nothing
        pass
    finally:
        entry.is_refreshing, entry.expires_at = False, time.monotonic() + RECHECK_SECONDS
    return entry.attributes


def forget_search_attributes(temporal: TemporalClient) -> None:
    """What was known is wrong: the next one asks."""
    _attributes_cache.pop(temporal, None)


async def build_start_attributes(temporal: TemporalClient, agent: str) -> TypedSearchAttributes:
    """What a run of ``agent`` is started with: its name, where the namespace has an attribute for it."""
    found = await get_search_attributes(temporal)
    if found is None or AGENT_ATTRIBUTE not in found.names:
        return TypedSearchAttributes.empty
    return build_search_attributes({AGENT_ATTRIBUTE: agent})


def build_search_attributes(values: Mapping[str, object]) -> TypedSearchAttributes:
    """Texts are keywords, numbers are whole."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_int(name), value)
            if isinstance(value, int)
            else SearchAttributePair(SearchAttributeKey.for_keyword(name), str(value))
            for name, value in values.items()
        ]
    )


def is_missing_attribute(error: RPCError) -> bool:
    """Whether the server refuses a start, or a query, for want of a search attribute."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message


def parse_attribute_type(name: str) -> IndexedValueType.ValueType:
    """``"Keyword"`` as Temporal's interface has it."""
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name.upper()}")


def _format_attribute_type(kind: IndexedValueType.ValueType) -> str:
    words = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").split("_")
    return "".join(word.capitalize() for word in words)


# ---
# What Temporal's refusals and failures mean for a run.

ACCEPTED_UPDATE_ENDED = "AcceptedUpdateCompletedWorkflow"
"""Temporal's type of the error of an update that a workflow has accepted and then ended without completing."""


def translate_rpc_error(temporal: TemporalClient, id: str, error: RPCError) -> PerdureError:
    """What Temporal's refusal means for run ``id``."""
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
        return build_unreachable_error(temporal, error.message)
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return InvalidInputError(f"Temporal refuses run {id!r:.100}: {error.message}")
    if error.status != RPCStatusCode.NOT_FOUND:
        return RunError(f"Temporal refused: {error.message}")
    if "amespace" in error.message:
        return RuntimeSetupError(
            f"Temporal: {error.message}", hint="Create the namespace, or name another one: TEMPORAL_NAMESPACE."
        )
    if "already completed" in error.message or "closing workflow" in error.message:  # an update in that very moment
        return build_closed_error(id)
    return RunNotFoundError(f"there is no run {id!r}", hint=LIST_HINT)


def build_unreachable_error(temporal: TemporalClient, why: str) -> ServerUnreachableError:
    """The server does not answer."""
    return ServerUnreachableError(
        f"the Temporal server at {temporal.service_client.config.target_host} does not answer: {why}",
        hint="Runs are kept there and go on when the server is back.",
    )


def build_closed_error(id: str) -> RunClosedError:
    """The run is over."""
    return RunClosedError(
        f"run {id!r} has ended", hint="Send it a message and it goes on from where it ended; or start another one."
    )


def build_run_error(id: str, error: WorkflowFailureError) -> PerdureError:
    """The error that the run ended with."""
    cause = error.cause
    if isinstance(cause, temporal.ApplicationError):
        return build_error(cause.type, cause.message)
    if isinstance(cause, temporal.CancelledError):
        return RunCancelledError(f"run {id!r} was cancelled")
    if isinstance(cause, temporal.TerminatedError):
        return RunCancelledError(f"run {id!r} was terminated: {cause.message}")
    if isinstance(cause, temporal.TimeoutError):
        return RunError(f"run {id!r} ran into its workflow timeout")
    return RunError(f"run {id!r} failed: {cause}")


# ---
# How perdure's clients start workflows.


TASK_TIMEOUT = timedelta(seconds=5)
"""Of one workflow task: how long a run stands still whose worker was killed in the middle of one. Temporal's own
default is 10 s; a task here takes milliseconds, and a replay of the longest history about two seconds."""
MEMO_AGENT = "agent"
"""Key of the memo that names the agent, so that a list of runs needs no store."""


async def start_run_workflow(
    temporal: TemporalClient,
    id: str,
    start: dict[str, Any],
    *,
    task_queue: str,
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.REJECT_DUPLICATE,
    memo: dict[str, Any] | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start a run with the input ``start``; ``memo`` besides the agent's name.

    Raises the SDK's ``WorkflowAlreadyStartedError``, which means another thing to each caller; else a ``PerdureError``.
    """

    async def started(attributes: TypedSearchAttributes) -> WorkflowHandle[Any, Any]:
        return await temporal.start_workflow(
            WORKFLOW_TYPE,
            start,
            id=id,
            task_queue=task_queue,
            task_timeout=TASK_TIMEOUT,
            id_reuse_policy=reuse,
            memo={MEMO_AGENT: start["agent"], **(memo or {})},
            search_attributes=attributes,
        )

    try:
        try:
            return await started(await build_start_attributes(temporal, start["agent"]))
        except RPCError as error:
            if not is_missing_attribute(error):
                raise
            forget_search_attributes(temporal)  # it was there a minute ago
            return await started(TypedSearchAttributes.empty)
    except RPCError as error:
        raise translate_rpc_error(temporal, id, error) from error


def build_schedule_action(id: str, start: dict[str, Any], *, task_queue: str) -> ScheduleActionStartWorkflow:
    """The same for a schedule: what it does each time. ``id`` is the beginning of its runs' ids.

    Without search attributes, which the run gives itself: in a namespace that has lost one no run would begin any more.
    """
    return ScheduleActionStartWorkflow(
        WORKFLOW_TYPE, start, id=id, task_queue=task_queue, task_timeout=TASK_TIMEOUT, memo={MEMO_AGENT: start["agent"]}
    )


# ---
# The few calls to a Temporal frontend that tell which server it is and set it up.


RETENTION = timedelta(days=3650)
"""How long closed runs are kept in Temporal: the dev server's own 24 hours would lose them over a weekend."""


async def read_cluster_id(address: str, *, seconds: float) -> str | None:
    """The id of the Temporal cluster that answers at ``address`` and serves its default namespace, if any."""
    try:
        async with asyncio.timeout(seconds):
            service = await _connect_service(address)
            info = await service.workflow_service.get_cluster_info(GetClusterInfoRequest())
            # The frontend answers before it can serve; a described namespace says that it can.
            await service.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    except (TimeoutError, RuntimeError, RPCError):
        return None
    return info.cluster_id or None


async def keep_closed_runs(address: str) -> bool:
    """Raise the default namespace's retention to :data:`RETENTION`, start-dev having no flag for it.

    Returns:
        Whether it was less before.

    Raises:
        ServerStartError: the server refuses.
    """
    try:
        service = (await _connect_service(address)).workflow_service
        current = await service.describe_namespace(DescribeNamespaceRequest(namespace="default"), retry=True)
        if current.config.workflow_execution_retention_ttl.seconds >= RETENTION.total_seconds():
            return False
        config = NamespaceConfig(workflow_execution_retention_ttl=_build_duration_message(RETENTION))
        await service.update_namespace(UpdateNamespaceRequest(namespace="default", config=config), retry=True)
    except (RuntimeError, RPCError) as error:
        raise ServerStartError(f"the Temporal dev server cannot be set up: {error}") from error
    return True


async def index_runs(address: str, namespace: str = "default") -> None:
    """Give ``namespace`` the search attributes by which runs are found. Without them everything works all the same, so
    it raises nothing: ``perdure doctor`` says what is missing, and ``perdure server setup`` why."""
    with suppress(RuntimeError, RuntimeSetupError):
        await register_search_attributes(await _connect_service(address), namespace)


async def ensure_namespace(address: str, namespace: str) -> None:
    """Register ``namespace`` with the embedded server unless it has it.

    Raises:
        RuntimeSetupError: the server refuses; the name is not a valid one, say.
    """
    request = RegisterNamespaceRequest(
        namespace=namespace, workflow_execution_retention_period=_build_duration_message(RETENTION)
    )
    try:
        await (await _connect_service(address)).workflow_service.register_namespace(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise RuntimeSetupError(f"the namespace {namespace!r} cannot be made: {error.message}") from error
    await index_runs(address, namespace)


def _build_duration_message(delta: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(delta)
    return duration


async def _connect_service(address: str) -> ServiceClient:
    return await ServiceClient.connect(ConnectConfig(target_host=address))


# ---
# Workflow tasks of an open run, as its history has them: the one that fails again and again, and news without one.


_HISTORY_PAGE = 50
"""Events that are read at once, from a history's end."""
_MAX_HISTORY_EVENTS = 500
"""Events among which the task before a failing one is looked for."""
_MAX_ERROR_CHARS = 300
_ORDINARY_CAUSES = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Causes for which a task is given out again in the ordinary course of things."""
_REPLAY_EVENT = re.compile(r"HistoryEvent\(id: (\d+)")
"""How the SDK names the event of a history that it cannot replay."""


@dataclass(frozen=True, slots=True)
class FailingTask:
    """A workflow task that workers fail again and again: the run stands still."""

    run_id: str
    attempt: int
    error: str
    reset_to: int | None
    """The task to which a reset of the run helps: a WorkflowTaskCompleted. None where none was found."""

    def __str__(self) -> str:
        return f"its workflow task fails, attempt {self.attempt}: {self.error}"

    @property
    def way_out(self) -> str:
        """What an operator does."""
        reset = f"temporal workflow reset --workflow-id {self.run_id} --event-id {self.reset_to} --reason stuck"
        named = f", or reset it to before the task that fails: {reset}" if self.reset_to else ""
        return f"Run workers of the version that began it{named}"


async def find_failing_task(temporal: TemporalClient, seen: WorkflowExecutionDescription) -> FailingTask | None:
    """The workflow task that fails again and again; None where none does, as far as the last events say."""
    task = seen.raw_description.pending_workflow_task
    if not seen.raw_description.HasField("pending_workflow_task") or task.attempt < 2:
        return None
    failed = None
    async for event in _read_last_events(temporal, seen):
        if event.HasField("workflow_task_completed_event_attributes"):
            if failed is None:
                return None  # it was lost with its worker, and did not fail
            named = _REPLAY_EVENT.search(failed)
            if named is None or event.event_id < int(named[1]):
                return FailingTask(seen.id, task.attempt, failed[:_MAX_ERROR_CHARS], event.event_id)
        elif failed is None and event.HasField("workflow_task_failed_event_attributes"):
            attributes = event.workflow_task_failed_event_attributes
            if attributes.cause in _ORDINARY_CAUSES:
                return None
            failed = await _decode_failure_message(temporal, attributes.failure)
    return None if failed is None else FailingTask(seen.id, task.attempt, failed[:_MAX_ERROR_CHARS], None)


async def has_unhandled_events(temporal: TemporalClient, seen: WorkflowExecutionDescription) -> bool:
    """Whether something has come, or may have come, for an open run that no workflow task has given to it yet.

    A task that is pending need not mean that: it may be there only because a client asked for the run's status.
    """
    if not seen.raw_description.HasField("pending_workflow_task"):
        return False
    if seen.raw_description.pending_workflow_task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED:
        return True  # what comes meanwhile is in no history until the task ends, or its worker is found to be lost
    async for event in _read_last_events(temporal, seen):
        if event.event_id > seen.history_length:
            return True  # the run has got on since it was described
        if event.HasField("workflow_task_completed_event_attributes"):
            return False
        name = event.WhichOneof("attributes") or ""
        by_workflow = hasattr(getattr(event, name, None), "workflow_task_completed_event_id")
        if not by_workflow and not name.startswith("workflow_task_"):
            return True
    return True


async def _read_last_events(
    temporal: TemporalClient, seen: WorkflowExecutionDescription
) -> AsyncIterator[HistoryEvent]:
    """The latest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=temporal.namespace,
        execution=ExecutionMessage(workflow_id=seen.id, run_id=seen.run_id or ""),
        maximum_page_size=_HISTORY_PAGE,
    )
    for _ in range(_MAX_HISTORY_EVENTS // _HISTORY_PAGE):
        answer = await temporal.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        for event in answer.history.events:
            yield event
        if not answer.next_page_token:
            return
        request.next_page_token = answer.next_page_token


async def _decode_failure_message(temporal: TemporalClient, failure: Failure) -> str:
    try:
        error = await temporal.data_converter.decode_failure(failure)
    except Exception:  # a codec that is away
        return " ".join(failure.message.split())
    return " ".join(str(getattr(error, "message", error)).split())
