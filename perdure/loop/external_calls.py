"""External calls (remote tools and callbacks): the hooks before and after them, their arguments and their results."""

from __future__ import annotations

from typing import Any

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
from ..types.wire import OUTPUT_BYTES, NewResult
from .results import build_error_result


def needs_before_activity(pending: ToolCallState) -> bool:
    """Whether an activity is to check the call before it is handed over.

    It is if the call has hooks before it, or has waited (for approval, or held at a limit): its rules may have changed
    since.
    """
    hooks = _get_hooks_around(pending)
    if hooks is None or pending.clearance or pending.external_result or pending.result:
        return False
    return hooks.before or pending.call.approval is not None or pending.released


def needs_after_activity(pending: ToolCallState) -> bool:
    """Whether hooks are to see the result that has come back, before it becomes the call's result."""
    returned = pending.external_result
    return returned is not None and pending.result is None and _has_hooks_after(pending, returned)


def can_begin_external_call(state: RunState, pending: ToolCallState) -> bool:
    """Whether the call may be handed over after the activity before it: the run may have been stopped meanwhile."""
    turn = state.turn
    is_stopping = state.cancelled or state.interrupt or state.pause or turn is None or turn.failure
    return pending.result is None and not is_stopping and not state.is_pause_requested


def build_before_input(pending: ToolCallState) -> BeforeExternalCall:
    """Build the input of the activity before the call."""
    call = pending.call.disposition
    if not isinstance(call, CallbackCall):
        return BeforeExternalCall()
    return BeforeExternalCall(client=True, declared=call.declared, form=call.form, expires=call.expires)


def build_after_input(pending: ToolCallState) -> AfterExternalCall:
    """Build the input of the activity after the call: its result, and the arguments as hooks changed them."""
    returned = pending.external_result
    assert returned is not None, "it has come back"
    return AfterExternalCall(
        **returned.model_dump(include={"text", "is_error", "answered_by"}),
        arguments=_get_changed_arguments(pending),
        blob=returned.blob,
        error_type=pending.error_type or None,
    )


def _get_changed_arguments(pending: ToolCallState) -> dict[str, Any] | None:
    """Return the arguments as the hooks before the call changed them; None if they did not."""
    return pending.clearance.arguments if pending.clearance is not None else None


def get_final_arguments(pending: ToolCallState) -> dict[str, Any] | None:
    """Return the arguments that the call is made with; those of an external call as the hooks left them."""
    changed = _get_changed_arguments(pending)
    return get_approved_arguments(pending) if changed is None else changed


def get_approved_arguments(pending: ToolCallState) -> dict[str, Any] | None:
    """Return the arguments as the approver changed them, else those of the model."""
    changed = pending.approval.arguments if pending.approval else None
    return pending.call.arguments if changed is None else changed


def set_clearance(state: RunState, pending: ToolCallState, cleared: Clearance) -> None:
    """Set the clearance of the call, with the arguments as hooks left them; an error result if these are too long."""
    others = sum(measure_json(arguments) for call in state.calls if (arguments := _get_changed_arguments(call)))
    if cleared.arguments and others + measure_json(cleared.arguments) > OUTPUT_BYTES:
        text = f"not run: hooks have made the arguments of {pending.call.name} longer than fit beside the other calls'"
        pending.result = build_error_result(pending.call, text)
    else:
        pending.clearance = cleared


def set_external_result(pending: ToolCallState, result: NewResult, error_type: str = "") -> None:
    """Set the result of the call; if hooks are to see it first, keep it in ``pending.returned``."""
    if _has_hooks_after(pending, result):
        pending.external_result, pending.error_type = result, error_type[:200]
    else:
        pending.result = result


def measure_hook_payload(pending: ToolCallState) -> int:
    """Measure what hooks changed or are to see, which the call's activities are given: bytes of JSON."""
    returned = pending.external_result.text if pending.external_result is not None else None
    return sum(measure_json(value) for value in (_get_changed_arguments(pending), returned) if value is not None)


def describe_withheld_result(pending: ToolCallState) -> str:
    """Build the note, for an error text, that the call ran but its result is withheld since hooks have not seen it;
    empty if there is no such result."""
    if pending.external_result is None:
        return ""
    outcome = "failed" if pending.external_result.is_error else "was run"
    return f"\n({pending.call.name} {outcome}, and its result cannot be shown)"


def _get_hooks_around(pending: ToolCallState) -> ExternalCallHooks | None:
    call = pending.call.disposition
    return call.around if isinstance(call, RemoteCall | CallbackCall) else None


def _has_hooks_after(pending: ToolCallState, result: NewResult) -> bool:
    hooks = pending.clearance.around if pending.clearance is not None else _get_hooks_around(pending)
    return hooks is not None and (hooks.after or (hooks.errors and result.is_error))
