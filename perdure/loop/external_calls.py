"""External calls (remote tools and callbacks): the hooks before and after them, their arguments and their results."""

from __future__ import annotations

import json
from typing import Any

from ..types.messages import clean_text
from ..types.plain_json import measure_json
from ..types.state import RunState, ToolCallState
from ..types.tool_calls import (
    AfterExternalCall,
    BeforeExternalCall,
    CallbackCall,
    Clearance,
    ExternalCallHooks,
    RemoteCall,
)
from ..types.wire import OUTPUT_BYTES, REMOTE_BYTES, NewResult


def needs_before_activity(pending: ToolCallState) -> bool:
    """Whether an activity is to check the call before it is handed over.

    It is if the call has hooks before it, or has waited (for approval, or held at a limit): its rules may have changed
    since.
    """
    around = _get_hooks_around(pending)
    if around is None or pending.cleared or pending.returned or pending.result:
        return False
    return around.before or pending.call.approval is not None or pending.released


def needs_after_activity(pending: ToolCallState) -> bool:
    """Whether hooks are to see the result that has come back, before it becomes the call's result."""
    returned = pending.returned
    return returned is not None and pending.result is None and _has_hooks_after(pending, returned)


def can_begin_external_call(state: RunState, pending: ToolCallState) -> bool:
    """Whether the call may be handed over after the activity before it: the run may have been stopped meanwhile."""
    turn = state.turn
    stops = state.cancelled or state.interrupt or state.pause or turn is None or turn.failure
    return pending.result is None and not stops


def build_before_input(pending: ToolCallState) -> BeforeExternalCall:
    """Build the input of the activity before the call."""
    how = pending.call.disposition
    return (
        BeforeExternalCall(client=True, form=how.form, expires=how.expires)
        if isinstance(how, CallbackCall)
        else BeforeExternalCall()
    )


def build_after_input(pending: ToolCallState) -> AfterExternalCall:
    """Build the input of the activity after the call: its result, and the arguments as hooks changed them."""
    returned = pending.returned
    assert returned is not None, "it has come back"
    said = returned.model_dump(include={"text", "is_error", "answered_by"})
    changed = pending.cleared.arguments if pending.cleared is not None else None
    return AfterExternalCall(**said, arguments=changed, blob=returned.blob, error_type=pending.error_type or None)


def get_final_arguments(pending: ToolCallState) -> dict[str, Any] | None:
    """Return the arguments that the call is made with; those of an external call as the hooks left them."""
    changed = pending.cleared.arguments if pending.cleared is not None else None
    return get_approved_arguments(pending) if changed is None else changed


def get_approved_arguments(pending: ToolCallState) -> dict[str, Any] | None:
    """Return the arguments as the approver changed them, else those of the model."""
    changed = pending.decided.arguments if pending.decided else None
    return pending.call.arguments if changed is None else changed


def set_clearance(state: RunState, pending: ToolCallState, cleared: Clearance) -> None:
    """Set the clearance of the call, with the arguments as hooks left them; an error result if these are too long."""
    others = [one.cleared.arguments for one in state.calls if one.cleared and one.cleared.arguments]
    if cleared.arguments and sum(map(measure_json, others)) + measure_json(cleared.arguments) > OUTPUT_BYTES:
        text = f"not run: hooks have made the arguments of {pending.call.name} longer than fit beside the other calls'"
        pending.result = NewResult(call_id=pending.call.id, name=pending.call.name, text=text, is_error=True)
    else:
        pending.cleared = cleared


def set_external_result(pending: ToolCallState, result: NewResult, error_type: str = "") -> None:
    """Set the result of the call; if hooks are to see it first, keep it in ``pending.returned``."""
    if _has_hooks_after(pending, result):
        pending.returned, pending.error_type = result, error_type[:200]
    else:
        pending.result = result


def measure_hook_payload(pending: ToolCallState) -> int:
    """Measure what hooks changed or are to see, which the call's activities are given: bytes of JSON."""
    changed = pending.cleared.arguments if pending.cleared is not None else None
    returned = pending.returned.text if pending.returned is not None else None
    return sum(measure_json(one) for one in (changed, returned) if one is not None)


def describe_withheld_result(pending: ToolCallState) -> str:
    """Build the note, for an error text, that the call ran but its result is withheld since hooks have not seen it;
    empty if there is no such result."""
    ran = "failed" if pending.returned is not None and pending.returned.is_error else "was run"
    return f"\n({pending.call.name} {ran}, and its result cannot be shown)" if pending.returned is not None else ""


def _get_hooks_around(pending: ToolCallState) -> ExternalCallHooks | None:
    how = pending.call.disposition
    return how.around if isinstance(how, RemoteCall | CallbackCall) else None


def _has_hooks_after(pending: ToolCallState, result: NewResult) -> bool:
    around = pending.cleared.around if pending.cleared is not None else _get_hooks_around(pending)
    return around is not None and (around.after or (around.errors and result.is_error))


# ---
# Results of remote tools: they come as plain JSON, and are carried inline, not through the store.


REPLY_RESULTS_BYTES = 1024 * 1024
"""Bytes of JSON of all inline results of one reply: the next model call is given them at once."""


def build_remote_result(state: RunState, pending: ToolCallState, value: Any) -> NewResult:
    """Build the call's result from the value that a remote tool returned; an error result if it is not plain JSON, or
    too long."""
    name = pending.call.name
    try:
        text = clean_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return build_remote_failure(pending, f"ResultError: {name} ran, but its result is no plain JSON")
    if (found := measure_json(text)) > REMOTE_BYTES:
        return build_remote_failure(
            pending,
            f"ResultError: {name} ran, but its result has {found:,} bytes as JSON; it may have {REMOTE_BYTES:,}",
        )
    if not can_fit_result(state, text):
        return build_remote_failure(
            pending, f"ResultError: {name} ran, but with its result those of this reply are too long: ask for less"
        )
    return NewResult(call_id=pending.call.id, name=name, text=text)


def can_fit_result(state: RunState, text: str | None) -> bool:
    """Whether ``text`` fits inline beside the other results of its reply, as far as these are in."""
    there = [call.returned if call.result is None else call.result for call in state.calls]
    others = sum(measure_json(result.text) for result in there if isinstance(result, NewResult))
    return others + measure_json(text) <= REPLY_RESULTS_BYTES


def build_remote_failure(pending: ToolCallState, text: str) -> NewResult:
    """Build the error result of a remote call."""
    shown = clean_text(text[: REMOTE_BYTES // 8])
    return NewResult(call_id=pending.call.id, name=pending.call.name, text=shown, is_error=True)
