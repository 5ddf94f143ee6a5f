"""Limits: what a run and its turn have used and are allowed, and what happens at a limit.

Limits are checked before a model call, never within one: a limit is exceeded by at most the step that was in flight.
Time is counted while the run is at work (:func:`update_work_time`): the loop itself has no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..types.limits import Bounds, LimitName, LimitScope, LimitUse
from ..types.messages import Usage
from ..types.state import RunState, ToolCallState, TurnState
from ..types.wire import TurnFailure
from .children import sum_reserved_budget
from .requests import lower_limits
from .results import build_error_result
from .turns import describe_unanswered_messages, get_caller_overrides

BUDGET_NAMES: tuple[LimitName, ...] = ("iterations", "tokens", "cost_usd", "wall_time", "tool_calls")
UsedAmounts = dict[str, float]


def list_limit_uses(state: RunState) -> list[LimitUse]:
    """List every limit that is set with its use, those of the run first; ``max_iterations`` of the turn last."""
    uses = []
    for scope, bounds, raised, used in _iter_limit_scopes(state):
        uses += [
            LimitUse(name=name, scope=scope, used=used[name], allowed=max(bound, getattr(raised, name, None) or 0))
            for name in BUDGET_NAMES
            if (bound := bounds[name]) is not None
        ]
    turn = state.turn
    used_up = turn.iteration if turn else 0
    uses.append(LimitUse(name="max_iterations", scope="turn", used=used_up, allowed=get_max_iterations(state)))
    return uses


def get_max_iterations(state: RunState) -> int:
    """Return how many model calls the turn may make."""
    raised = state.turn.raised if state.turn else None
    return max(state.limits.max_iterations, (raised and raised.iterations) or 0)


def find_exceeded_limit(state: RunState) -> LimitUse | None:
    """Return the first limit that forbids another model call; None if none does."""
    turn = state.turn
    if turn is None:
        return None
    if not _has_limits(state, turn):  # the usual case
        spent = turn.iteration >= get_max_iterations(state)
        return list_limit_uses(state)[-1] if spent else None
    wants_calls = turn.denied or any(call.held for call in state.calls)
    exceeded = (use for use in list_limit_uses(state) if use.used >= use.allowed)
    return next((use for use in exceeded if wants_calls or use.name != "tool_calls"), None)


def add_usage(state: RunState, usage: Usage, cost_usd: float | None) -> None:
    """Add to what the run has used. ``cost_usd``: None if no price is known."""
    state.usage += usage
    if cost_usd is not None:
        state.cost_usd = (state.cost_usd or 0.0) + cost_usd


def count_calls_left(state: RunState) -> int | None:
    """Return how many tool calls may still begin; None if they are not limited."""
    if state.turn is None or not _has_limits(state, state.turn):
        return None
    remaining = [use.allowed - use.used for use in list_limit_uses(state) if use.name == "tool_calls"]
    return max(0, int(min(remaining))) if remaining else None


def compute_remaining_budget(state: RunState) -> Bounds | None:
    """Return what is left of the budgets of run and turn together, which a subagent may use; None without budgets.

    Iterations are not inherited: each agent counts its own.
    """
    remaining: dict[str, float] = {}
    for use in list_limit_uses(state):
        if use.name not in ("iterations", "max_iterations"):
            remaining[use.name] = min(remaining.get(use.name, use.allowed), max(0, use.allowed - use.used))
    return Bounds.model_validate(remaining) if remaining else None


def has_inherited_cost_limit(state: RunState) -> bool:
    """Whether the run is a subagent that its parent gave a cost limit."""
    limits = state.parent.limits if state.parent is not None else None
    return limits is not None and limits.cost_usd is not None


def _has_limits(state: RunState, turn: TurnState) -> bool:
    limits = state.limits
    if state.parent is not None and state.parent.limits is not None:
        return True
    if limits.run is not None or limits.turn is not None:
        return True
    for overrides in (turn.overrides, state.caller_overrides, turn.caller_overrides):
        if overrides is not None and overrides.get("limits"):
            return True
    return False


def _iter_limit_scopes(state: RunState) -> Iterator[tuple[LimitScope, dict[str, Any], Bounds | None, UsedAmounts]]:
    """Yield, for run and turn: the bounds of the agent, the raised bounds, and the amounts used."""
    turn, limits = state.turn, state.limits
    # The turn's overrides; ``state.limits`` has them only after the first model call that was given them.
    override = (turn.overrides or {}).get("limits") or {} if turn else {}
    run_used: UsedAmounts = {
        "iterations": state.iterations,
        "tokens": state.usage.total_tokens + sum_reserved_budget(state, "tokens"),
        "cost_usd": (state.cost_usd or 0.0) + sum_reserved_budget(state, "cost_usd"),
        "wall_time": state.worked,
        "tool_calls": state.tool_calls + sum_reserved_budget(state, "tool_calls"),
    }
    # Also before the agent has allowed what a caller asks for: a call that it does not allow fails.
    asked = (get_caller_overrides(state) or {}).get("limits") or {}
    of_run = lower_limits(_merge_override_bounds(limits.run, override), _select_budgets(asked))
    yield "run", _apply_parent_limits(state, of_run), state.raised, run_used
    if turn is not None:
        before: UsedAmounts = {
            "iterations": 0,
            "tokens": turn.usage_before.total_tokens,
            "cost_usd": turn.cost_before or 0.0,
            "wall_time": turn.worked_before,
            "tool_calls": turn.tool_calls_before,
        }
        of_turn = _merge_override_bounds(limits.turn, override.get("turn") or {})
        bounds = {**lower_limits(of_turn, _select_budgets(asked.get("turn") or {})), "iterations": None}
        yield "turn", bounds, turn.raised, {name: used - before[name] for name, used in run_used.items()}


def _apply_parent_limits(state: RunState, bounds: dict[str, Any]) -> dict[str, Any]:
    """Lower ``bounds`` to what the parent of a subagent left for it."""
    if state.parent is None or state.parent.limits is None:
        return bounds
    lowered, reserve = dict(bounds), _compute_reserve(state)
    for name in BUDGET_NAMES:
        if (share := getattr(state.parent.limits, name)) is not None:
            share = max(0, share - reserve.get(name, 0))
            lowered[name] = share if bounds[name] is None else min(bounds[name], share)
    return lowered


def _compute_reserve(state: RunState) -> dict[str, float]:
    """Compute what a subagent reserves of its parent's share: room for the call that exceeds a limit, and the answer.

    Siblings run at the same time: if each exceeded its share by one call, the tree would exceed it by as many calls.
    """
    assert state.parent is not None, "a subagent"
    call, calls = state.largest, 2 if state.limits.on_limit == "finish" else 1
    if call is None:
        call, calls = state.parent.largest or Bounds(), 1
    return {"tokens": calls * (call.tokens or 0), "cost_usd": calls * (call.cost_usd or 0.0)}


def compute_largest_call(state: RunState, tokens: int, cost_usd: float | None) -> Bounds:
    """Return the largest tokens and cost of a model call so far, one of ``tokens`` and ``cost_usd`` included."""
    before = state.largest or Bounds()
    return Bounds(tokens=max(before.tokens or 0, tokens), cost_usd=max(before.cost_usd or 0.0, cost_usd or 0.0))


def _merge_override_bounds(bounds: Bounds | None, override: dict[str, Any]) -> dict[str, Any]:
    return {name: override.get(name, getattr(bounds, name, None)) for name in BUDGET_NAMES}


def _select_budgets(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name in BUDGET_NAMES if asked.get(name) is not None}


# --- time


def update_work_time(state: RunState, now: datetime, *, working: bool = True) -> None:
    """Set the clock to ``now``; the time since it was last set counts as work if the run was ``working``."""
    at = round(now.timestamp(), 3)
    if working and state.worked_until is not None:
        state.worked = round(state.worked + max(0.0, at - state.worked_until), 3)
    state.worked_until = at


# --- tool calls


def admit_calls(state: RunState) -> None:
    """Count the calls of a reply that are still to run; refuse those beyond what is left, or hold them back."""
    turn = state.turn
    assert turn is not None, "calls without a turn"
    room = count_calls_left(state)
    for pending in state.calls:
        if pending.result is not None:
            continue
        if room is None or room > 0:
            state.tool_calls += 1
            room = None if room is None else room - 1
        elif state.limits.on_limit == "pause":
            pending.held = True
        else:
            turn.denied = True
            use = next(use for use in list_limit_uses(state) if use.name == "tool_calls" and use.used >= use.allowed)
            text = f"not run: no more tool calls are allowed, {use}"
            pending.result = build_error_result(pending.call, text)


def uncount_tool_call(state: RunState, pending: ToolCallState) -> None:
    """Uncount a call that was admitted and waited for approval, but will not run."""
    if pending.call.approval is not None and not pending.held:
        state.tool_calls -= 1


def release_held_calls(state: RunState) -> None:
    """Let held calls begin, as many as the limits now allow."""
    held = [pending for pending in state.calls if pending.held and pending.result is None]
    room = count_calls_left(state) if held else 0
    for pending in held:
        if room is None or room > 0:
            pending.held, pending.released = False, True
            state.tool_calls += 1
            room = None if room is None else room - 1


# --- texts


def build_limit_failure(state: RunState, use: LimitUse) -> TurnFailure:
    """Build the failure of a turn at ``use``, under ``on_limit="error"``."""
    if use.name == "max_iterations":
        message = f"agent {state.agent} did not finish within {use.allowed:g} iterations"
        message += describe_unanswered_messages(state.turn)
        return TurnFailure(type="MaxIterationsError", message=message)
    field = f"turn=Limits({use.name}=…)" if use.scope == "turn" else f"{use.name}=…"
    return TurnFailure(
        type="MaxIterationsError" if use.name == "iterations" else "BudgetExceededError",
        message=f"agent {state.agent} did not finish: {use}. "
        f"Give it more with limits=Limits({field}), or let on_limit say what else is to happen"
        + describe_unanswered_messages(state.turn),
    )


def build_pause_reason(use: LimitUse) -> str:
    """Build the reason for a pause at ``use``, with the way out."""
    return f"{use}; the run continues once the limit is raised: resume with {use.key}=<more>"
