"""Standing approvals, and decisions that are sent twice."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Approval, Run, ask, deny, tool
from perdure.client.inbox import list_pending_calls_of_run
from perdure.errors import ApprovalDecidedError, ApprovalForbiddenError, InvalidInputError
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ApprovalDecided, ApprovalRevoked
from perdure.types.interface import Status
from tests.support.checks import assert_closed, results
from tests.support.cli import Cli
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool(needs_approval=True)
async def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount:g} of {order}"


def support(replies: list[Any], **options: Any) -> Agent:
    return Agent("support", ScriptedProvider(replies), tools=[refund], **options)


def pay(order: str, amount: float = 5) -> Any:
    return call("refund", order=order, amount=amount)


async def waits(run: Run, count: int = 1) -> Status:
    seen: list[Status] = []

    async def there() -> bool:
        seen.append(await run.status())
        return seen[-1].doing == "approval" and len(seen[-1].approvals) == count

    await eventually(there, deadline=60, what=f"{count} calls that wait")
    return seen[-1]


async def test_nobody_is_asked_again_until_it_is_revoked(engine: Engine) -> None:
    replies = [[pay("a"), pay("b")], "One.", pay("c"), "Two.", pay("d"), "Three."]
    async with engine.served(support(replies)) as client:
        turn = await client.send("support", "Go.", id="user-7", by="customer")
        run = turn.run
        first, second = (await waits(run, 2)).approvals
        decided = await run.approve(first.call_id, by="ana", always=True)
        assert (decided.by, decided.always) == ("ana", True)
        assert (await turn.result()).content == "One."
        assert (await (await run.send("And c.", by="customer")).result()).content == "Two."
        status = await run.status()
        assert [(one.tool, one.by, one.at) for one in status.standing] == [("refund", "ana", decided.at)]
        assert [(one.by, one.standing) for one in status.decided[1:]] == [("ana", decided.at)] * 2

        assert [one.by for one in await run.revoke("refund", by="bea")] == ["ana"]
        with pytest.raises(InvalidInputError, match="tool 'refund' has no standing approval"):
            await run.revoke("refund")
        last = await run.send("And d.")
        await waits(run)
        await run.deny(by="bea")
        assert (await last.result()).content == "Three."
        transcript = await run.transcript()
        assert_closed(transcript)
        assert results(transcript) == [*(f"refunded 5 of {n}" for n in "abc"), "Denied by bea"]
        events = [event async for event in run.events(wait=False) if isinstance(event, ApprovalDecided)]
        assert [
            (one.decision, one.by, one.always, one.standing) for one in events if one.call_id != second.call_id
        ] == [
            ("approved", "ana", True, None),
            ("approved", "ana", False, decided.at),
            ("denied", "bea", False, None),
        ]
        told = [event async for event in run.events(wait=False) if isinstance(event, ApprovalRevoked)]
        assert [(one.name, one.by, one.approved_by) for one in told] == [("refund", "bea", ("ana",))]
        await run.close()


async def test_rules_deny_all_the_same_and_who_asked_is_not_who_approves(engine: Engine) -> None:
    rules = [deny("refund", order="no-*"), ask("refund", Approval(separate=True))]
    async with engine.served(support([pay("a"), [pay("no-1"), pay("b")], "Done."], approvals=rules)) as client:
        run = await client.start("support", "Go.", by="bea")
        (first,) = (await waits(run)).approvals
        await run.inject("I ask for more.", by="ana")
        with pytest.raises(ApprovalForbiddenError, match="ana requested what led to"):
            await run.approve(first.call_id, by="ana", always=True)
        await run.approve(first.call_id, by="cleo", always=True)
        await run.result()
        paid, denied, again = results(await run.transcript())
        assert (paid, again) == ("refunded 5 of a", "refunded 5 of b")
        assert denied.startswith("Denied: a rule of agent support")


@pytest.mark.server
async def test_who_sends_a_decision_twice_gets_it_back(engine: Engine) -> None:
    async with engine.served(support([[pay("a"), pay("b")], "Done."])) as client:
        run = await client.start("support", "Go.", id="order-77")
        await waits(run, 2)
        first, second = await list_pending_calls_of_run(run)
        said: dict[str, Any] = {"by": "ana", "comment": "less", "arguments": {"order": "a", "amount": 1}}
        decided = await first.approve(**said)
        assert await first.approve(**said) == decided  # Temporal knows the update
        assert await run.approve(first.call_id, **said) == decided  # the run knows the decision
        with pytest.raises(ApprovalDecidedError, match="approved by ana"):
            await first.approve(by="ana")
        with pytest.raises(ApprovalDecidedError, match="approved by ana"):
            await first.approve(**said | {"by": "bea"})
        denied = await second.deny(by="bea")
        await run.result()
        assert await second.deny(by="bea") == denied  # also when it has ended
        assert await run.approve(first.call_id, **said) == decided
        with pytest.raises(ApprovalDecidedError, match="denied by bea"):
            await second.approve(by="ana")


async def test_a_fork_and_another_run_are_asked(engine: Engine) -> None:
    async with engine.served(support([pay("a"), "Done.", pay("b"), "Done."])) as client:
        run = await client.start("support", "Go.")
        await waits(run)
        await run.approve(by="ana", always=True)
        await run.result()
        fork = await run.fork("Once more.")
        await waits(fork)
        assert (await fork.status()).standing == ()
        await fork.deny()
        await fork.result()


@pytest.mark.server
async def test_it_is_carried_through_continue_as_new(engine: Engine) -> None:
    replies = [[pay(n) for n in "abcd"], *(pay(n) for n in "efgh"), "Done."]
    async with engine.served(support(replies)) as client:
        run = await client.start("support", "Go.", max_history_events=20)
        asked = (await waits(run, 4)).approvals[0]
        await run.approve(asked.call_id, by="ana", always=True)
        await run.result()
        assert (await run.describe()).run_id != run.handle.first_execution_run_id
        assert results(await run.transcript()) == [f"refunded 5 of {n}" for n in "abcdefgh"]


@pytest.mark.server
async def test_the_command_line_gives_shows_and_revokes_it(engine: Engine) -> None:
    cli = Cli(engine.folder, {"TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)})
    agent = Agent(f"desk-{engine.task_queue}", ScriptedProvider([pay("a"), pay("b"), "Done."]), tools=[refund])
    async with engine.served(agent) as client:
        turn = await client.send(agent, "Go.", id=engine.task_queue)
        run = turn.run
        await waits(run)
        assert "waits for approval: refund" in (await cli("show", run.id)).out
        approved = await cli("approve", run.id, "--always", "--by", "ana")
        assert approved.out == "refund is approved by ana, as all later calls of it\n"
        await turn.result()
        assert f"`perdure revoke {run.id} refund` takes it back" in (await cli("show", run.id)).out
        told = (await cli("events", run.id)).out
        assert "(approved: refund by ana, as all later calls of it)" in told
        assert "(approved: refund by ana, standing since " in told
        revoked = await cli("revoke", run.id, "refund", "--by", "bea")
        assert revoked.out.startswith("calls of refund wait again; ana had approved them at ")
        again = await cli("revoke", run.id, "refund")
        assert (again.code, "This run has no standing approvals" in again.err) == (2, True)
        await run.close()
        await run.handle.result()  # nothing came behind it but the ending
        told = (await cli("events", run.id)).out
        assert "(revoked by bea: refund waits for approval again; all its calls were approved by ana)" in told
