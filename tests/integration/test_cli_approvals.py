"""``perdure approvals``, ``approve`` and ``deny``, in this process."""

from __future__ import annotations

import json

import pytest

from perdure import Agent, Approval, Run, tool
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool(needs_approval=True)
async def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount:g} of {order}"


async def test_what_waits_is_listed_approved_and_denied(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    asked = [call("refund", order=order, amount=5) for order in ("a", "b")]
    agent = Agent(f"desk-{engine.task_queue}", ScriptedProvider([asked, "Done."]), tools=[refund])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Pay them back.", by="customer")

        async def waiting() -> bool:
            return (await run.status()).doing == "approval"

        await eventually(waiting)
        first, second = (one.call_id for one in (await run.status()).approvals)
        listed = (await cli("approvals", "--agent", agent.name)).out
        assert f'{run.id}  {first}  {agent.name}: refund(amount=5, order="a")\n' in listed
        assert "    customer: Pay them back.\n" in listed
        whole = (await cli("approvals", "--agent", agent.name, "--full")).out
        assert "    user    Pay them back.\n    [1]     → refund(" in whole
        plain = json.loads((await cli("approvals", "--agent", agent.name, "--json")).out)
        assert [(one["call_id"], one["tool"], one["arguments"]["order"]) for one in plain] == [
            (first, "refund", "a"),
            (second, "refund", "b"),
        ]

        unnamed = await cli("approve", run.id)
        assert (unnamed.code, "2 calls of run" in unnamed.err, first in unnamed.err) == (2, True, True)
        other = await cli("approve", run.id, first, "--hash", plain[1]["hash"])
        assert (other.code, "its hash is another than the one sent" in other.err) == (2, True)
        changed = json.dumps({"order": "a", "amount": 2})
        approved = await cli(
            "approve", run.id, first, "--hash", plain[0]["hash"], "--by", "ana", "--arguments", changed
        )
        assert approved.out == "refund is approved by ana, with other arguments\n"
        mistaken = await cli("answer", run.id, second, "yes")
        assert (mistaken.code, "decide_approval" in mistaken.err) == (2, False)
        assert "Approve or deny it: perdure approve ID CALL" in mistaken.err
        for which in ((), (second,)):
            other = await cli("deny", run.id, *which, "--hash", plain[0]["hash"])
            assert (other.code, "`status`" in other.err) == (2, False)
            assert "has changed" in other.err or "its hash is another than the one sent" in other.err
        denied = await cli("deny", run.id, "-m", "too much", "--by", "bea", "--hash", plain[1]["hash"])
        assert denied.out == "refund is denied by bea\n"
        await run.result()
        late = await cli("approve", run.id, second, "--by", "cleo")
        assert late.code != 0
        assert "is already denied by bea" in late.err
        said = results(await run.transcript())
        told = (await cli("events", run.id)).out
        assert (await cli("approvals", "--agent", agent.name)).out == "no pending approvals or questions\n"
    async with engine.served(agent):  # by a service that never heard of the run: as when Temporal has forgotten it
        shown = (await cli("show", run.id)).out
        plain = (await cli("show", run.id, "-o", "json")).json
    assert said[0].endswith("refunded 2 of a")
    assert said[1] == "Denied by bea: too much"
    assert f"waits for approval: {first}" in told
    assert "(denied: refund by bea: too much)" in told
    assert f"refund ({first}): approved by ana at " in shown
    assert ", with other arguments\n" in shown
    assert f"refund ({second}): denied by bea at " in shown
    decided = [(one["call_id"], one["state"], one["by"], one["comment"]) for one in plain["decided"]]
    assert decided == [(first, "approved", "ana", None), (second, "denied", "bea", "too much")]


async def test_arguments_must_be_an_object(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    for wrong in ("{", "[1]"):
        refused = await cli("approve", "any", "--arguments", wrong)
        assert (refused.code, "--arguments" in refused.err) == (2, True)


async def test_an_own_call_is_refused_with_the_way_to_approve_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(needs_approval=Approval(separate=True))
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    cli = Commands(engine, monkeypatch, {"PERDURE_USER": "ana"})
    agent = Agent(f"payer-{engine.task_queue}", ScriptedProvider([call("pay", amount=3), "Done."]), tools=[pay])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Pay.", by="ana")
        await eventually(lambda: _is_asked(run))
        refused = await cli("approve", run.id)
        assert refused.code == 5
        assert "ana requested what led to call" in refused.err
        hint = "Another person must approve it, who names themselves: perdure approve ID CALL --by NAME\n"
        assert hint in refused.err
        assert (await cli("approve", run.id, "--by", "ben")).code == 0
        assert (await run.result()).content == "Done."


async def _is_asked(run: Run) -> bool:
    return bool((await run.status()).approvals)
