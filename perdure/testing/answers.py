"""What there is to say of an execution, in the messages of Temporal's API."""

from __future__ import annotations

from typing import Any

from google.protobuf.any_pb2 import Any as AnyProto
from temporalio.api.common.v1 import GrpcStatus, Memo, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.converter import DataConverter, encode_search_attributes
from temporalio.service import RPCError, RPCStatusCode

from ..search_attributes import typed
from ..types.interface import WORKFLOW
from .child import encoded
from .execution import Execution

_CONVERTER = DataConverter.default
_STATUS = {
    None: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    "completed": WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED,
    "failed": WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    "cancelled": WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
    "terminated": WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
}
_TAKEN = 10
"""Events of a run that a worker has taken."""


def arguments(given: Payloads) -> list[Any]:
    """What a client has sent."""
    return _CONVERTER.payload_converter.from_payloads(given.payloads)


def payloads(*values: Any) -> Payloads:
    """Values as a client is sent them."""
    return Payloads(payloads=_CONVERTER.payload_converter.to_payloads(values))


def failure(error: BaseException) -> Failure:
    """An error as it travels."""
    said = Failure()
    _CONVERTER.failure_converter.to_failure(error, _CONVERTER.payload_converter, said)
    return said


def named(execution: Execution) -> WorkflowExecution:
    """By its ids."""
    return WorkflowExecution(workflow_id=execution.workflow_id, run_id=execution.run_id)


def _memo(execution: Execution) -> Memo:
    """As it was started with, and has changed it."""
    memo = Memo()
    memo.CopyFrom(execution.started.memo or Memo())
    for key in execution.memo:
        memo.fields.pop(key, None)
    memo.MergeFrom(encoded({key: value for key, value in execution.memo.items() if value is not None}))
    return memo


def described(execution: Execution) -> WorkflowExecutionInfo:
    """As lists and descriptions have it."""
    info = WorkflowExecutionInfo(
        execution=named(execution),
        type=WorkflowType(name=WORKFLOW),
        status=_STATUS[execution.ended],
        history_length=_TAKEN,
        memo=_memo(execution),
        task_queue=execution.started.task_queue,
    )
    encode_search_attributes(typed(execution.attributes), info.search_attributes)
    info.start_time.FromDatetime(execution.started.at)
    if execution.ended_at is not None:
        info.close_time.FromDatetime(execution.ended_at)
    return info


def closing(execution: Execution) -> HistoryEvent:
    """The last event of one that has ended."""
    event = HistoryEvent(event_id=_TAKEN)
    match execution.ended:
        case "completed":
            event.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
            event.workflow_execution_completed_event_attributes.result.CopyFrom(payloads(execution.result))
        case "failed":
            assert execution.failure is not None, "a failed execution says why"
            event.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED
            event.workflow_execution_failed_event_attributes.failure.CopyFrom(failure(execution.failure))
        case "terminated":
            event.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED
            event.workflow_execution_terminated_event_attributes.reason = "terminated"
        case _:
            event.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED
            event.workflow_execution_canceled_event_attributes.SetInParent()
    return event


def rpc_error(status: RPCStatusCode, message: str, details: Any = None) -> RPCError:
    """A call that is refused; ``details`` is a protobuf message."""
    raw = GrpcStatus(code=status, message=message)
    if details is not None:
        packed = AnyProto()
        packed.Pack(details)
        raw.details.append(packed)
    return RPCError(message, status, raw.SerializeToString())
