"""``status().decided`` says the same after the run's end as before it."""

from __future__ import annotations

from perdure import Agent, Run, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay a person."""
    return f"paid {to}"


@tool
async def order(ctx: ToolContext) -> str:
    """Order what the user wants."""
    return f"ordered {await ctx.ask('What?')}"


async def _waits(run: Run, count: int) -> bool:
    status = await run.status()
    return len(status.approvals) == count


async def test_decisions_and_answers_stay_after_the_end(engine: Engine) -> None:
    pays = [call("pay", to=to) for to in ("ada", "bob", "eve")]
    replies = [pays, call("order"), "Done.", "Again."]
    async with engine.served(Agent("payer", ScriptedProvider(replies), tools=[pay, order])) as client:
        run = await client.start("payer", "Go.", mode="session")
        await eventually(lambda: _waits(run, 3))
        a, b, d = [pending.call_id for pending in (await run.status()).approvals]
        await run.approve(a, by="ana", comment="fine")
        await run.deny(b, by="bo", comment="too much")
        await run.approve(d, by="ana", arguments={"to": "eva"})
        await eventually(lambda: _waits(run, 1))
        await run.answer((await run.status()).approvals[0].call_id, "tea", by="cy")
        await run.turn().result()
        open_status = await run.status()
        assert [row.state for row in open_status.decided] == ["approved", "denied", "approved", "answered"]
        await run.close()
        await run.result()
        closed_status = await run.status()
        assert closed_status.state == "completed"
        shown = {"call_id", "name", "state", "by", "at", "comment", "hash", "always", "changed"}
        assert [row.model_dump(include=shown) for row in closed_status.decided] == [
            row.model_dump(include=shown) for row in open_status.decided
        ]
        assert await run.status() == closed_status
        blind = await engine.client(store=False)
        assert (await blind.run(run.id).status()).decided == ()
