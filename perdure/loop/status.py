"""The state as the ``status`` query shows it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ..types.interface import AGENT, PENDING, STATUS, WAITING_BYTES, WAITING_CALLS, ChildStatus, IndexedStatus, Status
from ..types.plain_json import size
from ..types.state import PendingCall, RunState
from ..types.subagents import AsCollect
from ..types.tool_calls import AsSubagent
from . import children
from .approvals import waiting
from .children import row_of, run_id, shown
from .compaction import Compact
from .decide import CallModel, Close, End, Next, Remind, Report, RunBranches, RunCalls, StopChildren, Wait, decide
from .limits import exceeded, pause_reason, uses
from .subagents import branch_id, child_id
from .waits import asks, pending_waits

# ---
# What Temporal is told of a run, so that one query finds all that waits, and nobody need ask the run what it is.


Value = str | int


def to_index(state: RunState, step: Next | None, shown: Mapping[str, object]) -> dict[str, Value]:
    """The search attributes to be changed while ``step`` is under way, where ``shown`` is what visibility has.

    A run that never waits, for a person or for a message, is not worth an event; from its first wait on it is kept up
    to date, but for whether a session is in a turn. Only attributes that the namespace is known to have.
    """
    pending = len(pending_waits(state))
    idle = isinstance(step, Wait) and step.until != "child"
    if not pending and not idle and PENDING not in shown and STATUS not in shown:
        return {}
    status: IndexedStatus = "waiting" if pending else "running"
    wanted: dict[str, Value] = {
        AGENT: state.agent,
        STATUS: "paused" if step == Wait("resumed") else status,
        PENDING: pending,
    }
    return {name: value for name, value in wanted.items() if name in (state.indexed or ()) and shown.get(name) != value}


def waiting_now(state: RunState) -> tuple[Hashable, ...] | None:
    """Names what waits, for who only has to know whether it is something else by now: :func:`to_note` costs more.

    None while a wait has only just begun, and the state does not say yet since when.
    """
    found: list[Hashable] = []
    for wait in pending_waits(state):
        if wait.period is None:
            return None
        found.append((wait.pending.op, wait.kind == "approval", len(wait.pending.answers), wait.period.since))
    return tuple(found)


def to_note(state: RunState) -> list[dict[str, Any]] | None:
    """What waits, as the memo is to have it; None where nothing does, or it does not fit: then the run is asked."""
    found = waiting(state)
    if not found or len(found) > WAITING_CALLS:
        return None
    noted = [one.model_dump(mode="json", exclude={"reminded"}, exclude_none=True) for one in found]
    return noted if size(noted) <= WAITING_BYTES else None


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
    for branch in children.waiting(state):
        name = f"branch-{branch.op}"
        yield ChildStatus(call_id=name, name=branch.asked.agent, kind="branch", context_id=branch_id(state, branch))


def _reason(state: RunState, *, at_limit: bool) -> str | None:
    if state.pause:
        return state.pause.reason
    if at_limit and (limit := exceeded(state)):
        return pause_reason(limit)
    if state.turn and state.turn.failure:
        return f"{state.turn.failure.type}: {state.turn.failure.message}"
    return None
