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

from .. import loop
from ..types.indexing import TURN
from ..types.state import RunState
from . import host


@contextmanager
def commanding(state: RunState) -> Iterator[None]:
    """For the length of the block each task in which something that it waited for has come ends with a command."""
    if host.is_hosted():
        yield
        return
    task = asyncio.create_task(_command(state, host.paced()))
    try:
        yield
    finally:
        task.cancel()


async def _command(state: RunState, pace: host.Pace) -> None:
    # Temporal's own waits: they are not among what is noted.
    pace.moved = True  # the run has begun
    while True:
        await workflow.wait_condition(lambda: pace.moved or pace.commanded)
        await workflow.wait_condition(lambda: True)  # what has become possible by then goes first
        if pace.moved and not pace.commanded:
            workflow.upsert_memo({TURN: loop.turn_to_note(state)})
        pace.next_task()
