"""Results of remote tools: they come as plain JSON, and travel whole."""

from __future__ import annotations

import json
from typing import Any

from ..types.messages import clean
from ..types.state import PendingCall, RunState
from ..types.wire import REMOTE_BYTES, NewResult
from .sizes import size

TOGETHER_BYTES = 1024 * 1024
"""Of all results of one reply that travel whole, as JSON: the next model call is given them at once."""


def remote_result(state: RunState, pending: PendingCall, value: Any) -> NewResult:
    """What a remote tool has returned, as the model is told of it."""
    name = pending.call.name
    try:
        text = clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return remote_failure(pending, f"ResultError: {name} ran, but its result is no plain JSON")
    if (found := size(text)) > REMOTE_BYTES:
        return remote_failure(
            pending,
            f"ResultError: {name} ran, but its result has {found:,} bytes as JSON; it may have {REMOTE_BYTES:,}",
        )
    if not fits_beside(state, text):
        return remote_failure(
            pending, f"ResultError: {name} ran, but with its result those of this reply are too long: ask for less"
        )
    return NewResult(call_id=pending.call.id, name=name, text=text)


def fits_beside(state: RunState, text: str | None) -> bool:
    """Whether ``text`` may travel whole with the other results of its reply, as far as these are there."""
    there = [call.returned if call.result is None else call.result for call in state.calls]
    others = sum(size(result.text) for result in there if isinstance(result, NewResult))
    return others + size(text) <= TOGETHER_BYTES


def remote_failure(pending: PendingCall, text: str) -> NewResult:
    """What it failed with."""
    shown = clean(text[: REMOTE_BYTES // 8])
    return NewResult(call_id=pending.call.id, name=pending.call.name, text=shown, is_error=True)
