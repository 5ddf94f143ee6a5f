"""Reminders of calls that wait for a person."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import Agent, Approval, Client, Run, hook, tool
from perdure.errors import AbortError
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ApprovalReminded, ErrorEvent, RunEvent
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.wait import eventually

HEARD: list[tuple[str, int, float | None, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def _nothing_heard() -> None:
    HEARD.clear()


@hook("on_approval")
def notify(name: str, call_id: str, reminder: int, expires_in: float | None, arguments: dict[str, Any]) -> None:
    HEARD.append((name, reminder, expires_in, arguments))


def numbers() -> list[int]:
    return [number for _, number, _, _ in HEARD]


async def heard(count: int) -> None:
    await eventually(lambda: len(HEARD) >= count, deadline=60, what=f"{count} calls of the hook")


async def recorded(run: Run) -> list[ApprovalReminded]:
    return [event async for event in run.events(wait=False) if isinstance(event, ApprovalReminded)]


async def recorded_twice(run: Run) -> None:
    """Until two reminders are events: what the hook has heard is none yet, and a decision gives it up."""

    async def there() -> bool:
        return len(await recorded(run)) >= 2

    await eventually(there, deadline=60, what="two events")


def assert_told(told: list[ApprovalReminded]) -> None:
    """All that the hook was called with, in order; but one that a decision met on its way is no event."""
    assert len(told) >= 2
    assert [one.number for one in told] == numbers()[1 : len(told) + 1]
    assert len(numbers()) - 1 - len(told) in (0, 1)


def serve(engine: Engine, replies: list[Any], *tools: Any, **options: Any) -> AbstractAsyncContextManager[Client]:
    """Serves an agent with a tool ``refund`` of such terms."""
    return engine.served(_agent(replies, *tools, **options))


def _agent(replies: list[Any], *tools: Any, hooks: Any = (notify,), **terms: Any) -> Agent:
    @tool(needs_approval=Approval(**terms))
    async def refund(order: str) -> str:
        """Refund an order."""
        return f"refunded {order}"

    return Agent("support", ScriptedProvider(replies), tools=[refund, *tools], hooks=hooks)


REPLIES: list[Any] = [call("refund", order="a"), "Done."]


@pytest.mark.server
async def test_the_hook_is_told_again_until_somebody_decides(engine: Engine) -> None:
    async with serve(engine, REPLIES, remind=1, expires="1h") as client:
        run = await client.start("support", "Go.")
        await heard(3)
        await recorded_twice(run)
        (waiting,) = (await run.status()).approvals
        assert waiting.reminded >= 2
        await run.approve(by="ana")
        assert (await run.result()).content == "Done."
        told = await recorded(run)
        transcript = await run.transcript()
    assert numbers()[:3] == [0, 1, 2]
    assert [(name, arguments) for name, _, _, arguments in HEARD[:2]] == [("refund", {"order": "a"})] * 2
    first, second, third = (left for _, _, left, _ in HEARD[:3])
    assert first is not None
    assert second is not None
    assert third is not None
    # Of the hour. None comes before its time; how late one is says the machine.
    assert (first, 3000 < third < second <= 3599.01, third <= 3598.01) == (3600, True, True)
    assert_told(told)
    assert {(one.call_id, one.name) for one in told} == {(waiting.call_id, "refund")}
    assert_closed(transcript)
    assert results(transcript) == ["refunded a"]


async def test_a_hook_that_fails_hurts_no_run(engine: Engine) -> None:
    @hook("on_approval")
    def fails(reminder: int) -> None:
        if reminder:
            raise OSError("the chat is down")

    async with serve(engine, REPLIES, hooks=[fails, notify], remind=1) as client:
        run = await client.start("support", "Go.")
        await recorded_twice(run)
        await run.approve(by="ana")
        assert (await run.result()).content == "Done."
        events = [event async for event in run.events(wait=False)]
    assert_told([event for event in events if isinstance(event, ApprovalReminded)])
    assert not [event for event in events if isinstance(event, ErrorEvent)]


async def test_a_hook_may_end_the_run(engine: Engine) -> None:
    @hook("on_approval")
    def gives_up(reminder: int) -> None:
        if reminder == 1:
            raise AbortError("nobody cares")

    async with serve(engine, REPLIES[:1], hooks=[gives_up], remind=1) as client:
        run = await client.start("support", "Go.")
        with pytest.raises(AbortError, match="nobody cares"):
            await run.result()
        transcript = await run.transcript()
        events = [event async for event in run.events(wait=False)]
    assert_closed(transcript)
    assert results(transcript) == ["not run: the run was aborted"]
    assert [event.state for event in events if isinstance(event, RunEvent)] == ["started", "failed"]


@pytest.mark.server
async def test_a_decision_does_not_wait_for_a_hook(engine: Engine) -> None:
    never = asyncio.Event()

    @hook("on_approval")
    async def hangs(reminder: int) -> None:
        HEARD.append(("refund", reminder, None, {}))
        if reminder:
            await never.wait()

    async with serve(
        engine, [[call("refund", order="a"), call("refund", order="b")], "Done."], hooks=[hangs], remind=1
    ) as client:
        run = await client.start("support", "Go.")
        await heard(3)
        first, second = (await run.status()).approvals
        await run.approve(first.call_id, by="ana")
        await run.deny(second.call_id, by="ana")
        async with asyncio.timeout(30):  # the hook would take 60
            assert (await run.result()).content == "Done."
        assert results(await run.transcript()) == ["refunded a", "Denied by ana"]
        assert not [event async for event in run.events(wait=False) if isinstance(event, ErrorEvent)]


@pytest.mark.parametrize("terms", [{"remind": 1, "expires": "1h"}, {"remind": 1, "expires": 2.5}], ids=["told", "over"])
async def test_it_is_told_beside_calls_that_run_and_the_end_of_the_time_comes_too(
    engine: Engine, terms: dict[str, Any]
) -> None:
    over: list[bool] = []

    @tool
    async def work() -> str:
        """Work until the test says so."""
        await eventually(lambda: bool(over), deadline=120)
        return "worked"

    replies = [[call("work"), call("refund", order="a")], "Done."]
    async with serve(engine, replies, work, **terms) as client:
        run = await client.start("support", "Go.")

        async def expired() -> bool:
            return [one.state for one in (await run.status()).decided] == ["expired"]

        expires = terms["expires"] == 2.5
        await (eventually(expired, deadline=60) if expires else heard(3))
        assert [one.tool for one in (await run.status()).calls if one.tool != "refund"] == ["work"]
        if not expires:
            await run.deny(by="ana")
        over.append(True)
        await run.result()
        worked, said = results(await run.transcript())
    assert numbers() == list(range(len(HEARD)))
    assert not expires or len(HEARD) <= 3, "none comes behind the end of the time"
    assert (worked, said.startswith("Expired: the call of " if expires else "Denied by ana")) == ("worked", True)


async def test_an_interrupt_and_a_cancellation_come_through(engine: Engine) -> None:
    async with serve(engine, [*REPLIES[:1], *REPLIES[:1]], remind=1) as client:
        run = await client.start("support", "Go.")
        await heard(2)
        await run.interrupt("Try again.")
        await eventually(lambda: numbers().count(0) == 2, deadline=60)
        await eventually(lambda: numbers().count(1) == 2, deadline=60)
        await run.cancel()

        async def ended() -> bool:
            return (await run.status()).state == "cancelled"

        await eventually(ended, deadline=60)
        transcript = await run.transcript()
    assert_closed(transcript)
    first, second = results(transcript)
    assert (first.startswith("Interrupted"), second.startswith("Cancelled")) == (True, True)


@pytest.mark.server
async def test_it_goes_on_counting_over_continue_as_new(engine: Engine) -> None:
    async with engine.served(_agent(REPLIES, remind=1)) as client:
        run = await client.start("support", "Go.", max_history_events=15)
        await heard(4)
        assert (await run.describe()).run_id != run.handle.first_execution_run_id
        decided = await run.approve(by="ana")
        response = await run.result()
        told = await recorded(run)
    assert (decided.by, results(response.messages)) == ("ana", ["refunded a"])
    assert numbers() == list(range(len(HEARD)))
    assert_told(told)


@pytest.mark.server
async def test_a_worker_that_comes_late_tells_once_and_not_early(engine: Engine) -> None:
    async with engine.served(_agent(REPLIES, remind=1)) as client:
        run: Run = await client.start("support", "Go.")
        await heard(2)
    before, gone = len(HEARD), time.monotonic()
    await eventually(lambda: time.monotonic() > gone + 3, deadline=10, what="three reminders without a worker")
    async with engine.served(_agent(["Done."], remind=1)):
        await heard(before + 1)
        (waiting,) = (await run.status()).approvals
        assert waiting.since is not None
        await run.approve(by="ana")
        await run.result()
        passed = int((datetime.now(UTC) - datetime.fromisoformat(waiting.since)).total_seconds())
    assert numbers() == list(range(len(HEARD)))
    assert len(HEARD) - 1 <= passed - 2, "one for all that was missed, which were three"
