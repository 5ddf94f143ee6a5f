"""Subagents and branches: the input of a child run, its share of the budgets, and what its end does to the parent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ..types.interface import Parent, Response
from ..types.limits import Bounds
from ..types.plain_json import measure_json
from ..types.state import BranchingStep, PendingBranch, RunState, ToolCallState
from ..types.subagents import BranchOutcome, Lineage, PathStep
from ..types.tool_calls import Call, SubagentCall
from ..types.wire import NewResult
from . import children, payload_limits
from .apply import apply_result
from .children import list_active_background_runs, list_branch_outcomes
from .external_calls import can_fit_result
from .limits import compute_largest_call, compute_remaining_budget, list_limit_uses
from .payload_limits import RUN_ID_BYTES
from .waits import list_requesters

CHILD_CANCELLED = "RunCancelledError: the subagent was cancelled"
CHILD_INTERRUPTED = "Interrupted: the subagent was interrupted before it had an answer"
CHILD_AT_LIMIT = "BudgetExceededError: the subagent ended at its limit, before it had an answer"
MAX_DEPTH = 5
"""Maximum nesting of subagents: agents that call each other by name would otherwise go on without end."""
_PAID_BUDGETS = ("tokens", "cost_usd")
_SHARED_BUDGETS = (*_PAID_BUDGETS, "tool_calls")
"""Budgets that children divide if they run at the same time. Time is not divided: it passes for all of them at once."""


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a child run ended."""

    response: Response | None = None
    """Response of a child that completed."""
    error: str | None = None
    """``Type: message`` of a child that did not."""
    used: Response | None = None
    """Usage of a child that did not complete, if it reported any."""


def build_child_run_id(state: RunState, pending: ToolCallState) -> str:
    """Build the id of the child run that answers the call: ``<context_id>/<op>``."""
    return f"{state.context_id}/{pending.op}"


def build_child_start(state: RunState, pending: ToolCallState) -> dict[str, Any] | NewResult:
    """Build the input of the child run; or, if it may not begin, the error result of the call."""
    how = pending.call.disposition
    assert isinstance(how, SubagentCall), "a call of another agent"
    depth = (state.parent.depth if state.parent else 0) + 1
    if depth > MAX_DEPTH:
        return build_error_result(pending, f"not run: subagents are nested {MAX_DEPTH} deep at most")
    if len(build_child_run_id(state, pending).encode()) > RUN_ID_BYTES:
        return build_error_result(pending, "not run: the id of this run is too long for it to have subagents")
    limits = _compute_child_share(state, how)
    if limits is not None and any(
        getattr(limits, name) is not None and getattr(limits, name) <= 0 for name in _PAID_BUDGETS
    ):
        spent = next(
            use for use in list_limit_uses(state) if use.name in _PAID_BUDGETS and getattr(limits, use.name) is not None
        )
        return build_error_result(pending, f"not run: nothing is left for a subagent, {spent}")
    content: Any = how.message if how.blob is None else how.blob.model_dump(mode="json")
    message: dict[str, Any] = {"content": content}
    if how.typed:
        message["typed"] = True
    if how.blob is not None:
        message["store_id"] = state.store_id
    parent = Parent(
        context_id=state.context_id,
        call_id=pending.call.id,
        scope=_compute_child_scope(state, pending, how),
        depth=depth,
        limits=limits,
        largest=None if limits is None else _compute_largest_above(state),
        background=how.background is not None,
        lineage=build_lineage(state, pending.call.id, how.agent),
        asked_by=tuple(list_requesters(state)),
    )
    start = {
        "agent": how.agent,
        "message": message,
        "context": state.context,
        "auth_context": state.auth_context,
        "auth_ref": state.auth_ref,
        "max_history_events": state.max_history_events,
        "parent": parent.model_dump(mode="json", exclude_none=True),
    }
    return {name: value for name, value in start.items() if value is not None}


def build_lineage(state: RunState, call_id: str, agent: str) -> Lineage:
    """Build the lineage of the run that answers the call: its path from the root run."""
    step = PathStep(agent=agent, call_id=call_id, task_id=state.turn.task_id if state.turn else None)
    if state.parent is None:
        return Lineage(root=state.context_id, path=(step,), agent=state.agent)
    above = state.parent.lineage
    root = above.root if state.is_child else state.context_id
    return above.model_copy(update={"root": root, "path": (*above.path, step)})


