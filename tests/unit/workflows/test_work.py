"""Work that is stopped at an unhappy moment stops itself, and not the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from perdure.workflows.guard import Guard
from perdure.workflows.host import Host, use_host
from perdure.workflows.step_tasks import StepTasks
from tests.unit.loop.build import opened


class Ticking:
    """A host that looks at conditions at each turn of the event loop."""

    async def wait_condition(self, condition: Callable[[], bool], **_: Any) -> None:
        while not condition():  # noqa: ASYNC110 - as a workflow looks at its conditions
            await asyncio.sleep(0)

    async def wait(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await asyncio.wait(tasks)


async def waits_twice(arrived: asyncio.Event) -> None:
    """It puts up with a cancellation of the first wait; the second one is short."""
    with suppress(asyncio.CancelledError):
        await arrived.wait()
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
async def test_work_that_is_stopped_between_two_waits_does_not_end_the_run(turns: int, how: str) -> None:
    arrived, state, said = asyncio.Event(), opened(), []

    async def drive() -> None:
        work = StepTasks(state, Guard())
        await work.run_all([waits_twice(arrived)])
        said.append(work.is_stopping())

    with use_host(cast(Host, Ticking())):
        run = asyncio.create_task(drive())
        for _ in range(3):
            await asyncio.sleep(0)
        arrived.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        if how == "cancelled":
            run.cancel()
        else:
            state.interrupt = "go on"
        await run
    assert said in ([True], [False]), "the run goes on, to close its transcript"


async def test_an_ending_that_is_stopped_between_two_waits_does_not_end_the_run() -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def ending() -> None:
        begun.set()
        await never.wait()

    async def drive() -> bool:
        work = StepTasks(opened(), Guard())
        await work.run_to_end(ending(), stop=True)
        return work.is_cancelling()

    with use_host(cast(Host, Ticking())):
        run = asyncio.create_task(drive())
        await begun.wait()
        run.cancel()
        assert await run


async def test_what_cancels_itself_is_not_taken_for_stopped() -> None:
    async def gone() -> None:
        raise asyncio.CancelledError("by itself")

    async def drive() -> None:
        await StepTasks(opened(), Guard()).run_all([gone()])

    with use_host(cast(Host, Ticking())), pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(drive())
