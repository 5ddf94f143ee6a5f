"""Which calls wait for a person, and for how long."""

from __future__ import annotations

from ..types.state import PendingCall, RunState


def asks(pending: PendingCall) -> bool:
    """Whether the call waits for a person."""
    return pending.call.approval is not None and pending.decided is None and pending.result is None


def deadline(state: RunState) -> float | None:
    """When the next wait ends by itself: seconds since 1970."""
    ends = [one.waiting.until for one in state.calls if asks(one) and one.waiting and one.waiting.until is not None]
    return min(ends, default=None)
