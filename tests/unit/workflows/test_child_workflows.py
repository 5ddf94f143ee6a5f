"""A child whose start is overtaken by a cancellation has a parent that waits for it, and is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from perdure.loop.lifecycle import create_run_state
from perdure.loop.subagents import CHILD_CANCELLED
from perdure.workflows.child_workflows import run_child
from perdure.workflows.host import Host, use_host


class Starting:
    """A host where a child starts when it is told to, and answers some turns of the event loop later."""

    def __init__(self) -> None:
        self.asked, self.may_start = asyncio.Event(), asyncio.Event()
        self.child: asyncio.Task[Any] | None = None

    async def start_child_workflow(self, *_: Any, **options: Any) -> asyncio.Task[Any]:
        self.asked.set()
        await self.may_start.wait()
        self.child = asyncio.create_task(self._answer())
        return self.child

    async def _answer(self) -> dict[str, Any]:
        for _ in range(50):
            await asyncio.sleep(0)
        return {"content": "Nobody had stopped it."}

    async def wait(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await asyncio.wait(tasks)


async def test_a_child_that_starts_while_the_run_is_stopped_is_cancelled() -> None:
    state = create_run_state({"agent": "a", "message": "hi"}, "run", "s")
    host = Starting()
    with use_host(cast(Host, host)):
        running = asyncio.create_task(run_child(state, "run/1", {"agent": "b"}))
    await host.asked.wait()
    for _ in range(2):  # also if it is stopped again
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done(), "it waits for the start"
    host.may_start.set()
    assert (await running).error == CHILD_CANCELLED
    assert host.child is not None
    assert host.child.cancelled()
