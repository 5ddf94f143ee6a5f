"""The state as the ``status`` query shows it."""

from __future__ import annotations

from collections.abc import Iterator

from ..types.background import AsCollect
from ..types.interface import ChildStatus, Status
from ..types.state import PendingCall, RunState
from ..types.wire import AsSubagent
from . import branching
from .approvals import waiting
from .asking import asks
from .branch_runs import branch_id
from .children import row_of, run_id, shown
from .compacting import Compact
from .decide import CallModel, Close, End, Remind, Report, RunBranches, RunCalls, StopChildren, Wait, decide
from .limits import exceeded, uses, waits
from .subagents import child_id


def status(state: RunState, since: str | None = None) -> Status:
    """The state as the ``status`` query gives it; ``since`` (ISO 8601) is when the present step began."""
    step = decide(state)
    match step:
        case CallModel():
            phase, work = "running", "model"
        case Compact():
            phase, work = "running", "compacting"
        case RunCalls():
            phase, work = "running", "tools"
        case RunBranches():
            phase, work = "running", "branches"
        case Close() | StopChildren() | Report():
            phase, work = "running", "closing"
        case Wait(until="resumed"):
            phase, work = "paused", "nothing"
        case Wait(until="approval") | Remind():
            phase, work = "waiting", "approval" if any(map(asks, state.calls)) else "answer"
        case Wait(until="child"):
            phase, work = "running", "tools"
        case Wait():
            phase, work = "waiting", "message"
        case End(status=ended):
            phase, work = ended, "nothing"
    at_limit = step == Wait("resumed") and state.pause is None
    return Status.model_validate(
        {
            "state": phase,
            "doing": work,
            "since": state.pause.since if state.pause else since,
            "reason": _reason(state, at_limit=at_limit),
            "agent": state.agent,
            "context_id": state.context_id,
            "task_id": state.turn.task_id if state.turn else None,
            "mode": state.mode,
            "iteration": state.turn.iteration if state.turn else 0,
            "turn": state.turns,
            "head": state.head,
            "store_id": state.store_id,
            "usage": state.usage,
            "cost_usd": state.cost_usd,
            "limits": uses(state),
            "at_limit": exceeded(state) if at_limit else None,
            "calls": [*_calls(state), *_branches(state)],
            "background": shown(state),
            "approvals": waiting(state),
            "decided": state.decided,
            "standing": state.standing,
            "queued": len(state.inbox),
            "unanswered": state.turn.unanswered if state.turn else (),
            "refused": state.refused,
        }
    )


def _calls(state: RunState) -> Iterator[ChildStatus]:
    for call in state.calls:
        if call.result is None:
            kind, child = call.call.disposition.kind, _child(state, call)
            yield ChildStatus(call_id=call.call.id, name=call.call.name, kind=kind, context_id=child)


def _child(state: RunState, pending: PendingCall) -> str | None:
    """Id of the run that the call waits for."""
    how = pending.call.disposition
    if isinstance(how, AsSubagent):
        return child_id(state, pending)
    row = row_of(state, how.handle) if isinstance(how, AsCollect) else None
    return None if row is None else run_id(state, row)


def _branches(state: RunState) -> Iterator[ChildStatus]:
    for branch in branching.waiting(state):
        name = f"branch-{branch.op}"
        yield ChildStatus(call_id=name, name=branch.asked.agent, kind="branch", context_id=branch_id(state, branch))


def _reason(state: RunState, *, at_limit: bool) -> str | None:
    if state.pause:
        return state.pause.reason
    if at_limit and (limit := exceeded(state)):
        return waits(limit)
    if state.turn and state.turn.failure:
        return f"{state.turn.failure.type}: {state.turn.failure.message}"
    return None
