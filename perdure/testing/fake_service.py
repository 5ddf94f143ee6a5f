"""``InProcessService``: a ``ServiceClient`` that answers perdure's requests to a Temporal server without a network.

``temporalio.client.Client`` on top of it is the real one, and so is all of perdure's client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

from google.protobuf.any_pb2 import Any as AnyProto
from temporalio.api.common.v1 import GrpcStatus, Memo, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums import v1 as enums
from temporalio.api.errordetails.v1 import MultiOperationExecutionFailure, WorkflowExecutionAlreadyStartedFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest, ListSearchAttributesResponse
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.update.v1 import Outcome, UpdateRef
from temporalio.api.workflow.v1 import WorkflowExecutionConfig, WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as api
from temporalio.converter import DataConverter, decode_typed_search_attributes, encode_search_attributes
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from ..temporal.attributes import build_search_attributes, parse_attribute_type
from ..types.interface import SEARCH_ATTRIBUTES, WORKFLOW_TYPE
from ..worker import Engine
from .execution import Execution, ExecutionStart, encode_memo

# ---
# An execution in the messages of Temporal's API.


_CONVERTER = DataConverter.default
_PROTO_STATUSES = {
    None: enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    "completed": enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED,
    "failed": enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    "cancelled": enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
    "terminated": enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
}
_TAKEN_HISTORY_LENGTH = 10
"""Length of the history of a run that a worker has taken."""


def decode_arguments(arguments: Payloads) -> list[Any]:
    """Decode the arguments of a client's request."""
    return _CONVERTER.payload_converter.from_payloads(arguments.payloads)


def encode_payloads(*values: Any) -> Payloads:
    """Encode values for a client."""
    return Payloads(payloads=_CONVERTER.payload_converter.to_payloads(values))


def encode_failure(error: BaseException) -> Failure:
    """Encode an error as a failure message."""
    failure = Failure()
    _CONVERTER.failure_converter.to_failure(error, _CONVERTER.payload_converter, failure)
    return failure


def build_execution_ref(execution: Execution) -> WorkflowExecution:
    """Build the reference of an execution by its ids."""
    return WorkflowExecution(workflow_id=execution.workflow_id, run_id=execution.run_id)


def _build_execution_memo(execution: Execution) -> Memo:
    """Build its memo: that of its start, with its changes."""
    memo = Memo()
    memo.CopyFrom(execution.started.memo or Memo())
    for key in execution.memo:
        memo.fields.pop(key, None)
    memo.MergeFrom(encode_memo({key: value for key, value in execution.memo.items() if value is not None}))
    return memo


def build_execution_info(execution: Execution) -> WorkflowExecutionInfo:
    """Build its info for lists and descriptions."""
    info = WorkflowExecutionInfo(
        execution=build_execution_ref(execution),
        type=WorkflowType(name=WORKFLOW_TYPE),
        status=_PROTO_STATUSES[execution.ended],
        history_length=_TAKEN_HISTORY_LENGTH,
        memo=_build_execution_memo(execution),
        task_queue=execution.started.task_queue,
    )
    encode_search_attributes(build_search_attributes(execution.attributes), info.search_attributes)
    if execution.started.parent is not None:
        info.parent_execution.CopyFrom(build_execution_ref(execution.started.parent))
    info.start_time.FromDatetime(execution.started.at)
    if execution.ended_at is not None:
        info.close_time.FromDatetime(execution.ended_at)
    return info


def build_step_events(execution: Execution) -> list[HistoryEvent]:
    """Build the events of the engine's activities."""
    events = []
    for number, step in enumerate(execution.steps):
        scheduled = HistoryEvent(event_id=2 + 2 * number)
        scheduled.event_type = enums.EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        scheduled.event_time.FromDatetime(step.at)
        scheduled.activity_task_scheduled_event_attributes.activity_type.name = step.activity
        scheduled.activity_task_scheduled_event_attributes.input.CopyFrom(encode_payloads(step.input))
        events.append(scheduled)
        if step.output is not None:
            completed = HistoryEvent(event_id=3 + 2 * number)
            completed.event_type = enums.EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
            completed.activity_task_completed_event_attributes.scheduled_event_id = scheduled.event_id
            completed.activity_task_completed_event_attributes.result.CopyFrom(encode_payloads(step.output))
            events.append(completed)
    return events


