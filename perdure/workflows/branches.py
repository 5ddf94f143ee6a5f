"""Branches of a step: each is a child workflow, which lives and dies with the run as a subagent does."""

from __future__ import annotations

from .. import loop
from ..types.branch import BranchOutcome
from ..types.state import PendingBranch, RunState
from .subagents import run_child
from .work import Work


async def run_branch(state: RunState, branch: PendingBranch, work: Work) -> None:
    """Run the branch to its end. An interrupt of the run interrupts it, and it says what it has used."""
    start = work.guard.apply(state, "the start of a branch", lambda: loop.branch_start(state, branch))
    if isinstance(start, BranchOutcome):
        loop.settle_branch(branch, start)
    if not isinstance(start, dict):
        return
    ended = await run_child(state, loop.branch_id(state, branch), start)
    stopping = work.stopping() and loop.was_stopped(ended)
    work.guard.apply(state, "the end of a branch", lambda: loop.apply_branch(state, branch, ended, stopping=stopping))
