"""What was decided or answered in a run that has ended: by its history first, for which no worker has to load it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from .errors import PerdureError
from .types.approval import DecidedApproval
from .types.interface import Status

if TYPE_CHECKING:
    from .run import Run


async def past_of(run: Run, call_id: str) -> DecidedApproval | None:
    """The last that was decided on the call, or answered; None where nobody can say."""
    if (past := await _decision_of(run, call_id)) is not None:
        return past
    try:  # nobody sent it to the last execution: it ran out, or continued as new
        status = Status.model_validate(await run.query("status"))
    except (RPCError, WorkflowQueryFailedError, PerdureError):
        return None
    return next((one for one in reversed(status.decided) if one.call_id == call_id), None)


async def _decision_of(run: Run, call_id: str) -> DecidedApproval | None:
    """The last decision on the call that somebody sent to the run's last execution; None where there is none to see."""
    client, found = run.client.temporal, None
    try:
        seen = await run.describe()
        async for event in client.get_workflow_handle(run.id, run_id=seen.run_id).fetch_history_events():
            if not event.HasField("workflow_execution_update_completed_event_attributes"):
                continue
            outcome = event.workflow_execution_update_completed_event_attributes.outcome
            for raw in await client.data_converter.decode(outcome.success.payloads):
                if isinstance(raw, dict) and raw.get("call_id") == call_id:
                    found = DecidedApproval.model_validate(raw)
    except (RPCError, ValidationError):
        return None
    return found
