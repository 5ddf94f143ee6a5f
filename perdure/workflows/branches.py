"""Branches of a step: each is a child workflow, which lives and dies with the run as a subagent does."""

from __future__ import annotations

from collections.abc import Callable

from .. import loop
from ..types.branch import BranchOutcome
from ..types.state import PendingBranch, RunState
from .subagents import run_child


async def run_branch(state: RunState, branch: PendingBranch, stopping: Callable[[], bool]) -> None:
    """Run the branch to its end. An interrupt of the run interrupts it, and it says what it has used."""
    start = loop.branch_start(state, branch)
    if isinstance(start, BranchOutcome):
        loop.settle_branch(branch, start)
        return
    ended = await run_child(state, loop.branch_id(state, branch), start)
    loop.apply_branch(state, branch, ended, stopping=stopping() and loop.was_stopped(ended))
