"""Decisions and answers for a run that has ended: its events say who was quicker. Without the store it is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Agent, Run, ToolContext, callback_tool, tool
from perdure.errors import ApprovalDecidedError, ApprovalExpiredError, QuestionDeclinedError, RunClosedError
from perdure.ports.store import EventBatch, NewEvent
from perdure.testing import ScriptedProvider, call
from perdure.types.approvals import DecidedApproval
from perdure.types.events import QuestionAsked, ToolCompleted
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


@tool
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    try:
        return f"paid from {await ctx.ask('Which account?')}"
    except QuestionDeclinedError:
        return "not paid"


read = callback_tool("read", "Read the page.")

Says = Callable[[Run, str, str], Awaitable[DecidedApproval]]


def answers(value: Any = None, error: str | None = None) -> Says:
    return lambda run, call_id, by: run.answer(call_id, value, error=error, by=by)


def approves(**more: Any) -> Says:
    return lambda run, call_id, by: run.approve(call_id, by=by, **more)


def denies(run: Run, call_id: str, by: str) -> Awaitable[DecidedApproval]:
    return run.deny(call_id, by=by, comment="no")


@pytest.mark.parametrize(
    ("asks", "says", "other", "how"),
    [
        (call("refund", amount=5), approves(), denies, "approved by ana"),
        (call("refund", amount=5), approves(arguments={"amount": 3}, comment="half"), approves(), "approved by ana"),
        (call("refund", amount=5), denies, approves(), "denied by ana"),
        (call("pay"), answers({"account": None}), answers("savings"), "answered by ana"),
        (call("pay"), answers(error="ask him"), answers("savings"), "answered by ana"),
        (call("read"), answers({"text": "ж"}), answers("other"), "answered by ana"),
        (call("read"), answers("ж" * 100_000), answers("other"), "answered by ana"),
        (call("read"), answers(error="the page is gone"), answers(error="another"), "answered by ana"),
    ],
)
async def test_the_events_of_a_run_that_has_ended_say_who_was_quicker(
    engine: Engine, asks: Any, says: Says, other: Says, how: str
) -> None:
    agent = Agent("clerk", ScriptedProvider([asks, "Done."]), tools=[refund, pay, read])
    async with engine.served(agent) as client:
        run = await client.start("clerk", "Go.")

        async def waits() -> str | None:
            return next((one.call_id for one in (await run.status()).approvals if one.since), None)

        call_id = str(await eventually(waits, every=0.01))
        first = await says(run, call_id, "ana")
        await run.result()
        again = await says(run, call_id, "Ana ")
        # Of a callback the events have the result as the model was told of it, and when.
        loose = {"at", "hash"} if asks.name == "read" else set()
        assert again.model_dump(exclude=loose) == first.model_dump(exclude=loose)
        for by, late in (("bea", says), ("ana", other)):
            with pytest.raises(ApprovalDecidedError, match=f"call '{call_id}' is already {how} at "):
                await late(run, call_id, by)
        for unknown in (says, other):
            with pytest.raises(RunClosedError):
                await unknown(run, "call_9", "ana")
        blind = (await engine.client(store=False)).run(run.id)
        for by in ("ana", "bea"):
            with pytest.raises(RunClosedError):
                await other(blind, call_id, by)


async def test_who_comes_after_the_time_and_the_end_of_the_run_is_told_so(engine: Engine) -> None:
    quick = callback_tool("quick", "Be quick.", expires=0.1)
    agent = Agent("clerk", ScriptedProvider([call("quick"), "Done."]), tools=[quick])
    async with engine.served(agent) as client:
        run = await client.start("clerk", "Go.")
        await run.result()
        (asked,) = [event async for event in run.events(wait=False) if event.type == "question.asked"]
        with pytest.raises(ApprovalExpiredError, match="has expired: no decision by"):
            await run.answer(asked.call_id, 1)
        with pytest.raises(RunClosedError):
            await (await engine.client(store=False)).run(run.id).answer(asked.call_id, 1)


async def test_an_event_without_a_time_says_of_no_call_that_its_time_is_over(engine: Engine) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(["Done."]))) as client:
        run = await client.start("clerk", "Go.")
        await run.result()
        asked = QuestionAsked(call_id="c", name="quick", at="2026-01-02T03:04:05+00:00", expires_in=1)
        events = [NewEvent(asked), NewEvent(ToolCompleted(call_id="c", name="quick", content="late"))]
        assert await (await client.store()).append(EventBatch(run.id, events))
        with pytest.raises(RunClosedError):
            await run.answer("c", 1)


@pytest.mark.parametrize("asks", [call("refund", amount=5), call("pay"), call("read")])
async def test_a_call_that_nobody_decided_on_is_closed_with_its_run(engine: Engine, asks: Any) -> None:
    agent = Agent("clerk", ScriptedProvider([asks]), tools=[refund, pay, read])
    async with engine.served(agent) as client:
        run = await client.start("clerk", "Go.")

        async def waits() -> str | None:
            return next((one.call_id for one in (await run.status()).approvals if one.since), None)

        call_id = str(await eventually(waits, every=0.01))
        await run.cancel()

        async def cancelled() -> bool:
            return (await run.status()).state == "cancelled"

        await eventually(cancelled, every=0.01)
        with pytest.raises(RunClosedError):
            await (denies(run, call_id, "ana") if asks.name == "refund" else run.answer(call_id, 1))
