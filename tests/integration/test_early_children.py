"""A client that follows a run is told of those below it, and may be quicker than these and than itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, Client, PerdurePlugin, Run, background
from perdure.errors import NotWaitingYetError, RunNotFoundError, TranscriptCorruptedError
from perdure.testing import ScriptedProvider, call, fail
from perdure.types.events import Event
from tests.integration.test_early import Held, pay, read, refund, refused
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.following import all_of, shown
from tests.support.wait import eventually

pytestmark = pytest.mark.server

__all__ = ["refused"]


@asynccontextmanager
async def crew(engine: Engine, held: Held, *replies: Any, apart: bool = False) -> AsyncIterator[Client]:
    """A boss who calls a worker with the ``replies``, ``apart`` in background."""
    worker = Agent("worker", ScriptedProvider([*replies, "Worked."]), tools=[read, refund, pay])
    asks = [call("start_agent", agent_name="worker", message="Go."), call("collect_agent", handle="b1")]
    said = asks if apart else [call("call_worker", task="Go.")]
    options: dict[str, Any] = {"tools": background([worker])} if apart else {"subagents": [worker]}
    boss = Agent("boss", ScriptedProvider([*said, "Done."]), **options)
    client = await engine.client()
    plugin = PerdurePlugin([boss, worker], store_url=engine.store_url)
    async with TemporalWorker(client.temporal, task_queue=engine.task_queue, plugins=[plugin], interceptors=[held]):
        yield client


async def told(run: Run, kind: str, *, below: bool = True) -> Any:
    """Until a run below it, or itself, says so."""
    async for event in run.events():
        if event.type == kind and bool(event.path) == below:
            return event
    raise AssertionError(f"the run ended without {kind}")


@pytest.mark.parametrize(
    ("name", "kind", "slow", "apart"),
    [
        ("read", "question.asked", "perdure.model", False),
        ("pay", "question.asked", "tool.pay", True),
        ("refund", "approval.requested", "perdure.model", True),
    ],
)
async def test_a_call_below_is_decided_before_its_run_has_heard(
    engine: Engine, refused: list[NotWaitingYetError], name: str, kind: str, slow: str, apart: bool
) -> None:
    held = Held(slow, agent="worker")
    async with crew(engine, held, call(name), apart=apart) as client:
        run = await client.start("boss", "Go.")
        event = await told(run, kind)
        below = client.run(event.context_id)
        if kind == "approval.requested":
            saying = asyncio.create_task(below.approve(event.call_id, by="ana"))
        else:
            saying = asyncio.create_task(below.answer(event.call_id, "savings", by="ana"))
        await eventually(lambda: refused, what="an attempt that came too early")
        held.gate.open()
        assert (await saying).by == "ana"
        assert (await run.result()).content == "Done."


@pytest.mark.parametrize("apart", [False, True])
async def test_a_run_is_followed_that_its_parent_has_not_begun_yet(engine: Engine, apart: bool) -> None:
    held = Held("perdure.model", agent="boss")
    async with crew(engine, held, apart=apart) as client:
        run = await client.start("boss", "Go.")
        event = await told(run, "tool.started", below=False)
        below = client.run(event.child_context_id)
        with pytest.raises(RunNotFoundError):
            await all_of(client.run(await find_child_id(client, run.id, 77)).events())
        following: asyncio.Future[list[Event]] = asyncio.ensure_future(all_of(below.events()))
        await asyncio.wait([following], timeout=0.1)  # time to be too early
        assert not following.done()
        held.gate.open()
        assert shown(await following)[-1] == "run completed"
        assert (await run.result()).content == "Done."


async def test_a_run_below_is_resumed_before_it_has_heard_that_it_pauses(engine: Engine) -> None:
    held = Held("perdure.model", agent="worker")
    async with crew(engine, held, fail(TranscriptCorruptedError("a node is missing"))) as client:
        run = await client.start("boss", "Go.")
        async for event in run.events():
            if event.type == "run" and event.state == "paused":
                break
        resuming = asyncio.create_task(client.run(event.context_id).resume())
        await asyncio.wait([resuming], timeout=0.1)  # time to be too early
        assert not resuming.done()
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."
