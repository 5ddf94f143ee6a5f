"""What was decided or answered in a run that has ended: by its history first, for which no worker has to load it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError
from temporalio.service import RPCError

from .errors import PerdureError
from .runs import closed_status
from .types.approval import DecidedApproval
from .types.interface import Status

if TYPE_CHECKING:
    from .run import Run


async def past_of(run: Run, call_id: str) -> DecidedApproval | None:
    """The last that was decided on the call, or answered; None where nobody can say."""
    try:
        seen = await run.describe()
    except PerdureError:
        return None
    if (past := await _decision_of(run, seen.run_id, call_id)) is not None or closed_status(seen) is None:
        return past
    # Nobody sent it to the last execution: it ran out, or continued as new.
    raw = await run.query_ended(str(seen.run_id), "status")
    status = Status.model_validate(raw) if raw else None
    return next((one for one in reversed(status.decided if status else ()) if one.call_id == call_id), None)


async def _decision_of(run: Run, run_id: str | None, call_id: str) -> DecidedApproval | None:
    """The last decision on the call that somebody sent to that execution; None where there is none to see."""
    client, found = run.client.temporal, None
    try:
        async for event in client.get_workflow_handle(run.id, run_id=run_id).fetch_history_events():
            if not event.HasField("workflow_execution_update_completed_event_attributes"):
                continue
            outcome = event.workflow_execution_update_completed_event_attributes.outcome
            for raw in await client.data_converter.decode(outcome.success.payloads):
                if isinstance(raw, dict) and raw.get("call_id") == call_id:
                    found = DecidedApproval.model_validate(raw)
    except (RPCError, ValidationError):
        return None
    return found