def build_close_event(execution: Execution) -> HistoryEvent:
    """Build the last event of a closed execution."""
    event = HistoryEvent(event_id=_TAKEN_HISTORY_LENGTH)
    match execution.ended:
        case "completed":
            event.event_type = enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
            event.workflow_execution_completed_event_attributes.result.CopyFrom(encode_payloads(execution.result))
        case "failed":
            assert execution.failure is not None, "a failed execution has a failure"
            event.event_type = enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED
            event.workflow_execution_failed_event_attributes.failure.CopyFrom(encode_failure(execution.failure))
        case "terminated":
            event.event_type = enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED
            event.workflow_execution_terminated_event_attributes.reason = "terminated"
        case _:
            event.event_type = enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED
            event.workflow_execution_canceled_event_attributes.SetInParent()
    return event


def build_rpc_error(status: RPCStatusCode, message: str, details: Any = None) -> RPCError:
    """Build the error of a refused request; ``details`` is a protobuf message."""
    raw = GrpcStatus(code=status, message=message)
    if details is not None:
        packed = AnyProto()
        packed.Pack(details)
        raw.details.append(packed)
    return RPCError(message, status, raw.SerializeToString())


T = TypeVar("T")

_UPDATE_COMPLETED_STAGE = (
    enums.UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
)


class HomeLoop:
    """The event loop of an engine; coroutines of other loops and threads are run on it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await ``make()`` on the engine's loop and return its result."""
        if asyncio.get_running_loop() is self.loop:
            return await make()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self.loop))


