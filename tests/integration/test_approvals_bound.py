"""Approvals are bound to what was looked at, to who asked, and to the arguments that the tool gets."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Approval, Run, allow, ask, callback_tool, deny, hook, remote_tool, tool
from perdure.errors import ApprovalDecidedError, ApprovalForbiddenError, InvalidInputError
from perdure.testing import call, scripted
from perdure.types.approvals import WaitingCall
from perdure.types.events import ApprovalRequested
from perdure.types.messages import ToolCallPart
from tests.support.checks import assert_closed, results
from tests.support.wait import eventually

MODEL = "openai:gpt-5-mini"


@tool(needs_approval=True)
async def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount:g}"


@tool
async def delete(path: str, *, recursive: bool = False) -> str:
    """Delete."""
    return f"deleted {path} {recursive}"


@tool
async def refund(amount: Decimal) -> str:
    """Refund."""
    return f"refunded {amount}"


async def waiting(run: Run, **arguments: Any) -> WaitingCall:
    found: list[WaitingCall] = []

    async def there() -> bool:
        # In process a run may be asked between the reply and the step that begins the wait.
        begun = [one for one in (await run.status()).approvals if one.since is not None]
        found[:] = [one for one in begun if not arguments or one.arguments == arguments]
        return bool(found)

    await eventually(there, every=0.01)
    return found[0]


def asks(amount: int) -> ToolCallPart:
    return ToolCallPart(id="call_1", name="pay", arguments={"amount": amount})


async def decided(run: Run, **raw: Any) -> Any:
    """As any client sends it."""
    return await run.handle.execute_update("decide_approval", raw)


# --- row 9: what was looked at


async def test_a_provider_that_repeats_an_id_gets_nothing_approved_that_was_not_looked_at() -> None:
    agent = Agent("desk", MODEL, tools=[pay])
    async with scripted(agent, [asks(5), asks(50_000), "Done."]) as script:
        run = await script.client.start("desk", "Pay.")
        looked_at = await waiting(run, amount=5)
        (handle,) = await script.client.approvals()
        await run.interrupt("Pay more.")
        other = await waiting(run, amount=50_000)
        assert (looked_at.call_id, other.call_id == "call_1") == ("call_1", False)
        for refused in (
            run.approve("call_1", by="ana"),
            run.approve("call_1", by="ana", always=True),
            run.approve(by="ana", hash=looked_at.hash),
            handle.approve(by="ana"),
            run.approve(other.call_id, by="ana", hash=looked_at.hash),
        ):
            with pytest.raises(InvalidInputError):
                await refused
        await run.approve(other.call_id, by="ana")
        response = await run.result()
    assert_closed(response.messages)
    assert results(response.messages)[-1] == "paid 50000"


async def test_an_approval_without_a_hash_is_refused_from_any_client_and_a_denial_is_not() -> None:
    agent = Agent("desk", MODEL, tools=[pay])
    async with scripted(agent, [[call("pay", amount=1), call("pay", amount=2)], "Done."]) as script:
        run = await script.client.start("desk", "Pay.")
        first, second = await waiting(run, amount=1), await waiting(run, amount=2)
        for more in ({}, {"always": True}, {"arguments": {"amount": 1}}, {"hash": second.hash}):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await decided(run, call_id=first.call_id, decision="approve", by="ana", **more)
            assert "hash" in str(refused.value.cause)
        await decided(run, call_id=second.call_id, decision="deny", by="ana")
        await decided(run, call_id=first.call_id, decision="approve", by="ana", hash=first.hash)
        assert results((await run.result()).messages) == ["paid 1", "Denied by ana"]


async def test_a_decision_that_is_sent_again_by_name_is_given_back() -> None:
    @tool(needs_approval=True)
    async def wait() -> str:
        """Wait."""
        return "waited"

    agent = Agent("desk", MODEL, tools=[pay, wait])
    async with scripted(agent, [[call("pay", amount=1), call("wait")], "Done."]) as script:
        run = await script.client.start("desk", "Pay.")
        shown = await waiting(run, amount=1)
        first = await run.approve(shown.call_id, by="ana")
        assert await run.approve(shown.call_id, by=" Ana") == first
        with pytest.raises(ApprovalDecidedError):
            await run.approve(shown.call_id, by="bea")
        with pytest.raises(InvalidInputError, match="no call 'call_9' waits"):
            await run.approve("call_9", by="ana")
        await run.approve(by="ana")
        await run.result()
        assert await run.approve(shown.call_id, by="ana") == first


async def test_events_and_hooks_show_the_hash_that_an_approval_is_sent_with() -> None:
    heard: list[tuple[str, str]] = []

    @hook("on_approval")
    def notify(call_id: str, hash: str) -> None:
        heard.append((call_id, hash))

    agent = Agent("desk", MODEL, tools=[pay], hooks=[notify])
    async with scripted(agent, [call("pay", amount=1), "Done."]) as script:
        run = await script.client.start("desk", "Pay.")
        async for event in run.events():
            if isinstance(event, ApprovalRequested):
                assert heard == [(event.call_id, event.hash)]
                await run.approve(event.call_id, by="ana", hash=event.hash)
        assert results((await run.result()).messages) == ["paid 1"]


# --- row 5: what the tool gets


@pytest.mark.parametrize("value", [True, "true", 1, "yes", "1"])
async def test_a_rule_sees_the_value_that_the_tool_would_get(value: Any) -> None:
    agent = Agent("desk", MODEL, tools=[delete], approvals=[deny("delete", recursive=True), allow("*")])
    async with scripted(agent, [call("delete", path="/", recursive=value), "Done."]) as script:
        response = await (await script.client.start("desk", "Go.")).result()
    assert results(response.messages) == ["Denied: a rule of agent desk does not allow this call of delete"]


@pytest.mark.parametrize("value", [500, 500.0, "500", "5e2", "500.00"])
async def test_numbers_are_equal_by_value(value: Any) -> None:
    agent = Agent("desk", MODEL, tools=[refund], approvals=[deny("refund", amount=500), allow("*")])
    async with scripted(agent, [[call("refund", amount=value), call("refund", amount=499)], "Done."]) as script:
        response = await (await script.client.start("desk", "Go.")).result()
    assert results(response.messages) == [
        "Denied: a rule of agent desk does not allow this call of refund",
        "refunded 499",
    ]


async def test_arguments_that_a_person_puts_in_are_judged_as_the_tool_gets_them() -> None:
    rules = [deny("delete", recursive=True), ask("delete")]
    agent = Agent("desk", MODEL, tools=[delete], approvals=rules)
    async with scripted(agent, [call("delete", path="/x"), "Done."]) as script:
        run = await script.client.start("desk", "Go.")
        await waiting(run)
        await run.approve(by="ana", arguments={"path": "/x", "recursive": "true"})
        (result,) = results((await run.result()).messages)
    assert result.endswith("Denied: a rule of agent desk does not allow this call of delete")


async def test_the_rules_of_the_agent_above_see_it_too() -> None:
    worker = Agent("worker", MODEL, tools=[delete])
    boss = Agent("boss", MODEL, subagents=[worker], approvals=[deny("delete", recursive=True)])
    said = [call("delete", path="/", recursive="on"), "Done."]
    async with scripted(boss, [call("call_worker", task="Clean."), "Done."], others={worker: said}) as script:
        run = await script.client.start("boss", "Go.")
        await run.result()
        (child,) = await run.children()
        assert results(await child.transcript()) == ["Denied: a rule of agent boss does not allow this call of delete"]


async def test_a_policy_sees_it_too() -> None:
    @tool(needs_approval=lambda call, _: call.arguments["amount"] > 100)
    async def send(amount: int) -> str:
        """Send."""
        return f"sent {amount}"

    async with scripted(Agent("desk", MODEL, tools=[send]), [call("send", amount="50"), "Done."]) as script:
        response = await (await script.client.start("desk", "Go.")).result()
    assert results(response.messages) == ["sent 50"]


SCHEMA = {"type": "object", "properties": {"recursive": {}, "amount": {}}}


@pytest.mark.parametrize("arguments", [{"recursive": "true"}, {"recursive": 1}, {"amount": "500"}])
@pytest.mark.parametrize("far", [remote_tool("far", SCHEMA, "far"), callback_tool("far", "Far.", SCHEMA)])
async def test_what_cannot_be_told_of_a_tool_that_is_run_elsewhere_is_asked(far: Any, arguments: Any) -> None:
    agent = Agent("desk", MODEL, tools=[far], approvals=[deny("far", recursive=True), deny("far", amount=500)])
    async with scripted(agent, [call("far", **arguments), call("far", amount=500.0), "Done."]) as script:
        run = await script.client.start("desk", "Go.")
        assert (await waiting(run)).kind == "approval"
        await run.deny(by="ana")
        response = await run.result()
    assert results(response.messages) == [
        "Denied by ana",
        "Denied: a rule of agent desk does not allow this call of far",
    ]


# --- row 16: who asked


@tool(needs_approval=Approval(separate=True))
async def grant() -> str:
    """Grant."""
    return "granted"


async def test_the_first_of_many_who_asked_cannot_approve_under_any_spelling() -> None:
    @hook("before_llm_call")
    async def crowd(ctx: Any, iteration: int) -> None:
        for n in range(30 if iteration == 1 else 0):
            await script.client.run(ctx.run_id).inject("Me too.", by=f"p{n}")

    agent = Agent("desk", MODEL, tools=[grant], hooks=[crowd])
    async with scripted(agent, [call("grant"), "Done."]) as script:
        run = await script.client.start("desk", "Grant me that.", by="mallory")
        await waiting(run)
        for name in ("mallory", "Mallory ", "MALLORY", "\uff4dallory", "\tmallory\n", "P0", "  "):
            with pytest.raises(ApprovalForbiddenError if name.strip() else InvalidInputError):
                await run.approve(by=name)
        await run.approve(by="ana")
        assert results((await run.result()).messages) == ["granted"]


async def test_who_asked_the_run_above_cannot_approve_below() -> None:
    clerk = Agent("clerk", MODEL, tools=[grant])
    boss = Agent("boss", MODEL, subagents=[clerk])
    replies = [call("call_clerk", task="Grant."), "Done."]
    async with scripted(boss, replies, others={clerk: [call("grant"), "Done."]}) as script:
        run = await script.client.start("boss", "Grant me that.", by="Mallory")

        async def there() -> bool:
            return bool(await script.client.approvals(agent="clerk"))

        await eventually(there, every=0.01)
        (one,) = await script.client.approvals(agent="clerk")
        with pytest.raises(ApprovalForbiddenError, match="requested what led to"):
            await one.approve(by="mallory ")
        await one.approve(by="ana")
        await run.result()


# --- what hooks make of the arguments


def changing(amount: float) -> Any:
    @hook("before_tool_call")
    def change(arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, "amount": amount}

    return change


@tool
async def send(amount: float) -> str:
    """Send."""
    return f"sent {amount:g}"


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ([deny("send", amount=500)], "Denied: a rule of agent desk"),
        ([ask("send", amount=500)], "send needs a person's approval"),
        ([deny("send", amount=7)], "sent 500"),
    ],
)
async def test_rules_are_asked_again_where_a_hook_has_changed_the_arguments(rules: Any, says: str) -> None:
    agent = Agent("desk", MODEL, tools=[send], approvals=rules, hooks=[changing(500)])
    async with scripted(agent, [call("send", amount=5), "Done."]) as script:
        response = await (await script.client.start("desk", "Pay.")).result()
    (said,) = results(response.messages)
    assert said.startswith(says)
    assert ("change changed its arguments" in said) is (says != "sent 500")


@pytest.mark.parametrize(("amount", "says"), [(500, "pay was approved with other arguments: the hook"), (5, "paid 5")])
async def test_what_was_approved_is_what_the_tool_gets_whatever_hooks_do(amount: float, says: str) -> None:
    agent = Agent("desk", MODEL, tools=[pay], hooks=[changing(amount)])
    async with scripted(agent, [call("pay", amount=5), "Done."]) as script:
        run = await script.client.start("desk", "Pay.")
        await waiting(run, amount=5)
        await run.approve(by="ana")
        response = await run.result()
    assert results(response.messages)[0].startswith(says)


@pytest.mark.parametrize(("separate", "says"), [(False, "sent 500"), (True, "send needs a person's approval")])
async def test_what_is_approved_for_always_may_be_changed_by_hooks_as_far_as_rules_go(
    separate: bool, says: str
) -> None:
    rules = [ask("send", Approval(separate=separate), amount=500), ask("send")]
    agent = Agent("desk", MODEL, tools=[send], approvals=rules, hooks=[changing(500)])
    async with scripted(agent, [call("send", amount=5), call("send", amount=6), "Done."]) as script:
        run = await script.client.start("desk", "Pay.")
        await waiting(run, amount=5)
        await run.approve(by="ana", always=True)
        response = await run.result()
    first, second = results(response.messages)
    assert first.startswith("send was approved with other arguments")
    assert second.startswith(says)


@pytest.mark.parametrize(
    ("rules", "own"),
    [
        ([deny("far", amount=500), ask("far", Approval(separate=True, expires="1d"))], False),
        ([deny("far", amount=500)], Approval(separate=True, expires="1d")),
        ([deny("far", amount=500), ask("far", Approval(expires="1d"))], Approval(separate=True)),
    ],
)
async def test_a_call_in_doubt_waits_on_the_terms_that_it_would_have_had(rules: Any, own: Any) -> None:
    far = remote_tool("far", {"type": "object", "properties": {"amount": {}}}, "far", needs_approval=own)
    agent = Agent("desk", MODEL, tools=[far], approvals=rules)
    async with scripted(agent, [call("far", amount="400"), "Done."]) as script:
        run = await script.client.start("desk", "Pay.", by="mallory")
        one = await waiting(run, amount="400")
        assert (one.separate, one.expires is not None) == (True, True)
        await run.deny(by="ana")
        await run.result()
