"""Decisions and answers that come before the run has heard that anybody is asked.

Whoever follows the events is told of a question by the activity that came upon it, with what that has recorded. The run
hears of it as the activity ends: a moment later, or after a crash some time later.
"""

from __future__ import annotations

from ..errors import NotWaitingYetError
from ..types.state import PendingCall, RunState
from ..types.wire import AsActivity
from .decide import CallModel, decide
from .elsewhere import due_before


def not_yet(state: RunState, call_id: str) -> NotWaitingYetError | None:
    """What whoever comes too early is told; None where the call will not wait, as far as the run knows."""
    pending = next((one for one in state.calls if one.call.id == call_id), None)
    if pending is None:
        why = "the model is asked, and may make such a call" if isinstance(decide(state), CallModel) else None
    elif due_before(pending):
        why = "its worker looks at it first"
    else:
        why = "its tool runs, and may ask something" if _runs(pending) else None
    if why is None:
        return None
    return NotWaitingYetError(
        f"call {call_id!r:.120} does not wait for anybody yet: {why}",
        hint="Send it again as soon as `status` shows the call among `approvals`.",
    )


def _runs(pending: PendingCall) -> bool:
    return isinstance(pending.call.disposition, AsActivity) and pending.result is None and not pending.held
