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

from perdure import Agent, Client, Limits, PerdurePlugin, Run, ToolContext, callback_tool, tool, updates
from perdure import told as told_early
from perdure.errors import (
    ApprovalDecidedError,
    BadRequestError,
    InvalidInputError,
    NotWaitingYetError,
    RunCancelledError,
    TranscriptCorruptedError,
)
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call, fail
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
    """The outcomes of the activities of one type, ``only`` of one purpose, or of one agent's, reach Temporal when the
    gate opens."""

    def __init__(self, held: str, only: str | None = None, agent: str | None = None) -> None:
        self.held, self.gate = held, Gate()
        self.given = {name: value for name, value in (("purpose", only), ("agent", agent)) if value is not None}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        around = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                holds = activity.info().activity_type == around.held and around.given.items() <= _given(input).items()
                try:
                    return await self.next.execute_activity(input)
                finally:
                    if holds:
                        await around.gate()

        return Inbound(next)


def _given(input: ExecuteActivityInput) -> dict[str, str]:
    (given,) = input.args
    plain = activity.payload_converter().from_payload(given[0].payload) if isinstance(given, list | tuple) else given
    return {name: plain[name] for name in ("purpose", "agent") if isinstance(plain, dict) and name in plain}


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


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """What runs have told clients in this process of themselves."""
    seen: list[Status] = []
    status = Run.status

    async def looked(run: Run) -> Status:
        seen.append(await status(run))
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


TELLING = pytest.mark.parametrize(
    ("name", "kind", "slow", "result"),
    [
        ("read", "question.asked", "perdure.model", "savings"),
        ("pay", "question.asked", "tool.pay", "paid from savings"),
        ("refund", "approval.requested", "perdure.model", "paid back"),
    ],
)


@TELLING
async def test_who_is_told_before_the_run_is_heard_as_soon_as_it_knows(
    engine: Engine, refused: list[NotWaitingYetError], name: str, kind: str, slow: str, result: str
) -> None:
    held = Held(slow)
    async with served(engine, held, [call(name), "Done."]) as client:
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


@TELLING
async def test_the_only_call_need_not_be_named_before_the_run_has_heard_of_it(
    engine: Engine, looks: list[Status], name: str, kind: str, slow: str, result: str
) -> None:
    held = Held(slow)
    async with served(engine, held, [call(name), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await told(run, kind)
        looks.clear()
        if kind == "approval.requested":
            saying = asyncio.create_task(run.approve(by="ana"))
        else:
            saying = asyncio.create_task(run.answer(value="savings", by="ana"))
        await eventually(lambda: saying.done() or len(looks) > 1, what="another look")
        assert not any(status.approvals for status in looks)
        held.gate.open()
        assert (await saying).by == "ana"
        await run.result()
        parts = [part for message in await run.transcript() for part in message.tool_results]
        assert [part.content for part in parts] == [result]


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
    monkeypatch.setattr(told_early, "EARLY", 0.1)
    held = Held("perdure.model")
    async with served(engine, held, [call("read"), "Done."]) as client:
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


async def test_a_run_is_resumed_before_temporal_has_heard_that_it_failed(engine: Engine) -> None:
    broken = True

    def reply(_: ModelRequest) -> str:
        if broken:
            raise BadRequestError("no")
        return "Done."

    held = Held("perdure.model", only="close")
    async with served(engine, held, reply) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "failed")
        broken = False
        resuming = asyncio.create_task(run.resume(by="ana"))
        await eventually(lambda: held.gate.entered, what="the ending")
        await asyncio.wait([resuming], timeout=0.1)  # time to be too early
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."


async def test_a_run_is_resumed_before_it_has_heard_that_it_pauses(engine: Engine, looks: list[Status]) -> None:
    held = Held("perdure.model")
    async with served(engine, held, [fail(TranscriptCorruptedError("a node is missing")), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "paused")
        resuming = asyncio.create_task(run.resume(by="ana"))
        await eventually(lambda: resuming.done() or len(looks) > 1, what="another look")
        assert not resuming.done()
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."


async def test_a_failure_that_temporal_does_not_hear_of_is_not_waited_for_for_ever(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.sending.EARLY", 0.1)
    held = Held("perdure.model", only="close")
    async with served(engine, held, [fail(BadRequestError("no"))]) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "failed")
        await run.resume(by="ana")
        held.gate.open()
        with pytest.raises(BadRequestError):
            await run.result()


async def test_a_paused_run_is_resumed_by_a_client_whose_store_is_down(engine: Engine) -> None:
    async with served(engine, Held("none"), [fail(TranscriptCorruptedError("a node is missing")), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await eventually(lambda: _is_paused(run), what="the pause")
        other = Client(client.temporal, store_url="sqlite:////nowhere/store.db", task_queue=engine.task_queue)
        await other.run(run.id).resume(by="ana")
        await other.close()
        assert (await run.result()).content == "Done."


async def test_a_paused_run_is_resumed_while_it_has_no_worker(engine: Engine) -> None:
    replies = [fail(TranscriptCorruptedError("a node is missing")), "Done."]
    async with served(engine, Held("none"), replies) as client:
        run = await client.start("clerk", "Go.")
        await eventually(lambda: _is_paused(run), what="the pause")
    await run.resume(by="ana")
    async with served(engine, Held("none"), replies[1:]):
        assert (await run.result()).content == "Done."


async def _is_paused(run: Run) -> bool:
    return (await run.status()).state == "paused"


async def test_who_decides_on_what_he_has_looked_at_asks_nothing_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand runs on which two decide at once, one of each pair comes too late."""
    async with served(engine, Held("none"), [call("refund"), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        (one,), (same,) = await client.approvals(), await client.approvals()
        monkeypatch.setattr(Run, "status", None)
        await one.approve(by="ana")
        with pytest.raises(ApprovalDecidedError, match="by ana"):
            await same.deny(by="bea")


async def test_a_limit_is_raised_before_the_run_has_heard_that_it_pauses_there(
    engine: Engine, looks: list[Status]
) -> None:
    held = Held("perdure.model", only="close")
    options = {"limits": Limits(tokens=1), "on_limit": "pause"}
    async with served(engine, held, [call("free"), "Done."], **options) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "paused")
        resuming = asyncio.create_task(run.resume(limits={"tokens": 1000}, by="ana"))
        await eventually(lambda: resuming.done() or len(looks) > 1, what="another look")
        assert not resuming.done()
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."


async def test_a_run_that_somebody_else_has_opened_again_is_cancelled_by_who_had_started_it(engine: Engine) -> None:
    held = Held("none")
    async with served(engine, held, [fail(BadRequestError("no")), call("refund"), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        with pytest.raises(BadRequestError):
            await run.result()
        again = client.run(run.id)
        await again.resume()
        await asked(again)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await again.result()
        assert (await run.status()).state == "cancelled"
        await again.send("And now?")
        await again.result()
        assert ((status := await run.status()).state, status.reason) == ("completed", None)
