"""Results of tool calls: how they are built, and whether they fit inline beside those of the same reply."""

from __future__ import annotations

import json
from typing import Any

from ..types.messages import clean_text
from ..types.plain_json import measure_json
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import Call
from ..types.wire import REMOTE_BYTES, NewResult

REPLY_RESULTS_BYTES = 1024 * 1024
"""Bytes of JSON of all inline results of one reply: the next model call is given them at once."""


def build_result(call: Call, text: str | None = None, **fields: Any) -> NewResult:
    """Build the result of the call. ``fields``: the other fields of ``NewResult``."""
    return NewResult(call_id=call.id, name=call.name, text=text, **fields)


def build_error_result(call: Call, text: str, **fields: Any) -> NewResult:
    """Build the error result of the call, which the model gets."""
    return build_result(call, text, is_error=True, **fields)


def can_fit_result(state: RunState, text: str | None) -> bool:
    """Whether ``text`` fits inline beside the other results of its reply, as far as these are in."""
    results = [pending.external_result if pending.result is None else pending.result for pending in state.calls]
    others = sum(measure_json(result.text) for result in results if isinstance(result, NewResult))
    return others + measure_json(text) <= REPLY_RESULTS_BYTES


def build_remote_result(state: RunState, pending: ToolCallState, value: Any) -> NewResult:
    """Build the call's result from the plain JSON that a remote tool returned, which is carried inline, not through the
    store; an error result if it is not plain JSON, or too long."""
    try:
        text = clean_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        problem = "its result must be plain JSON"
    else:
        if (size := measure_json(text)) > REMOTE_BYTES:
            problem = f"its result has {size:,} bytes as JSON; it may have {REMOTE_BYTES:,}"
        elif not can_fit_result(state, text):
            problem = "the results of this reply are too long together; request less"
        else:
            return build_result(pending.call, text)
    return build_remote_failure(pending, f"ResultError: {pending.call.name} ran, but {problem}")


def build_remote_failure(pending: ToolCallState, text: str) -> NewResult:
    """Build the error result of a remote call."""
    return build_error_result(pending.call, clean_text(text[: REMOTE_BYTES // 8]))
