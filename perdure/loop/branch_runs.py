"""The runs of branches: what each is started with, and what its end means for the step. As with subagents."""

from __future__ import annotations

from typing import Any

from ..types.branch import BranchOutcome
from ..types.state import Branching, PendingBranch, PendingCall, RunState
from ..types.wire import AsSubagent, Call, NewResult
from . import sizes
from .branching import outcomes
from .sizes import size
from .subagents import Ended, child_id, child_start, count_child


def branch_id(state: RunState, branch: PendingBranch) -> str:
    """Id of the branch's run."""
    return child_id(state, _call(branch))


def branch_start(state: RunState, branch: PendingBranch) -> dict[str, Any] | BranchOutcome:
    """The input of the branch's run: that of a subagent, behind the forked conversation. Or why it may not begin."""
    asked = branch.asked
    start = child_start(state, _call(branch))
    if isinstance(start, NewResult):
        return _outcome(branch, error_type="BranchError", error=start.text)
    if asked.message is None and asked.blob is None:
        start["message"] = {"content": None}  # a turn on the conversation as it stands
    if asked.head is not None:
        start |= {"history": asked.head, "store_id": state.store_id}
    if asked.model:
        start["override"] = {"model": list(asked.model)}
    return start


def apply_branch(state: RunState, branch: PendingBranch, ended: Ended, *, stopping: bool) -> None:
    """The branch's run ended. What it used counts, also where nobody hears its answer any more (``stopping``)."""
    count_child(state, ended)
    if not stopping and state.branching is not None:
        settle_branch(branch, _fitting(state, state.branching, branch, _came_to(branch, ended)))


def settle_branch(branch: PendingBranch, outcome: BranchOutcome) -> None:
    """The branch has an outcome. What it was asked is needed no more."""
    branch.outcome = outcome
    branch.asked = branch.asked.model_copy(update={"message": None, "blob": None})


def _came_to(branch: PendingBranch, ended: Ended) -> BranchOutcome:
    response = ended.response
    if response is None:
        kind, _, why = (ended.error or "BranchError: it ended without an answer").partition(": ")
        return _outcome(branch, error_type=kind, error=why)
    if response.finish_reason == "interrupted":
        why = "it was interrupted before it had an answer"
        return _outcome(branch, error_type="RunCancelledError", error=why)
    said = "" if response.blob is not None else response.content
    return _outcome(branch, content=said, blob=response.blob, typed=response.typed)


def _fitting(state: RunState, step: Branching, branch: PendingBranch, outcome: BranchOutcome) -> BranchOutcome:
    """``outcome``, or that its answer is too long: Temporal ends a run that asks for an activity with too much."""
    given = [*state.carry, *state.inbox[: step.taken], *outcomes(state)]
    left = sizes.STEP_BYTES - sum(size(one.model_dump(mode="json", exclude_none=True)) for one in given)
    found = size(outcome.content)
    if found <= left:
        return outcome
    why = f"its answer has {found:,} bytes as JSON, and {max(0, left):,} are left beside what the step is given"
    return _outcome(branch, error_type="BranchError", error=why)


def _outcome(branch: PendingBranch, **came: Any) -> BranchOutcome:
    asked = branch.asked
    return BranchOutcome(key=asked.key, said=asked.said, agent=asked.agent, op=branch.op, **came)


def _call(branch: PendingBranch) -> PendingCall:
    """The branch as a call of a subagent."""
    asked = branch.asked
    how = AsSubagent(agent=asked.agent, message=asked.message or "", blob=asked.blob, typed=asked.typed)
    return PendingCall(call=Call(id=f"branch-{branch.op}", name="branch", disposition=how), op=branch.op)