class InProcessService(ServiceClient):
    """Runs executions of ``AgentWorkflow`` by ``engine``, which is open. Create it on the event loop of the
    executions."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(ConnectConfig(target_host="in-process"))
        self._engine = engine
        self._home = HomeLoop()
        self._executions: dict[str, list[Execution]] = {}

    async def close(self) -> None:
        """Stop the open executions."""
        for execution in self._list_executions():
            await execution.stop()

    @property
    def worker_service_client(self) -> NoReturn:
        """Raises ``RuntimeError``: workers cannot connect."""
        raise RuntimeError("a scripted engine runs without Temporal: no worker can connect to it")

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """See base class."""

    def update_api_key(self, api_key: str | None) -> None:
        """See base class."""

    async def _rpc_call(self, rpc: str, req: Any, resp_type: type[Any], **_: Any) -> Any:
        answer: Callable[[Any], Coroutine[Any, Any, Any]] | None = getattr(self, f"_on_{rpc}", None)
        if answer is None:
            message = f'{rpc} needs a real server: scripted(…, engine="temporal")'
            raise build_rpc_error(RPCStatusCode.UNIMPLEMENTED, message)
        return await self._home.run(lambda: answer(req))

    # --- starts and messages

    async def _on_start_workflow_execution(self, req: api.StartWorkflowExecutionRequest) -> Any:
        latest = self.find_latest(req.workflow_id)
        if latest is not None and not _can_start_execution(req, latest):
            use_existing = enums.WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING
            if latest.ended is None and req.workflow_id_conflict_policy == use_existing:
                return api.StartWorkflowExecutionResponse(run_id=latest.run_id, started=False)
            details = WorkflowExecutionAlreadyStartedFailure(run_id=latest.run_id)
            raise build_rpc_error(RPCStatusCode.ALREADY_EXISTS, "Workflow execution already started", details)
        if (type_ := req.workflow_type.name) != WORKFLOW_TYPE:
            raise build_rpc_error(RPCStatusCode.INVALID_ARGUMENT, f"only {WORKFLOW_TYPE} runs in process, not {type_}")
        attributes = {pair.key.name: pair.value for pair in decode_typed_search_attributes(req.search_attributes)}
        arguments = decode_arguments(req.input)
        execution = self.start_child(
            ExecutionStart(req.workflow_id, arguments, req.memo, req.task_queue.name, attributes=attributes)
        )
        return api.StartWorkflowExecutionResponse(run_id=execution.run_id, started=True)

    def start_child(self, started: ExecutionStart) -> Execution:
        """Start a child. Raises ``WorkflowAlreadyStartedError``, which only the start of a child can raise."""
        latest = self.find_latest(started.workflow_id)
        if latest is not None and latest.ended is None:
            raise WorkflowAlreadyStartedError(started.workflow_id, WORKFLOW_TYPE, run_id=latest.run_id)
        execution = Execution(self._engine, started, self)
        self._executions.setdefault(started.workflow_id, []).append(execution)
        return execution

    async def _on_execute_multi_operation(self, req: api.ExecuteMultiOperationRequest) -> Any:
        """Handle update-with-start, the only supported multi-operation."""
        try:
            started = await self._on_start_workflow_execution(req.operations[0].start_workflow)
            updated = await self._on_update_workflow_execution(req.operations[1].update_workflow)
        except RPCError as error:
            status = MultiOperationExecutionFailure.OperationStatus(
                code=error.grpc_status.code, message=error.message, details=error.grpc_status.details
            )
            details = MultiOperationExecutionFailure(statuses=[status])
            raise build_rpc_error(error.status, error.message, details) from None
        response = api.ExecuteMultiOperationResponse.Response
        return api.ExecuteMultiOperationResponse(
            responses=[response(start_workflow=started), response(update_workflow=updated)]
        )

    async def _on_signal_workflow_execution(self, req: api.SignalWorkflowExecutionRequest) -> Any:
        self._find_open_execution(req.workflow_execution).signal(req.signal_name, decode_arguments(req.input))
        return api.SignalWorkflowExecutionResponse()

    async def _on_update_workflow_execution(self, req: api.UpdateWorkflowExecutionRequest) -> Any:
        execution = self._find_open_execution(req.workflow_execution)
        update_id, update = req.request.meta.update_id, req.request.input
        try:
            value = await execution.update(update_id, update.name, decode_arguments(update.args))
        except FailureError as error:
            outcome = Outcome(failure=encode_failure(error))
        else:
            outcome = Outcome(success=encode_payloads(value))
        ref = UpdateRef(workflow_execution=build_execution_ref(execution), update_id=update_id)
        return api.UpdateWorkflowExecutionResponse(update_ref=ref, outcome=outcome, stage=_UPDATE_COMPLETED_STAGE)

    async def _on_query_workflow(self, req: api.QueryWorkflowRequest) -> Any:
        execution = self._find_execution(req.execution)
        try:
            value = execution.query(req.query.query_type, decode_arguments(req.query.query_args))
        except Exception as error:
            raise build_rpc_error(RPCStatusCode.INVALID_ARGUMENT, str(error)) from None
        return api.QueryWorkflowResponse(query_result=encode_payloads(value))

    async def _on_request_cancel_workflow_execution(self, req: api.RequestCancelWorkflowExecutionRequest) -> Any:
        execution = self._find_execution(req.workflow_execution)
        if execution.ended is None:
            execution.cancel()
        return api.RequestCancelWorkflowExecutionResponse()

    async def _on_terminate_workflow_execution(self, req: api.TerminateWorkflowExecutionRequest) -> Any:
        await self._find_open_execution(req.workflow_execution).stop("terminated")
        return api.TerminateWorkflowExecutionResponse()

    # --- reads

    async def _on_describe_workflow_execution(self, req: api.DescribeWorkflowExecutionRequest) -> Any:
        execution = self._find_execution(req.execution)
        config = WorkflowExecutionConfig()
        config.task_queue.name = execution.started.task_queue
        return api.DescribeWorkflowExecutionResponse(
            execution_config=config, workflow_execution_info=build_execution_info(execution)
        )

    async def _on_get_workflow_execution_history(self, req: api.GetWorkflowExecutionHistoryRequest) -> Any:
        execution = self._find_execution(req.execution)
        if req.wait_new_event:
            await execution.wait_closed()
        events = [build_close_event(execution)] if execution.ended else []
        if req.history_event_filter_type != enums.HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT:
            start = HistoryEvent(event_id=1, event_type=enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)
            attributes = start.workflow_execution_started_event_attributes
            attributes.input.CopyFrom(encode_payloads(*execution.started.input))
            attributes.first_execution_run_id = execution.first_execution_run_id
            if execution.started.parent is not None:
                attributes.parent_workflow_execution.CopyFrom(build_execution_ref(execution.started.parent))
            events = [start, *build_step_events(execution), *events]
        return api.GetWorkflowExecutionHistoryResponse(history=History(events=events))

    async def _on_get_workflow_execution_history_reverse(
        self, req: api.GetWorkflowExecutionHistoryReverseRequest
    ) -> Any:
        forward = api.GetWorkflowExecutionHistoryRequest(namespace=req.namespace, execution=req.execution)
        events = (await self._on_get_workflow_execution_history(forward)).history.events
        return api.GetWorkflowExecutionHistoryReverseResponse(history=History(events=reversed(events)))

    async def _on_list_workflow_executions(self, req: api.ListWorkflowExecutionsRequest) -> Any:
        """Return all executions, the newest first; the query is ignored."""
        newest = sorted(self._list_executions(), key=lambda execution: execution.started.at, reverse=True)
        return api.ListWorkflowExecutionsResponse(executions=[build_execution_info(execution) for execution in newest])

    async def _on_count_workflow_executions(self, req: api.CountWorkflowExecutionsRequest) -> Any:
        """Count the open executions; the query is ignored."""
        count = sum(execution.ended is None for execution in self._list_executions())
        return api.CountWorkflowExecutionsResponse(count=count)

    async def _on_list_schedules(self, _: api.ListSchedulesRequest) -> Any:
        """Return none: schedules need a real server."""
        return api.ListSchedulesResponse()

    async def _on_list_search_attributes(self, _: ListSearchAttributesRequest) -> Any:
        """Return perdure's search attributes."""
        return ListSearchAttributesResponse(
            custom_attributes={name: parse_attribute_type(kind) for name, kind in SEARCH_ATTRIBUTES.items()}
        )

    async def _on_describe_task_queue(self, req: api.DescribeTaskQueueRequest) -> Any:
        poller = PollerInfo(identity="this process")
        poller.last_access_time.FromDatetime(datetime.now(UTC))
        return api.DescribeTaskQueueResponse(pollers=[poller])

    def _list_executions(self) -> list[Execution]:
        return [execution for executions in self._executions.values() for execution in executions]

    def find_latest(self, id: str) -> Execution | None:
        """Return the latest execution of that id, or None."""
        executions = self._executions.get(id)
        return executions[-1] if executions else None

    def _find_execution(self, ref: WorkflowExecution) -> Execution:
        for execution in reversed(self._executions.get(ref.workflow_id, [])):
            if ref.run_id in ("", execution.run_id):
                return execution
        raise build_rpc_error(RPCStatusCode.NOT_FOUND, f"workflow not found for ID: {ref.workflow_id}")

    def _find_open_execution(self, ref: WorkflowExecution) -> Execution:
        execution = self._find_execution(ref)
        if execution.ended is not None:
            raise build_rpc_error(RPCStatusCode.NOT_FOUND, "workflow execution already completed")
        return execution


def _can_start_execution(req: api.StartWorkflowExecutionRequest, latest: Execution) -> bool:
    match req.workflow_id_reuse_policy:
        case enums.WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE:
            return False
        case enums.WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY:
            return latest.ended not in (None, "completed")
        case _:
            return latest.ended is not None
