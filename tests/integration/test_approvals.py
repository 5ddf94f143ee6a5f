"""Calls that wait for a person."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Approval, Run, RunContext, allow, ask, deny, hook, tool
from perdure.client.inbox import PendingCall
from perdure.errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ApprovalDecided, ApprovalRequested
from perdure.types.interface import Status
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

RAN: list[tuple[str, float]] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@tool(needs_approval=True)
async def refund(order: str, amount: float) -> str:
    """Refund an order."""
    RAN.append((order, amount))
    return f"refunded {amount:g} of {order}"


@tool
async def look(order: str) -> str:
    """Look at an order."""
    RAN.append((order, 0))
    return f"seen {order}"


def agent(*replies: Any, **options: Any) -> Agent:
    return Agent("support", ScriptedProvider(list(replies)), **{"tools": [refund, look], **options})


def asking(*names: str) -> list[Any]:
    return [[call("refund", order=name, amount=5) for name in names], "Done."]


async def waits(run: Run, count: int = 1) -> Status:
    """Until ``count`` calls wait, and nothing else is done."""
    seen: list[Status] = []

    async def there() -> bool:
        seen.append(await run.status())
        return seen[-1].doing == "approval" and len(seen[-1].approvals) == count

    await eventually(there, deadline=60, what=f"{count} calls that wait")
    return seen[-1]


async def told(run: Run) -> list[str]:
    transcript = await run.transcript()
    assert_closed(transcript)
    return results(transcript)


async def test_calls_wait_until_somebody_decides_and_the_others_of_the_reply_run_meanwhile(engine: Engine) -> None:
    calls = [*asking("a", "b")[0], call("look", order="c")]
    async with engine.served(agent(calls, "Done.")) as client:
        run = await client.start("support", "Go.")
        status = await waits(run, 2)
        assert RAN == [("c", 0)]
        first, second = status.approvals
        assert (status.state, first.tool, first.arguments) == ("waiting", "refund", {"order": "a", "amount": 5})
        with pytest.raises(InvalidInputError, match="2 calls of run"):
            await run.approve()
        decided = await run.approve(first.call_id, by="ana", comment="ok")
        assert (decided.state, decided.by, decided.comment) == ("approved", "ana", "ok")
        await run.deny(second.call_id, by="bea", comment="too much")
        assert (await run.result()).content == "Done."
        assert sorted(RAN) == [("a", 5), ("c", 0)]
        assert await told(run) == ["refunded 5 of a", "Denied by bea: too much", "seen c"]


async def test_an_approved_call_begins_while_others_are_still_running(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "at last"

    replies = [[call("slow"), call("refund", order="a", amount=5), call("refund", order="b", amount=6)], "Done."]
    async with engine.served(agent(*replies, tools=[refund, slow])) as client:
        run = await client.start("support", "Go.")
        await eventually(lambda: gate.entered, what="the slow tool")
        for one in (await run.status()).approvals:
            await run.approve(one.call_id, by="ana")
        await eventually(lambda: len(RAN) == 2, what="the calls that were approved")
        assert gate.left == 0
        gate.open()
        assert (await run.result()).content == "Done."
        assert await told(run) == ["at last", "refunded 5 of a", "refunded 6 of b"]


async def test_an_approval_expires_while_other_calls_are_still_running(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "at last"

    @tool(needs_approval=Approval(expires=0.3))
    async def denied() -> str:
        """Run only if a person says so."""
        return "ran"

    @tool(needs_approval=Approval(expires=0.3, on_expiry="approve"))
    async def approved() -> str:
        """Run unless a person says no."""
        RAN.append(("approved", 0.0))
        return "ran"

    replies = [[call("slow"), call("denied"), call("approved")], "Done."]
    async with engine.served(agent(*replies, tools=[slow, denied, approved])) as client:
        run = await client.start("support", "Go.")

        async def over() -> bool:
            return len((await run.status()).decided) == 2 and len(RAN) == 1

        await eventually(over, what="the end of the time to decide")
        assert gate.left == 0
        gate.open()
        await run.result()
        assert [one.split(":")[0] for one in await told(run)] == ["at last", "Expired", "ran"]


async def test_a_call_that_began_beside_others_is_stopped_with_them(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "at last"

    late = tool(slow.fn, name="late", needs_approval=True)
    async with engine.served(agent([call("slow"), call("late")], "Done.", tools=[slow, late])) as client:
        run = await client.start("support", "Go.")
        await eventually(lambda: gate.entered, what="the slow tool")
        await run.approve(by="ana")
        await eventually(lambda: gate.entered == 2, what="the call that was approved")
        await run.interrupt("Enough.")
        assert (await run.result()).content == "Done."
        assert gate.left == 2
        first, second = await told(run)
        assert first.startswith("Cancelled: slow")
        assert second.startswith("Cancelled: late")


async def test_edited_arguments_are_what_the_tool_gets_and_checks(engine: Engine) -> None:
    async with engine.served(agent(*asking("a", "b"))) as client:
        run = await client.start("support", "Go.")
        first, second = (one.call_id for one in (await waits(run, 2)).approvals)
        decided = await run.approve(first, arguments={"order": "a", "amount": 3})
        assert decided.changed
        await run.approve(second, arguments={"order": "b", "amount": "much"})
        await run.result()
        assert RAN == [("a", 3)]
        good, bad = await told(run)
        assert good == '(tests changed the arguments: {"amount": 3, "order": "a"})\nrefunded 3 of a'
        assert "the arguments of refund are not valid" in bad


@pytest.mark.parametrize("on_expiry", ["deny", "approve"])
async def test_an_approval_expires(engine: Engine, on_expiry: Any) -> None:
    quick = tool(refund.fn, name="refund", needs_approval=Approval(expires=0.5, on_expiry=on_expiry))
    async with engine.served(agent(*asking("a"), tools=[quick])) as client:
        run = await client.start("support", "Go.")
        await run.result()
        assert ([("a", 5)] if on_expiry == "approve" else []) == RAN
        (said,) = await told(run)
        assert said.startswith("refunded" if on_expiry == "approve" else "Expired: the call of ")
        asked = (await run.transcript())[1].tool_calls[0].id
        error = ApprovalDecidedError if on_expiry == "approve" else ApprovalExpiredError
        with pytest.raises(error, match="no decision by"):
            await run.approve(asked)


async def test_rules_of_the_agent_count_before_what_the_tool_says(engine: Engine) -> None:
    rules = [allow("refund", order="small-*"), deny("refund", order="no-*"), ask("look", order="[x]*")]
    replies = [
        [
            call("refund", order="small-1", amount=1),
            call("refund", order="no-1", amount=1),
            call("look", order="y"),
            call("look", order="x"),
        ],
        "Done.",
    ]
    async with engine.served(agent(*replies, approvals=rules)) as client:
        run = await client.start("support", "Go.")
        status = await waits(run)
        assert status.approvals[0].arguments == {"order": "x"}
        await run.approve()
        await run.result()
        paid, denied, *seen = await told(run)
        assert (paid, seen) == ("refunded 1 of small-1", ["seen y", "seen x"])
        assert denied.startswith("Denied: a rule of agent support")


async def test_a_policy_decides_call_by_call(engine: Engine) -> None:
    async def policy(asked: Any, ctx: RunContext) -> Any:
        assert ctx.context == {"limit": 10}
        if asked.arguments["order"] == "broken":
            raise LookupError("no such order")
        return asked.arguments["amount"] > ctx.context["limit"]

    checked = tool(refund.fn, name="refund", needs_approval=policy)
    calls = [call("refund", order=name, amount=amount) for name, amount in (("a", 5), ("b", 50), ("broken", 1))]
    async with engine.served(agent(calls, "Done.", tools=[checked])) as client:
        run = await client.start("support", "Go.", context={"limit": 10})
        status = await waits(run, 2)
        assert [one.arguments["order"] for one in status.approvals if one.arguments] == ["b", "broken"]
        assert RAN == [("a", 5)]
        for one in status.approvals:
            await run.approve(one.call_id)
        await run.result()
        assert len(RAN) == 3


async def test_an_inline_tool_that_a_rule_asks_for_is_an_activity(engine: Engine) -> None:
    inline = tool(look.fn, name="look", inline=True)
    async with engine.served(agent(call("look", order="a"), "Done.", tools=[inline], approvals=[ask("*")])) as client:
        run = await client.start("support", "Go.")
        await waits(run)
        assert RAN == []
        await run.approve()
        await run.result()
        assert RAN == [("a", 0)]


@pytest.mark.server
async def test_a_rule_that_a_deploy_brings_holds_for_calls_in_flight(engine: Engine) -> None:
    async with engine.served(agent(*asking("a"))) as client:
        run = await client.start("support", "Go.")
        await waits(run)
    rules = [deny("refund", order="a")]
    async with engine.served(agent("Done.", approvals=rules)):
        await run.approve(by="ana")
        await run.result()
        assert RAN == []
        assert (await told(run))[0].startswith("Denied: a rule of agent support")


@pytest.mark.server
async def test_what_is_no_decision_is_refused_without_a_trace(engine: Engine) -> None:
    async with engine.served(agent(*asking("a"))) as client:
        run = await client.start("support", "Go.")
        await waits(run)
        before = (await run.describe()).history_length
        for wrong in (None, "yes", {"call_id": "x"}, {"call_id": "x", "decision": "maybe"}):
            with pytest.raises(Exception, match="Workflow update failed"):
                await run.handle.execute_update("decide_approval", wrong)
        assert (await run.describe()).history_length == before
        await run.deny()
        await run.result()


async def test_events_and_hooks_say_what_waits_and_what_was_decided(engine: Engine) -> None:
    heard: list[Any] = []

    @hook("on_approval")
    def notify(name: str, arguments: dict[str, Any], call_id: str, expires_in: float | None, ctx: RunContext) -> None:
        heard.append((name, arguments, call_id, expires_in, ctx.run_id))

    terms = tool(refund.fn, name="refund", needs_approval=Approval(expires="7d"))
    async with engine.served(agent(*asking("a", "b"), tools=[terms], hooks=[notify])) as client:
        run = await client.start("support", "Go.")
        first, second = (one.call_id for one in (await waits(run, 2)).approvals)
        assert heard == [
            ("refund", {"order": "a", "amount": 5}, first, 604800.0, run.id),
            ("refund", {"order": "b", "amount": 5}, second, 604800.0, run.id),
        ]
        await run.approve(first, by="ana", arguments={"order": "a", "amount": 1})
        await run.deny(second, by="bea", comment="no")
        await run.result()
        events = [event async for event in run.events(wait=False)]
    asked = [event for event in events if isinstance(event, ApprovalRequested)]
    assert [(one.call_id, one.expires_in, one.on_expiry) for one in asked] == [
        (first, 604800.0, "deny"),
        (second, 604800.0, "deny"),
    ]
    decided = {event.call_id: event for event in events if isinstance(event, ApprovalDecided)}
    assert (decided[first].decision, decided[first].by) == ("approved", "ana")
    assert decided[first].arguments == {"order": "a", "amount": 1}
    assert (decided[second].decision, decided[second].by, decided[second].comment) == ("denied", "bea", "no")
    kinds = [(event.type, getattr(event, "call_id", None)) for event in events]
    assert kinds.index(("approval.decided", first)) < kinds.index(("tool.started", first))
    assert len(decided) == len([kind for kind, _ in kinds if kind == "approval.decided"])


async def test_a_call_of_a_subagent_waits_too(engine: Engine) -> None:
    helper = Agent("helper", ScriptedProvider(["Helped."]), description="Helps.")
    one = agent(call("call_helper", task="Help."), "Done.", subagents=[helper], approvals=[ask("call_*")])
    async with engine.served(one, helper) as client:
        run = await client.start("support", "Go.")
        (asked,) = (await waits(run)).approvals
        with pytest.raises(InvalidInputError, match="cannot be changed"):
            await run.approve(arguments={"task": "Hinder."})
        await run.approve(asked.call_id, by="ana")
        await run.result()
        assert await told(run) == ["Helped."]


@pytest.mark.server
async def test_of_many_runs_every_call_runs_once_with_what_its_winner_approved(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        said = request.messages[-1]
        return "Done." if said.role == "tool" else call("refund", order=said.text, amount=5)

    many = 10
    async with engine.served(Agent("desk", ScriptedProvider(reply), tools=[refund])) as client:
        runs = [await client.start("desk", str(n), id=f"{engine.task_queue}-{n}") for n in range(many)]

        async def all_wait() -> list[PendingCall]:
            found = [one for one in await client.approvals(agent="desk") if one.run_id.startswith(engine.task_queue)]
            return found if len(found) == many else []

        seen = await eventually(all_wait, deadline=60, every=0.5, what="all of them in the inbox")
        assert all(one.since is not None for one in seen)

        async def decide(name: str, amount: float | None) -> dict[str, str]:
            said: dict[str, str] = {}
            for one in seen:
                try:
                    if amount is None:
                        await one.deny(by=name)
                    else:
                        await one.approve(by=name, arguments={**(one.arguments or {}), "amount": amount})
                    said[one.run_id] = "won"
                except ApprovalDecidedError as error:
                    said[one.run_id] = str(error)
            return said

        terms = {"ana": 1.0, "bea": 2.0, "cleo": None}
        outcomes = await asyncio.gather(*(decide(name, amount) for name, amount in terms.items()))
        for run in runs:
            await run.result()
    for n, run in enumerate(runs):
        said = {name: outcome[run.id] for name, outcome in zip(terms, outcomes, strict=True)}
        (winner,) = [name for name, text in said.items() if text == "won"]
        how = f"{'denied' if terms[winner] is None else 'approved'} by {winner}"
        assert all(how in text for name, text in said.items() if name != winner)
        paid = [amount for order, amount in RAN if order == str(n)]
        assert paid == [amount for amount in (terms[winner],) if amount is not None]
