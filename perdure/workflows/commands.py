"""Ensures that each workflow task that received something ends with a command.

When a worker loads a run from history, Temporal's SDK (1.35) merges a workflow task without a command with the next
one. Updates of the second task then run before the results of the first are applied; once such an update is in
history, the next replay splits the tasks: TMPRL1100, or a different state. docs/decisions/028-commands-of-a-task.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import workflow

from ..types.indexing import TURN
from ..types.state import RunState
from . import host

ROUNDS = 3
"""How many times the other coroutines run first: one that wakes up may wake another, which makes a command."""


@contextmanager
def ensure_commands(state: RunState) -> Iterator[host.TaskProgress]:
    """Within the block, each workflow task that brings a result or a signal ends with a command.

    Signal handlers run outside of the block and set ``received`` themselves.
    """
    if host.is_hosted():
        yield host.TaskProgress()
        return
    progress = host.track_progress()
    task = asyncio.create_task(_command(state, progress))
    try:
        yield progress
    finally:
        task.cancel()


async def _command(state: RunState, progress: host.TaskProgress) -> None:
    # Temporal's own waits, which are not recorded.
    progress.received = True  # the run has begun
    while True:
        await workflow.wait_condition(lambda: progress.received or progress.has_command)
        for _ in range(ROUNDS):
            await workflow.wait_condition(lambda: True)
        if progress.received and not progress.has_command:
            workflow.upsert_memo({TURN: state.turn.task_id if state.turn else ""})
        progress.next_task()
