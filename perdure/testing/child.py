"""Child runs of a run without Temporal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import Memo
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, ChildWorkflowError, TerminatedError
from temporalio.exceptions import CancelledError as TemporalCancelledError

from ..types.interface import WORKFLOW

if TYPE_CHECKING:
    from .execution import Execution


class InProcessChild(asyncio.Task[Any]):
    """What ``start_child_workflow`` gives: it ends as the child does; cancelled, it cancels the child, and waits."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(_result(execution), loop=asyncio.get_running_loop())
        self._execution = execution

    async def signal(self, signal: str) -> None:
        """See :class:`~perdure.workflows.host.Child`."""
        if self._execution.ended is not None:
            raise ApplicationError("the child has ended", type="ExternalWorkflowExecutionNotFound")
        self._execution.signal(signal, [])


def encoded(memo: dict[str, Any]) -> Memo:
    """As a client sends it."""
    convert = DataConverter.default.payload_converter.to_payloads
    return Memo(fields={name: convert([value])[0] for name, value in memo.items()})


async def _result(execution: Execution) -> Any:
    while execution.ended is None:
        try:
            await execution.closed()
        except asyncio.CancelledError:
            execution.cancel()
    if execution.ended == "completed":
        return execution.result
    cause = execution.failure or (
        TemporalCancelledError("Cancelled") if execution.ended == "cancelled" else TerminatedError("Terminated")
    )
    raise ChildWorkflowError(
        "Child Workflow execution failed",
        namespace="default",
        workflow_id=execution.workflow_id,
        run_id=execution.run_id,
        workflow_type=WORKFLOW,
        initiated_event_id=0,
        started_event_id=0,
        retry_state=None,
    ) from cause
