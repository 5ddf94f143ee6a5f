"""The ``status`` query, and the search attributes and memo of a run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal

from ..types.interface import (
    AGENT_ATTRIBUTE,
    PENDING_ATTRIBUTE,
    STATUS_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    USER_ATTRIBUTE,
    WAITING_MEMO_BYTES,
    WAITING_MEMO_CALLS,
    ChildStatus,
    IndexedStatus,
    Status,
)
from ..types.plain_json import measure_json
from ..types.state import RunState, ToolCallState
from ..types.subagents import CollectCall
from ..types.tool_calls import SubagentCall
from . import decide
from .approvals import list_pending_approvals
from .children import build_background_statuses, build_child_run_id, find_background_run, list_running_branches
from .compaction import CompactConversation
from .limits import build_pause_reason, find_exceeded_limit, list_limit_uses
from .waits import is_waiting_for_approval, pending_waits, wait_kind

# ---
# Search attributes and memo: one visibility query finds every run that waits, and for what, without a query of the run.


SearchAttributeValue = str | int


def list_changed_search_attributes(
    state: RunState, step: decide.NextStep | None, shown: Mapping[str, object]
) -> dict[str, SearchAttributeValue]:
    """List the search attributes to change during ``step``; ``shown`` is what visibility has.

    A run that never waits for a person or a message gets none, which saves the event; from its first wait on they are
    kept up to date, except for whether a session is in a turn. A tenant and a user are set at once, unless the client
    that started the run has done so: lists have no other way to find them. Only attributes that the namespace is known
    to have.
    """
    pending = len(pending_waits(state))
    idle = isinstance(step, decide.Wait) and step.until != "child"
    wanted = build_label_attributes(state)
    if pending or idle or PENDING_ATTRIBUTE in shown or STATUS_ATTRIBUTE in shown:
        status: IndexedStatus = "waiting" if pending else "running"
        wanted |= {
            AGENT_ATTRIBUTE: state.agent,
            STATUS_ATTRIBUTE: "paused" if step == decide.Wait("resumed") else status,
            PENDING_ATTRIBUTE: pending,
        }
    return {
        name: value
        for name, value in wanted.items()
        if name in (state.search_attributes or ()) and shown.get(name) != value
    }


def build_label_attributes(state: RunState) -> dict[str, SearchAttributeValue]:
    """Build the search attributes of the run's tenant and user, if it has them."""
    labels = {TENANT_ATTRIBUTE: state.tenant, USER_ATTRIBUTE: state.user}
    return {name: value for name, value in labels.items() if value is not None}


def build_waiting_key(state: RunState) -> tuple[Hashable, ...] | None:
    """Build a key of the present waits, to detect a change of them: :func:`build_waiting_memo` costs more.

    None while a wait has only just begun, and the state does not have its start yet.
    """
    key: list[Hashable] = []
    for wait in pending_waits(state):
        if wait.period is None:
            return None
        key.append((wait.pending.op, wait.kind == "approval", len(wait.pending.answers), wait.period.since))
    return tuple(key)


def build_waiting_memo(state: RunState) -> list[dict[str, Any]] | None:
    """Build the memo of the present waits; None if there are none, or they do not fit: clients then query the run."""
    waits = list_pending_approvals(state)
    if not waits or len(waits) > WAITING_MEMO_CALLS:
        return None
    memo = [wait.model_dump(mode="json", exclude={"reminded"}, exclude_none=True) for wait in waits]
    return memo if measure_json(memo) <= WAITING_MEMO_BYTES else None


def build_status(state: RunState, since: str | None = None, under_way: decide.NextStep | None = None) -> Status:
    """Build the result of the ``status`` query; ``since`` (ISO 8601) is when the present step began, ``under_way`` that
    step: a run that is to pause is at work until it has ended."""
    step = decide.decide(state)
    if state.is_pause_requested and under_way is not None and not isinstance(under_way, decide.Wait):
        step = under_way
    match step:
        case decide.CallModel():
            phase, work = "running", "model"
        case CompactConversation():
            phase, work = "running", "compacting"
        case decide.RunToolCalls() | decide.Wait(until="child"):
            phase, work = "running", "tools"
        case decide.RunBranches():
            phase, work = "running", "branches"
        case decide.RecordClosing() | decide.StopChildren() | decide.ReportToParent():
            phase, work = "running", "closing"
        case decide.Wait(until="resumed"):
            phase, work = "paused", "nothing"
        case decide.Wait(until="approval") | decide.SendReminders():
            phase, work = "waiting", "approval" if any(map(is_waiting_for_approval, state.calls)) else "answer"
        case decide.Wait():
            phase, work = "idle", "message"
        case decide.EndRun(status=status):
            phase, work = status, "nothing"
    is_paused = step == decide.Wait("resumed")
    requested_pause = state.requested_pause.asked if state.requested_pause and state.is_pause_requested else None
    at_limit = is_paused and state.pause is None and requested_pause is None
    return Status.model_validate(
        {
            "agent": state.agent,
            "context_id": state.context_id,
            "mode": state.mode,
            "head": state.head,
            "store_id": state.store_id,
            "usage": state.usage,
            "cost_usd": state.cost_usd,
            "decided": state.decided,
            "standing": state.standing,
            "refused": state.refused,
            "state": phase,
            "doing": work,
            "since": state.pause.since if state.pause else since,
            "reason": _build_status_reason(state, at_limit=at_limit),
            "pause": requested_pause,
            "task_id": state.turn.task_id if state.turn else None,
            "iteration": state.turn.iteration if state.turn else 0,
            "turn": state.turns,
            "limits": list_limit_uses(state),
            "at_limit": find_exceeded_limit(state) if at_limit else None,
            "calls": list(_iter_call_statuses(state)),
            "background": build_background_statuses(state),
            "approvals": list_pending_approvals(state),
            "queued": len(state.inbox),
            "unanswered": state.turn.unanswered if state.turn else (),
        }
    )


def _iter_call_statuses(state: RunState) -> Iterator[ChildStatus]:
    for pending in state.calls:
        if pending.result is None:
            call, run_id = pending.call, _find_child_run_id(state, pending)
            call_state: Literal["running", "waiting"] = "running" if wait_kind(pending) is None else "waiting"
            yield ChildStatus(
                call_id=call.id, tool=call.name, kind=call.disposition.kind, state=call_state, context_id=run_id
            )
    for branch in list_running_branches(state):
        name, run_id = f"branch-{branch.op}", build_child_run_id(state, branch)
        yield ChildStatus(call_id=name, tool=branch.request.agent, kind="branch", context_id=run_id)


def _find_child_run_id(state: RunState, pending: ToolCallState) -> str | None:
    """Return the id of the run that the call waits for; None if it waits for none."""
    request = pending.call.disposition
    if isinstance(request, SubagentCall):
        return build_child_run_id(state, pending)
    row = find_background_run(state, request.handle) if isinstance(request, CollectCall) else None
    return None if row is None else build_child_run_id(state, row)


def _build_status_reason(state: RunState, *, at_limit: bool) -> str | None:
    if state.pause:
        return state.pause.reason
    if state.requested_pause and state.is_pause_requested:
        return str(state.requested_pause.asked)
    if at_limit and (limit := find_exceeded_limit(state)):
        return build_pause_reason(limit)
    if state.turn and state.turn.failure:
        return f"{state.turn.failure.type}: {state.turn.failure.message}"
    return None