def apply_child_outcome(state: RunState, pending: ToolCallState, ended: ChildOutcome, *, stopping: bool) -> None:
    """Apply the end of a child run. Its usage counts for the parent, also if its answer does not.

    ``stopping``: the parent's turn was stopped, and the child with it; the loop closes the call.
    """
    response, call = ended.response, pending.call
    count_child_usage(state, ended)
    if response is None:
        if not stopping:
            apply_result(
                state, pending.op, build_error_result(pending, ended.error or "the subagent ended without an answer")
            )
        return
    if response.finish_reason == "interrupted":
        if not stopping:
            text = response.content or CHILD_INTERRUPTED
            apply_result(state, pending.op, build_error_result(pending, text))
        return
    if is_unanswered_at_limit(response):
        apply_result(state, pending.op, build_error_result(pending, CHILD_AT_LIMIT))
        return
    said = None if response.blob is not None else response.content
    if not can_fit_result(state, said):
        child = build_child_run_id(state, pending)
        text = f"too long: with the answer of {child} those of this reply are: ask fewer at once"
        apply_result(state, pending.op, build_error_result(pending, text))
        return
    result = NewResult(call_id=call.id, name=call.name, text=said, blob=response.blob)
    apply_result(state, pending.op, result)


def count_child_usage(state: RunState, ended: ChildOutcome) -> None:
    """Add the usage of a child run to that of its parent."""
    used = ended.response or ended.used
    if used is not None:
        state.usage += used.usage
        state.tool_calls += used.tool_calls or 0
        if used.cost_usd is not None:
            state.cost_usd = (state.cost_usd or 0.0) + used.cost_usd


def is_unanswered_at_limit(response: Response) -> bool:
    """Whether the run ended at a limit without an answer."""
    return response.finish_reason == "limit" and not response.content and response.blob is None


def _was_stopped(ended: ChildOutcome) -> bool:
    """Whether the child ended without an answer or was interrupted; an answer that it had finished before counts."""
    return ended.response is None or ended.response.finish_reason == "interrupted"


def build_usage_details(state: RunState) -> dict[str, Any]:
    """Build the error details with which a failed child reports its usage to the parent."""
    used = Response(usage=state.usage, cost_usd=state.cost_usd, tool_calls=state.tool_calls)
    return {"used": used.model_dump(mode="json", include={"usage", "cost_usd", "tool_calls"}, exclude_none=True)}


def parse_usage_details(details: Any) -> Response | None:
    """Parse error details built by :func:`build_usage_details`; None if there is no usage in them."""
    said = details[0] if details else None
    used = said.get("used") if isinstance(said, dict) else None
    return Response.model_validate(used) if isinstance(used, dict) else None


def _compute_child_share(state: RunState, how: SubagentCall) -> Bounds | None:
    """Compute the budgets of one of the children that are to run now: an equal part of what is left, so that together
    they do not use more.

    A background run gets a part as if all runs allowed at once were started, and one part is left for the parent, which
    goes on.
    """
    whole = compute_remaining_budget(state)
    if whole is None:
        return None
    ways = [one.call.disposition for one in state.calls if one.result is None]
    waiting = [one for one in ways if isinstance(one, SubagentCall)]
    branches = len(children.list_running_branches(state))
    sharers = len(waiting) + branches
    if how.background is not None:
        awaited = sum(one.background is None for one in waiting) + branches
        sharers = awaited + max(1, how.background - len(list_active_background_runs(state))) + 1
    parts: dict[str, Any] = whole.model_dump(exclude_none=True)
    for name in _SHARED_BUDGETS:
        if name in parts:
            parts[name] = parts[name] / max(1, sharers) if name == "cost_usd" else parts[name] // max(1, sharers)
    return Bounds.model_validate(parts)


def _compute_largest_above(state: RunState) -> Bounds | None:
    """Return the largest model call of this run and of the runs above it."""
    above = state.parent.largest if state.parent else None
    return state.largest if above is None else compute_largest_call(state, above.tokens or 0, above.cost_usd)


