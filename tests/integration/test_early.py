"""Approvals and answers of a client that follows the events: they may come before the run itself knows that it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, Client, PerdurePlugin, Run, ToolContext, callback_tool, tool
from perdure.client import decisions, follow
from perdure.client.inbox import list_pending_calls_of_run
from perdure.errors import ApprovalDecidedError, InvalidInputError, NotWaitingYetError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.approvals import DecidedApproval
from perdure.types.events import Event
from perdure.types.interface import Status
from perdure.types.messages import ToolCallPart
from tests.integration.test_questions import asked
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
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


@tool
def free() -> str:
    """Cost nothing."""
    return "free"


class Held(Interceptor):
    """The outcomes of the activities of one type, or of one agent's, reach Temporal when the gate opens."""

    def __init__(self, held: str, agent: str | None = None) -> None:
        self.held, self.gate = held, Gate()
        self.agent = agent

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        around = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                holds = activity.info().activity_type == around.held and around.agent in (None, _read_agent(input))
                try:
                    return await self.next.execute_activity(input)
                finally:
                    if holds:
                        await around.gate()

        return Inbound(next)


def _read_agent(input: ExecuteActivityInput) -> str | None:
    (given,) = input.args
    plain = activity.payload_converter().from_payload(given[0].payload) if isinstance(given, list | tuple) else given
    return plain.get("agent") if isinstance(plain, dict) else None


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[NotWaitingYetError]:
    """What clients in this process were refused with, and have tried again after."""
    seen: list[NotWaitingYetError] = []
    send = decisions._send_update_once

    async def sent(*args: Any) -> Any:
        try:
            return await send(*args)
        except NotWaitingYetError as early:
            seen.append(early)
            raise

    monkeypatch.setattr(decisions, "_send_update_once", sent)
    return seen


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """What runs have told clients in this process of themselves."""
    seen: list[Status] = []
    status = Run.status

    async def looked(run: Run, **options: Any) -> Status:
        seen.append(await status(run, **options))
        return seen[-1]

    monkeypatch.setattr(Run, "status", looked)
    return seen


@asynccontextmanager
async def served(engine: Engine, held: Held, replies: Any, **options: Any) -> AsyncIterator[Client]:
    agent = Agent("clerk", ScriptedProvider(replies), tools=[read, refund, pay, free], **options)
    client = await engine.client()
    plugin = PerdurePlugin([agent], store_url=engine.store_url)
    async with TemporalWorker(client.temporal, task_queue=engine.task_queue, plugins=[plugin], interceptors=[held]):
        yield client


async def told(run: Run, kind: str, state: str | None = None) -> str:
    """Until the run says so; the id of the call that it says it of."""
    async for event in run.events():
        if event.type == kind and (state is None or getattr(event, "state", None) == state):
            return str(getattr(event, "call_id", None))
    raise AssertionError(f"the run ended without {kind}")


async def says(run: Run, kind: str, call_id: str | None = None) -> DecidedApproval:
    """What ana says to what an event of that type is about."""
    if kind == "approval.requested":
        return await run.approve(call_id, by="ana")
    return await run.answer(call_id, "savings", by="ana")


async def results(run: Run) -> list[str]:
    return [part.content for message in await run.transcript() for part in message.tool_results]


@pytest.mark.parametrize(
    ("name", "kind", "slow", "result"),
    [
        ("read", "question.asked", "perdure.model", "savings"),
        ("pay", "question.asked", "tool.pay", "paid from savings"),
        ("refund", "approval.requested", "perdure.model", "paid back"),
    ],
)
async def test_who_is_told_before_the_run_is_heard_as_soon_as_it_knows(
    engine: Engine,
    refused: list[NotWaitingYetError],
    looks: list[Status],
    name: str,
    kind: str,
    slow: str,
    result: str,
) -> None:
    held = Held(slow)
    async with served(engine, held, [call(name), "Done."] * 2) as client:
        run = await client.start("clerk", "Go.")
        call_id = await told(run, kind)
        saying = asyncio.create_task(says(run, kind, call_id))
        await eventually(lambda: refused, what="an attempt that came too early")
        held.gate.open()
        assert (await saying).by == "ana"
        await run.result()
        assert await results(run) == [result]
        # The only call need not be named.
        held.gate = Gate()
        run = await client.start("clerk", "Go.")
        await told(run, kind)
        looks.clear()
        saying = asyncio.create_task(says(run, kind))
        await eventually(lambda: saying.done() or len(looks) > 1, what="another look")
        assert not any(status.approvals for status in looks)
        held.gate.open()
        assert (await saying).by == "ana"
        await run.result()
        assert await results(run) == [result]


async def test_what_was_decided_already_is_no_call_that_the_run_is_still_to_hear_of(
    engine: Engine, looks: list[Status]
) -> None:
    held = Held("tool.refund")
    async with served(engine, held, [call("refund"), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        await run.approve(by="ana")
        await eventually(lambda: held.gate.entered, what="the tool")
        looks.clear()
        with pytest.raises(InvalidInputError, match="was approved by ana"):
            await run.approve(by="ana")
        with pytest.raises(InvalidInputError, match="waits for an answer"):
            await run.answer(value=1)
        assert len(looks) == 2
        held.gate.open()
        await run.result()


async def test_who_repeats_himself_while_the_model_is_asked_for_more_is_answered_at_once(
    engine: Engine, looks: list[Status]
) -> None:
    model = Gate()

    async def reply(request: ModelRequest) -> Any:
        if not replied(request):
            return ToolCallPart(id="call_0", name="read", arguments={})
        await model()
        return "Done."

    async with served(engine, Held("none"), reply) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        first = await run.answer("call_0", "said", by="ana")

        async def asked_again() -> list[Event]:
            started = [event async for event in run.events(wait=False) if event.type == "model.started"]
            return started[1:]

        await eventually(asked_again, what="the second model call")
        looks.clear()
        assert await run.answer("call_0", "said", by="ana") == first
        with pytest.raises(ApprovalDecidedError, match="answered by ana"):
            await run.answer("call_0", "other", by="ana")
        assert not looks
        model.open()
        await run.result()


async def test_a_call_that_never_waits_is_refused_in_the_end(
    engine: Engine, refused: list[NotWaitingYetError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CATCH_UP_SECONDS", 0.1)
    held = Held("perdure.model")
    async with served(engine, held, [call("read"), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        call_id = await told(run, "question.asked")
        for saying in (run.answer("other", 1), run.approve("other")):
            with pytest.raises(NotWaitingYetError, match="call 'other' does not wait for a person yet"):
                await saying
        held.gate.open()
        await asked(run)
        tried = len(refused)
        with pytest.raises(InvalidInputError, match=f"Waiting calls: '{call_id}'"):
            await run.answer("other", 1)
        assert len(refused) == tried
        await run.answer(call_id, 1)
        await run.result()


async def test_the_worker_is_killed_before_it_has_told_the_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "CATCH_UP_SECONDS", 120)  # as long as another worker may take to come
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


async def test_who_decides_on_what_he_has_looked_at_asks_nothing_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand runs on which two decide at once, one of each pair comes too late."""
    async with served(engine, Held("none"), [call("refund"), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        (one,), (same,) = [await list_pending_calls_of_run(run) for _ in range(2)]
        monkeypatch.setattr(Run, "status", None)
        await one.approve(by="ana")
        with pytest.raises(ApprovalDecidedError, match="by ana"):
            await same.deny(by="bea")
