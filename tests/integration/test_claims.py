"""A call that never began runs, also if a worker was stopped when it was about to begin it."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, hook, tool
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


async def test_a_worker_that_is_stopped_in_a_hook_before_the_call_leaves_it_to_the_next(engine: Engine) -> None:
    paid: list[str] = []
    hooked = 0
    go = asyncio.Event()

    @tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay a person."""
        paid.append(to)
        return f"paid {to}"

    @hook("before_tool_call")
    async def check() -> None:
        """Look something up."""
        nonlocal hooked
        hooked += 1
        await go.wait()

    agent = Agent("payer", ScriptedProvider([call("pay", to="bob"), "Done."]), tools=[pay], hooks=[check])

    async with engine.served(agent, drain=0.1) as client:
        run = await client.start("payer", "Pay bob.")

        async def asks() -> bool:
            return bool((await run.status()).approvals)

        await eventually(asks)
        await run.approve()
        await eventually(lambda: hooked == 1)
    assert paid == []
    go.set()
    async with engine.served(agent) as client:
        response = await asyncio.wait_for(client.run(run.id).result(), 60)
    assert (results(response.messages), paid) == (["paid bob"], ["bob"])
    assert hooked == 2
