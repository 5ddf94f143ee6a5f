"""A command in each workflow task in which the run got on: it keeps the tasks apart in replay.

Where a worker loads a run from its history, Temporal's SDK (1.35) takes a task that ended without a command for one
with the task behind it. An update of the second then comes before what the first brought; and once it stands in
history, they are two in the next replay: TMPRL1100, or another state. docs/decisions/028-commands-of-a-task.md.
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
"""How often everything else goes first: what wakes may wake something else, which makes a command."""


@contextmanager
def commanding(state: RunState) -> Iterator[host.Pace]:
    """For the length of the block each task ends with a command that brought something the run waited for, or a signal.

    Handlers of signals say so themselves: they are no part of the block.
    """
    if host.is_hosted():
        yield host.Pace()
        return
    pace = host.paced()
    task = asyncio.create_task(_command(state, pace))
    try:
        yield pace
    finally:
        task.cancel()


async def _command(state: RunState, pace: host.Pace) -> None:
    # Temporal's own waits: they are not among what is noted.
    pace.moved = True  # the run has begun
    while True:
        await workflow.wait_condition(lambda: pace.moved or pace.commanded)
        for _ in range(ROUNDS):
            await workflow.wait_condition(lambda: True)
        if pace.moved and not pace.commanded:
            workflow.upsert_memo({TURN: state.turn.task_id if state.turn else ""})
        pace.next_task()
