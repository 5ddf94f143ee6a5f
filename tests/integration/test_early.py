"""Approvals and answers of whoever follows the events: they may come before the run itself has heard that it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, Client, PerdurePlugin, Run, ToolContext, callback_tool, tool, updates
from perdure.errors import InvalidInputError, NotWaitingYetError
from perdure.testing import ScriptedProvider, call
from tests.integration.test_questions import asked
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server

read = callback_tool("read", "Read the page.")


@tool(needs_approval=True)
def refund() -> str:
    """Pay back."""
    return "paid back"


@tool
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    return f"paid from {await ctx.ask('Which account?')}"


class Held(Interceptor):
    """The outcomes of the activities of one type reach Temporal when the gate opens."""

    def __init__(self, held: str) -> None:
        self.held, self.gate = held, Gate()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        around = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                outcome = await self.next.execute_activity(input)
                if activity.info().activity_type == around.held:
                    await around.gate()
                return outcome

        return Inbound(next)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[NotWaitingYetError]:
    """What clients in this process were refused with, and have tried again after."""
    seen: list[NotWaitingYetError] = []
    send = updates._sent

    async def sent(*args: Any) -> Any:
        try:
            return await send(*args)
        except NotWaitingYetError as early:
            seen.append(early)
            raise

    monkeypatch.setattr(updates, "_sent", sent)
    return seen


@asynccontextmanager
async def served(engine: Engine, held: Held, name: str) -> AsyncIterator[Client]:
    agent = Agent("clerk", ScriptedProvider([call(name), "Done."]), tools=[read, refund, pay])
    client = await engine.client()
    plugin = PerdurePlugin([agent], store_url=engine.store_url)
    async with TemporalWorker(client.temporal, task_queue=engine.task_queue, plugins=[plugin], interceptors=[held]):
        yield client


async def told(run: Run, kind: str) -> str:
    """The id of the call that an event of that type is about."""
    async for event in run.events():
        if event.type == kind:
            return str(event.call_id)
    raise AssertionError(f"the run ended without {kind}")


@pytest.mark.parametrize(
    ("name", "kind", "slow", "result"),
    [
        ("read", "question.asked", "perdure.model", "savings"),
        ("pay", "question.asked", "tool.pay", "paid from savings"),
        ("refund", "approval.requested", "perdure.model", "paid back"),
    ],
)
async def test_who_is_told_before_the_run_is_heard_as_soon_as_it_knows(
    engine: Engine, refused: list[NotWaitingYetError], name: str, kind: str, slow: str, result: str
) -> None:
    held = Held(slow)
    async with served(engine, held, name) as client:
        run = await client.start("clerk", "Go.")
        call_id = await told(run, kind)
        if kind == "approval.requested":
            saying = asyncio.create_task(run.approve(call_id, by="ana"))
        else:
            saying = asyncio.create_task(run.answer(call_id, "savings", by="ana"))
        await eventually(lambda: refused, what="an attempt that came too early")
        held.gate.open()
        assert (await saying).by == "ana"
        await run.result()
        parts = [part for message in await run.transcript() for part in message.tool_results]
        assert [part.content for part in parts] == [result]


async def test_a_call_that_never_waits_is_refused_in_the_end(
    engine: Engine, refused: list[NotWaitingYetError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "EARLY", 0.1)
    held = Held("perdure.model")
    async with served(engine, held, "read") as client:
        run = await client.start("clerk", "Go.")
        call_id = await told(run, "question.asked")
        for saying in (run.answer("other", 1), run.approve("other")):
            with pytest.raises(NotWaitingYetError, match="call 'other' does not wait for anybody yet"):
                await saying
        held.gate.open()
        await asked(run)
        tried = len(refused)
        with pytest.raises(InvalidInputError, match=f"There waits: '{call_id}'"):
            await run.answer("other", 1)
        assert len(refused) == tried
        await run.answer(call_id, 1)
        await run.result()


async def test_the_worker_is_killed_before_it_has_told_the_run(engine: Engine) -> None:
    doomed = await engine.process("asking", TEST_KILL_AT="model.recorded")
    client = await engine.client()
    run = await client.start("clerk", "Go.")
    saying = asyncio.create_task(run.answer(await told(run, "question.asked"), "opened", by="ana"))
    await doomed.gone()
    await engine.process("asking")
    assert ((said := await saying).call_id, said.by) == ("call_page", "ana")
    await asked(run)
    await run.answer("call_pay", "savings")
    assert (await run.result()).content == "Done."