def _compute_child_scope(state: RunState, pending: ToolCallState, how: SubagentCall) -> str:
    """Compute the child's scope: a hash of the call and its whole input, as for every effect that is paid once."""
    asked = {"call_id": pending.call.id, "how": how.model_dump(exclude_defaults=True)}
    text = json.dumps([state.scope, pending.op, "subagent", asked], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def build_error_result(pending: ToolCallState, text: str) -> NewResult:
    """Build the error result of the call, which the model gets."""
    return NewResult(call_id=pending.call.id, name=pending.call.name, text=text, is_error=True)


# ---
# The runs of branches: the input of each, and the effect of its end on the step. As with subagents.


def build_branch_run_id(state: RunState, branch: PendingBranch) -> str:
    """Build the id of the branch's run."""
    return build_child_run_id(state, _build_branch_call(branch))


def build_branch_start(state: RunState, branch: PendingBranch) -> dict[str, Any] | BranchOutcome:
    """Build the input of the branch's run: a subagent's, after the forked conversation; or the error outcome of a
    branch that may not begin."""
    asked = branch.asked
    start = build_child_start(state, _build_branch_call(branch))
    if isinstance(start, NewResult):
        return _build_branch_outcome(branch, error_type="BranchError", error=start.text)
    if asked.message is None and asked.blob is None:
        start["message"] = {"content": None}  # a turn on the conversation as it stands
    if asked.head is not None:
        start |= {"history": asked.head, "store_id": state.store_id}
    if asked.model:
        start["override"] = {"model": list(asked.model)}
    return start


def apply_branch_outcome(state: RunState, branch: PendingBranch, ended: ChildOutcome, *, stopping: bool) -> None:
    """Apply the end of the branch's run. Its usage counts, also if its answer is dropped (``stopping``)."""
    count_child_usage(state, ended)
    if state.branching is not None and not (stopping and _was_stopped(ended)):
        set_branch_outcome(
            branch, _check_outcome_size(state, state.branching, branch, _convert_child_outcome(branch, ended))
        )


def set_branch_outcome(branch: PendingBranch, outcome: BranchOutcome) -> None:
    """Set the outcome of the branch, and drop its message, which is no longer needed."""
    branch.outcome = outcome
    branch.asked = branch.asked.model_copy(update={"message": None, "blob": None})


def _convert_child_outcome(branch: PendingBranch, ended: ChildOutcome) -> BranchOutcome:
    response = ended.response
    if response is None:
        kind, _, why = (ended.error or "BranchError: it ended without an answer").partition(": ")
        return _build_branch_outcome(branch, error_type=kind, error=why)
    if response.finish_reason == "interrupted":
        why = "it was interrupted before it had an answer"
        return _build_branch_outcome(branch, error_type="RunCancelledError", error=why)
    said = "" if response.blob is not None else response.content
    return _build_branch_outcome(branch, content=said, blob=response.blob, typed=response.typed)


def _check_outcome_size(
    state: RunState, step: BranchingStep, branch: PendingBranch, outcome: BranchOutcome
) -> BranchOutcome:
    """Return ``outcome``, or an error if its answer is too long: an activity input has at most 2 MB."""
    given = [*state.carry, *state.inbox[: step.taken], *list_branch_outcomes(state)]
    left = payload_limits.STEP_BYTES - sum(
        measure_json(one.model_dump(mode="json", exclude_none=True)) for one in given
    )
    found = measure_json(outcome.content)
    if found <= left:
        return outcome
    why = f"its answer has {found:,} bytes as JSON, and {max(0, left):,} are left beside what the step is given"
    return _build_branch_outcome(branch, error_type="BranchError", error=why)


def _build_branch_outcome(branch: PendingBranch, **came: Any) -> BranchOutcome:
    asked = branch.asked
    return BranchOutcome(key=asked.key, said=asked.said, agent=asked.agent, op=branch.op, **came)


def _build_branch_call(branch: PendingBranch) -> ToolCallState:
    """Build the subagent call that stands for the branch."""
    asked = branch.asked
    how = SubagentCall(agent=asked.agent, message=asked.message or "", blob=asked.blob, typed=asked.typed)
    return ToolCallState(call=Call(id=f"branch-{branch.op}", name="branch", disposition=how), op=branch.op)
