"""Subagents and branches: the input of a child run, its share of the budgets, and what its end does to the parent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ..types.interface import Parent, Response
from ..types.limits import Bounds
from ..types.plain_json import measure_json
from ..types.run_ids import RUN_ID_BYTES
from ..types.state import PendingBranch, RunState, ToolCallState
from ..types.subagents import BranchOutcome, Lineage, PathStep
from ..types.tool_calls import Call, SubagentCall
from .apply import fail_call, finish_call
from .children import build_child_run_id, list_active_background_runs, list_branch_outcomes, list_running_branches
from .limits import add_usage, compute_largest_call, compute_remaining_budget, list_limit_uses
from .payload_limits import STEP_BYTES, measure_model
from .results import can_fit_result
from .waits import list_requesters, record_requesters

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
    lost: bool = False
    """It was terminated or timed out: it could neither report its end nor close its transcript."""


def build_child_start(state: RunState, pending: ToolCallState) -> dict[str, Any] | str:
    """Build the input of the child run; return the reason instead if it may not begin."""
    request = pending.call.disposition
    assert isinstance(request, SubagentCall), "a call of another agent"
    depth = (state.parent.depth if state.parent else 0) + 1
    if depth > MAX_DEPTH:
        return f"not run: subagents are nested {MAX_DEPTH} deep at most"
    if len(build_child_run_id(state, pending).encode()) > RUN_ID_BYTES:
        return "not run: the id of this run is too long for it to have subagents"
    limits = _compute_child_share(state, request)
    shares = {name: getattr(limits, name, None) for name in _PAID_BUDGETS}
    if any(share is not None and share <= 0 for share in shares.values()):
        spent = next(use for use in list_limit_uses(state) if shares.get(use.name) is not None)
        return f"not run: nothing is left for a subagent, {spent}"
    message: dict[str, Any] = {"content": request.message}
    if request.blob is not None:
        message = {"content": request.blob.model_dump(mode="json"), "store_id": state.store_id}
    if request.typed:
        message["typed"] = True
    if state.caller is not None:
        message["on_behalf_of"] = state.caller
    parent = Parent(
        context_id=state.context_id,
        call_id=pending.call.id,
        scope=_compute_child_scope(state, pending, request),
        depth=depth,
        limits=limits,
        largest=None if limits is None else _compute_largest_above(state),
        background=request.background is not None,
        lineage=build_lineage(state, pending.call.id, request.agent),
        asked_by=tuple(list_requesters(state)),
    )
    start = {
        "agent": request.agent,
        "message": message,
        "context": state.context,
        "auth_context": state.auth_context,
        "auth_ref": state.auth_ref,
        "tenant": state.tenant,
        "user": state.user,
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
    response = ended.response
    count_child_usage(state, ended)
    record_child_requesters(state, ended)
    if response is None or response.finish_reason == "interrupted":
        if not stopping:
            error = (response.content or CHILD_INTERRUPTED) if response is not None else ended.error
            fail_call(state, pending, error or "the subagent ended without an answer")
        return
    content = None if response.blob is not None else response.content
    if is_unanswered_at_limit(response):
        fail_call(state, pending, CHILD_AT_LIMIT)
    elif not can_fit_result(state, content):
        child_id = build_child_run_id(state, pending)
        fail_call(state, pending, f"too long: with the answer of {child_id} those of this reply are: ask fewer at once")
    else:
        finish_call(state, pending, content, blob=response.blob)


def count_child_usage(state: RunState, ended: ChildOutcome) -> None:
    """Add the usage of a child run to that of its parent."""
    used = ended.response or ended.used
    if used is not None:
        add_usage(state, used.usage, used.cost_usd)
        state.tool_calls += used.tool_calls or 0


def record_child_requesters(state: RunState, ended: ChildOutcome) -> None:
    """Record the people whose input led to the answer, or the error, of a child run."""
    reported = ended.response or ended.used
    record_requesters(state, reported.asked_by if reported is not None else ())


def is_unanswered_at_limit(response: Response) -> bool:
    """Whether the run ended at a limit without an answer."""
    return response.finish_reason == "limit" and not response.content and response.blob is None


def build_usage_details(state: RunState) -> dict[str, Any]:
    """Build the error details with which a failed child reports its usage and its requesters to the parent."""
    fields = build_child_report(state)
    used = Response(usage=state.usage, cost_usd=state.cost_usd, **fields)
    return {"used": used.model_dump(mode="json", include={"usage", "cost_usd", *fields}, exclude_none=True)}


def build_child_report(state: RunState) -> dict[str, Any]:
    """Build the fields of a ``Response`` that are for the parent alone."""
    return {"tool_calls": state.tool_calls, "asked_by": tuple(list_requesters(state))}


def parse_usage_details(details: Any) -> Response | None:
    """Parse error details built by :func:`build_usage_details`; None if there is no usage in them."""
    used = details[0].get("used") if details and isinstance(details[0], dict) else None
    return Response.model_validate(used) if isinstance(used, dict) else None


def _compute_child_share(state: RunState, request: SubagentCall) -> Bounds | None:
    """Compute the budgets of one of the children that are to run now: an equal part of what is left, so that together
    they do not use more.

    A background run gets a part as if all runs allowed at once were started, and one part is left for the parent, which
    goes on.
    """
    budget = compute_remaining_budget(state)
    if budget is None:
        return None
    dispositions = [pending.call.disposition for pending in state.calls if pending.result is None]
    subagents = [call for call in dispositions if isinstance(call, SubagentCall)]
    branches = len(list_running_branches(state))
    sharers = max(1, len(subagents) + branches)
    if request.background is not None:
        awaited = sum(call.background is None for call in subagents) + branches
        sharers = awaited + max(1, request.background - len(list_active_background_runs(state))) + 1
    share: dict[str, Any] = budget.model_dump(exclude_none=True)
    for name in _SHARED_BUDGETS:
        if name in share:
            share[name] = share[name] / sharers if name == "cost_usd" else share[name] // sharers
    return Bounds.model_validate(share)


def _compute_largest_above(state: RunState) -> Bounds | None:
    """Return the largest model call of this run and of the runs above it."""
    above = state.parent.largest if state.parent else None
    return state.largest if above is None else compute_largest_call(state, above.tokens or 0, above.cost_usd)


def _compute_child_scope(state: RunState, pending: ToolCallState, request: SubagentCall) -> str:
    """Compute the child's scope: a hash of the call and its whole input, as for every effect that is paid once."""
    identity = {"call_id": pending.call.id, "how": request.model_dump(exclude_defaults=True)}
    text = json.dumps([state.scope, pending.op, "subagent", identity], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ---
# The runs of branches: the input of each, and the effect of its end on the step. As with subagents.


def build_branch_start(state: RunState, branch: PendingBranch) -> dict[str, Any] | BranchOutcome:
    """Build the input of the branch's run: a subagent's, after the forked conversation; or the error outcome of a
    branch that may not begin."""
    request = branch.request
    start = build_child_start(state, _build_branch_call(branch))
    if isinstance(start, str):
        return _build_branch_outcome(branch, error_type="BranchError", error=start)
    if request.message is None and request.blob is None:
        behalf = {} if state.caller is None else {"on_behalf_of": state.caller}
        start["message"] = {"content": None, **behalf}  # a turn on the conversation as it stands
    if request.head is not None:
        start |= {"history": request.head, "store_id": state.store_id}
    if request.model:
        start["override"] = {"model": list(request.model)}
    return start


def apply_branch_outcome(state: RunState, branch: PendingBranch, ended: ChildOutcome, *, stopping: bool) -> None:
    """Apply the end of the branch's run. Its usage counts, also if its answer is dropped (``stopping``)."""
    count_child_usage(state, ended)
    record_child_requesters(state, ended)
    outcome, step = _convert_child_outcome(branch, ended), state.branching
    if step is None or (stopping and outcome.error is not None):
        return
    carried = [*state.unsent, *state.inbox[: step.taken], *list_branch_outcomes(state)]
    left = max(0, STEP_BYTES - sum(map(measure_model, carried)))  # an activity's input has at most 2 MB
    if (size := measure_json(outcome.content)) > left:
        problem = f"its answer has {size:,} bytes as JSON, and {left:,} are left beside the step's other input"
        outcome = _build_branch_outcome(branch, error_type="BranchError", error=problem)
    set_branch_outcome(branch, outcome)


def set_branch_outcome(branch: PendingBranch, outcome: BranchOutcome) -> None:
    """Set the outcome of the branch, and drop its message, which is no longer needed."""
    branch.outcome = outcome
    branch.request = branch.request.model_copy(update={"message": None, "blob": None})


def _convert_child_outcome(branch: PendingBranch, ended: ChildOutcome) -> BranchOutcome:
    response = ended.response
    if response is None:
        error_type, _, error = (ended.error or "BranchError: it ended without an answer").partition(": ")
        return _build_branch_outcome(branch, error_type=error_type, error=error)
    if response.finish_reason == "interrupted":
        error = "it was interrupted before it had an answer"
        return _build_branch_outcome(branch, error_type="RunCancelledError", error=error)
    content = "" if response.blob is not None else response.content
    return _build_branch_outcome(branch, content=content, blob=response.blob, typed=response.typed)


def _build_branch_outcome(branch: PendingBranch, **fields: Any) -> BranchOutcome:
    request = branch.request
    return BranchOutcome(key=request.key, label=request.label, agent=request.agent, op=branch.op, **fields)


def _build_branch_call(branch: PendingBranch) -> ToolCallState:
    """Build the subagent call that stands for the branch."""
    request = branch.request
    call = SubagentCall(agent=request.agent, message=request.message or "", blob=request.blob, typed=request.typed)
    return ToolCallState(call=Call(id=f"branch-{branch.op}", name="branch", disposition=call), op=branch.op)
