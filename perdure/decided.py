"""What was decided in a run that has ended, by its history: for that no worker has to load the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError
from temporalio.service import RPCError

from .types.approval import DecidedApproval

if TYPE_CHECKING:
    from .run import Run


async def decision_of(run: Run, call_id: str) -> DecidedApproval | None:
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
