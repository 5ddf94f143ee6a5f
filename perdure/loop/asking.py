"""Which calls wait for a person, and for how long."""

from __future__ import annotations

from ..types.state import PendingCall, RunState


def asks(pending: PendingCall) -> bool:
    """Whether the call waits for a person."""
    return pending.call.approval is not None and pending.decided is None and pending.result is None


def deadline(state: RunState) -> float | None:
    """When the next wait ends by itself, or the next reminder is due: seconds since 1970."""
    waits = [one.waiting for one in state.calls if asks(one) and one.waiting]
    return min((at for one in waits for at in (one.until, one.next) if at is not None), default=None)
