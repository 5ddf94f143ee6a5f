"""Kinds of runs with calls that wait for a person, whose histories are stored."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from perdure import Agent, Approval, Run, tool
from perdure.errors import PerdureError
from perdure.testing import ScriptedProvider, call
from tests.replay.scenarios import TOOLS, _end, add, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pay = tool(add.fn, name="pay", needs_approval=True)
quick = tool(add.fn, name="quick", needs_approval=Approval(expires=0.3))
nagging = tool(add.fn, name="nagging", needs_approval=Approval(remind=1))
brief = tool(add.fn, name="brief", needs_approval=Approval(expires=1.5, remind=1))
trusting = tool(add.fn, name="trusting", needs_approval=Approval(expires=0.3, on_expiry="approve"))


def _agent(*calls: Any) -> Agent:
    replies = ScriptedProvider([list(calls), "Done."])
    return Agent("recorded", replies, tools=[*TOOLS, pay, quick, trusting])


async def _waits(run: Run, count: int) -> list[str]:
    async def there() -> list[str]:
        status = await run.status()
        ids = [one.call_id for one in status.approvals]
        return ids if status.doing == "approval" and len(ids) == count else []

    return await eventually(there)


@scenario
async def approvals_decided(engine: Engine) -> Run:
    """Approved, approved with other arguments, and denied, by several people at once; another call runs meanwhile."""
    calls = [call("pay", a=n, b=1) for n in range(3)]
    async with engine.served(_agent(call("add", a=1, b=1), *calls)) as client:
        run = await client.start("recorded", "Go.")
        first, second, third = await _waits(run, 3)
        await run.approve(first, by="ana", comment="ok")
        await asyncio.gather(
            run.approve(second, by="bea", arguments={"a": 7, "b": 7}),
            run.deny(third, by="cleo", comment="no"),
            run.approve(third, by="ana"),
            return_exceptions=True,
        )
        await _end(run)
    return run


@scenario
async def approvals_expire(engine: Engine) -> Run:
    """One is denied and one approved by the end of their time, with a timer each."""
    async with engine.served(_agent(call("quick", a=1, b=1), call("trusting", a=2, b=2))) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def approvals_continue_as_new(engine: Engine) -> Run:
    """The history is too long before the wait; the decision comes to the next execution."""
    adding = [call("add", a=n, b=n) for n in range(4)]
    async with engine.served(_agent(call("pay", a=1, b=1), *adding)) as client:
        run = await client.start("recorded", "Go.", max_history_events=15)
        await _waits(run, 1)
        await run.approve(by="ana")
        await _end(run)
    return run


@scenario
async def approval_expires_beside_others(engine: Engine) -> Run:
    """Its time ends while another call runs."""
    gate = Gate()

    @tool(name="gated")
    async def gated() -> str:
        """Wait."""
        await gate()
        return "at last"

    replies = ScriptedProvider([[call("gated"), call("quick", a=2, b=2)], "Done."])
    async with engine.served(Agent("recorded", replies, tools=[gated, quick])) as client:
        run = await client.start("recorded", "Go.")

        async def expired() -> bool:
            return bool((await run.status()).decided)

        await eventually(expired, deadline=30, what="the end of the time")
        gate.open()
        await _end(run)
    return run


@scenario
async def approvals_reminded(engine: Engine) -> Run:
    """Reminders beside a call that runs, while nothing runs, and over continue-as-new; one expires, one is decided."""
    gate = Gate()

    @tool(name="gated")
    async def gated() -> str:
        """Wait."""
        await gate()
        return "at last"

    replies = ScriptedProvider([[call("gated"), call("nagging", a=1, b=1), call("brief", a=2, b=2)], "Done."])
    async with engine.served(Agent("recorded", replies, tools=[gated, nagging, brief])) as client:
        run = await client.start("recorded", "Go.", max_history_events=15)

        async def reminded(count: int) -> bool:
            status = await run.status()
            return [one.reminded >= count for one in status.approvals] == [True]

        await eventually(partial(reminded, 2), deadline=30, what="two reminders of one, and the other's end")
        gate.open()
        await eventually(partial(reminded, 4), deadline=30, what="four reminders")
        await run.approve(by="ana")
        await _end(run)
    return run


@scenario
async def approvals_for_always(engine: Engine) -> Run:
    """One decision for several calls and later ones, sent twice; revoked, and the next call waits."""
    replies = [[call("pay", a=n, b=1) for n in range(2)], call("pay", a=2, b=1), "One.", call("pay", a=3, b=1), "Two."]
    async with engine.served(Agent("recorded", ScriptedProvider(replies), tools=[*TOOLS, pay])) as client:
        turn = await client.send("recorded", "Go.", id=f"always-{engine.task_queue}")
        first, _ = await _waits(turn.run, 2)
        for _time in range(2):
            await turn.run.approve(first, by="ana", always=True)
        await turn.result()
        await turn.run.revoke("pay", by="bea")
        turn = await turn.run.send("More.")
        await _waits(turn.run, 1)
        await turn.run.deny(by="bea")
        await turn.result()
        await turn.run.close()
        await _end(turn.run)
    return turn.run


@scenario
async def approvals_interrupted(engine: Engine) -> Run:
    """Closed by an interrupt while they wait, and a decision comes too late."""
    async with engine.served(_agent(call("pay", a=1, b=1))) as client:
        run = await client.start("recorded", "Go.")
        (asked,) = await _waits(run, 1)
        await run.interrupt("Never mind.")
        try:
            await run.approve(asked, by="ana")
        except PerdureError as error:
            print(f"  refused with {type(error).__name__}")
        await _end(run)
    return run


@scenario
async def approvals_cancelled(engine: Engine) -> Run:
    """Closed by a cancellation while they wait."""
    async with engine.served(_agent(call("pay", a=1, b=1))) as client:
        run = await client.start("recorded", "Go.")
        await _waits(run, 1)
        await run.cancel()
        await _end(run)
    return run


@scenario
async def approvals_beside_others(engine: Engine) -> Run:
    """Two calls are approved while another one runs, and begin at once."""
    gate = Gate()

    @tool(name="gated")
    async def gated() -> str:
        """Wait."""
        await gate()
        return "at last"

    replies = ScriptedProvider([[call("gated"), call("pay", a=1, b=1), call("pay", a=2, b=2)], "Done."])
    async with engine.served(Agent("recorded", replies, tools=[gated, pay])) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: gate.entered, what="the other call")
        for one in (await run.status()).approvals:
            await run.approve(one.call_id, by="ana")
            await eventually(partial(_ran, run, one.call_id), what="the approved call")
        gate.open()
        await _end(run)
    return run


async def _ran(run: Run, call_id: str) -> bool:
    """Whether its result is there, while the other call runs."""
    events = [event async for event in run.events(wait=False)]
    return any(event.type == "tool.completed" and event.call_id == call_id for event in events)
