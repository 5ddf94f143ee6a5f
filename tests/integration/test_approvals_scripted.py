"""Approvals in process: the same workflow code, and what ``call(on_approval=…)`` does."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Run, tool
from perdure.client.inbox import PendingCall, list_pending_calls_of_run
from perdure.errors import ApprovalPendingError, InvalidInputError, ServerUnreachableError, StoreError
from perdure.local_engine import on_approval
from perdure.testing import ScriptedProvider, call, scripted
from perdure.testing.execution import Execution
from perdure.types.interface import FIRST_MESSAGE_MEMO, WAITING_MEMO
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool(needs_approval=True)
def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount:g} of {order}"


support = Agent("support", "openai:gpt-5", tools=[refund])
REPLIES: list[Any] = [call("refund", order="7", amount=3), "Done."]


def test_approve_approves() -> None:
    with scripted(support, REPLIES):
        response = support.call_sync("Go.", on_approval="approve")
    assert response.content == "Done."
    assert results(response.messages) == ["refunded 3 of 7"]


def test_a_function_decides() -> None:
    seen: list[PendingCall] = []

    def decide(one: PendingCall) -> bool:
        seen.append(one)
        return False

    with scripted(support, REPLIES):
        response = support.call_sync("Go.", on_approval=decide)
    assert [(one.tool, one.arguments) for one in seen] == [("refund", {"order": "7", "amount": 3})]
    assert results(response.messages)[0].startswith("Denied by ")


@pytest.mark.parametrize("wrong", [ServerUnreachableError("no answer"), StoreError("locked")])
def test_who_decides_looks_again_where_nobody_answered(monkeypatch: pytest.MonkeyPatch, wrong: Exception) -> None:
    """An outage that waiting for the answer outlives ends no call."""
    failed: list[Exception] = []

    async def looks(run: Run) -> list[PendingCall]:
        if not failed:
            failed.append(wrong)
            raise wrong
        return await list_pending_calls_of_run(run)

    monkeypatch.setattr(on_approval, "list_pending_calls_of_run", looks)
    with scripted(support, REPLIES):
        response = support.call_sync("Go.", on_approval="approve")
    assert failed
    assert results(response.messages) == ["refunded 3 of 7"]


def test_a_coroutine_function_decides_with_other_arguments() -> None:
    async def decide(one: PendingCall) -> None:
        await one.approve(by="ana", arguments={"order": "7", "amount": 1})

    with scripted(support, REPLIES):
        response = support.call_sync("Go.", on_approval=decide)
    assert results(response.messages)[0].endswith("refunded 1 of 7")


async def test_by_default_nobody_waits_in_silence() -> None:
    async with scripted(support, REPLIES) as script:
        with pytest.raises(ApprovalPendingError, match=r"waits for approval of refund\(") as refused:
            await support.call("Go.", id="order-7")
        assert "perdure approve order-7" in str(refused.value)
        run = script.client.run("order-7")
        assert (await run.status()).doing == "approval"
        await run.approve(by="ana")
        assert (await run.result()).content == "Done."


async def test_a_stream_is_told_too() -> None:
    async with scripted(support, REPLIES):
        pieces = [piece async for piece in support.stream("Go.", on_approval="approve")]
    assert "".join(pieces) == "Done."


async def test_a_stream_raises_where_nobody_decides() -> None:
    async with scripted(support, REPLIES) as script:
        with pytest.raises(ApprovalPendingError):
            [piece async for piece in support.stream("Go.", on_approval="raise")]
        (waiting,) = await script.client.approvals()
        await waiting.deny(by="ana")
        assert results((await waiting.run.result()).messages) == ["Denied by ana"]


def test_another_way_is_refused() -> None:
    with scripted(support, []), pytest.raises(InvalidInputError, match="on_approval is 'maybe'"):
        support.call_sync("Go.", on_approval="maybe")  # type: ignore[arg-type]  # that is what is tested


async def test_what_waits_in_a_subagent_does_not_wait_in_silence(engine: Engine) -> None:
    helper = Agent("helper", ScriptedProvider(REPLIES), description="Pays.", tools=[refund])
    asking = [call("call_helper", task="Pay."), "Settled."]
    one = Agent("asking", ScriptedProvider([*asking, *asking]), subagents=[helper])
    async with engine.served(one, helper) as client:
        with pytest.raises(ApprovalPendingError, match="waits for approval of refund"):
            await one.call("Go.", id=engine.task_queue, client=client, on_approval="raise")
        response = await one.call("Go.", id=engine.task_queue, client=client, on_approval="approve")
        assert response.content == "Settled."
        assert results(response.messages) == ["Done."]


async def test_runs_are_listed_by_what_they_wait_for() -> None:
    """The workflow indexes them as on a server."""
    async with scripted(support, REPLIES) as script:
        client = script.client
        run = await client.start("support", "Go.")

        async def listed() -> list[tuple[str, str]]:
            return [(one.agent, one.status) for one in await client.list(agent="support", status="waiting")]

        assert await eventually(listed) == [("support", "waiting")]
        await run.approve()
        await run.result()
        assert await listed() == []
        assert [one.status for one in await client.list()] == ["completed"]


async def test_what_is_no_decision_is_said_in_a_line_and_what_has_ended_too() -> None:
    async with scripted(support, REPLIES) as script:
        run = await script.client.start(support, "Go.")
        await eventually(lambda: _waits(run))
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"by": "x" * 300}, r"^by: .*at most 200 characters\.\n"),
            ({"comment": "x" * 3000}, r"^comment: .*at most 2000 characters\.\n"),
            ({"arguments": [("order", "7")]}, r"^arguments must be an object"),
        ]
        for given, match in wrong:
            with pytest.raises(InvalidInputError, match=match):
                await run.approve(**given)
        assert await _waits(run), "nothing was decided"
        await run.approve(by="ana")
        await run.result()
        with pytest.raises(InvalidInputError, match="was approved by ana"):
            await run.approve(by="ana")


async def _waits(run: Run) -> bool:
    return bool((await run.status()).approvals)


async def test_a_fork_names_an_iteration_and_a_difference_a_run() -> None:
    async with scripted(support, ["Done."]) as script:
        run = await script.client.start(support, "Go.")
        await run.result()
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"at": "1"}, "at must be the number of an iteration, not '1'"),
            ({"at": True}, "at must be the number of an iteration, not True"),
            ({"results": ["x"]}, "texts by call id, not"),
        ]
        for given, match in wrong:
            with pytest.raises(InvalidInputError, match=match):
                await run.fork("Again.", **given)
        with pytest.raises(InvalidInputError, match="diff needs a Run, not 'other'"):
            await run.diff("other")  # type: ignore[arg-type]  # the mistake that is shown


async def test_the_inbox_asks_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Temporal: what waits is in the memo."""

    def never(*asked: Any) -> Any:
        raise AssertionError(f"asked {asked}")

    calls = [call("refund", order="7", amount=3), call("refund", order="8", amount=4)]
    async with scripted(support, [calls, "Done."]) as script:
        run = await script.client.start("support", "Go.")

        async def inbox(count: int) -> list[PendingCall]:
            found = list(await script.client.approvals())
            return found if len(found) == count else []

        await eventually(lambda: inbox(2))
        monkeypatch.setattr(Execution, "query", never)
        first, second = await inbox(2)
        assert (second.run_id, second.agent, second.arguments) == (run.id, "support", {"order": "8", "amount": 4})
        assert (await (await run.handle.describe()).memo()).keys() == {"agent", FIRST_MESSAGE_MEMO, WAITING_MEMO}
        await first.approve()
        await eventually(lambda: inbox(1))
        await second.deny()
        await run.result()
        assert await script.client.approvals() == []
        assert (await (await run.handle.describe()).memo()).keys() == {"agent", FIRST_MESSAGE_MEMO}
