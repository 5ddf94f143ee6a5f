"""A worker killed around each side of a call that is run elsewhere: it is sent once, and never seen unguarded."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import Any

import pytest
from temporalio import activity

from tests.integration.test_questions import asked
from tests.integration.test_remote_tools import elsewhere
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine, side_by_side

pytestmark = pytest.mark.server

SIDES = {"before": 1, "after": 2}
"""Which time a point of tool calls is reached there."""


KILLED_AT = [("pay", "tool.acted"), ("pay", "tool.recorded"), ("show", "tool.acted")]


@pytest.mark.slow
async def test_a_worker_killed_around_a_hook(engine: Engine) -> None:
    scenarios = {
        f"{agent} {point} {side}": partial(_killed_at, agent=agent, point=point, side=side)
        for agent, point in KILLED_AT
        for side in SIDES
    }
    await side_by_side(engine, scenarios)


async def _killed_at(engine: Engine, *, agent: str, point: str, side: str) -> None:
    sent: list[Any] = []

    @activity.defn(name="tool.pay")
    async def pay(arguments: dict[str, Any]) -> str:
        sent.append(arguments)
        return "the secret"

    client = await engine.client()
    count = str(SIDES[side])
    async with elsewhere(engine, pay):
        doomed = await engine.process("elsewhere", TEST_KILL_AT=point, TEST_KILL_COUNT=count)
        run = await client.start(agent, "Go.")
        if agent == "show" and side == "after":
            (one,) = await asked(run)
            await run.answer(one.call_id, "the secret", by="ana")
        assert await doomed.gone() == -signal.SIGKILL
        await engine.process("elsewhere")
        if agent == "show" and side == "before":
            (one,) = await asked(run)
            assert one.arguments == {"card": "***"}
            await run.answer(one.call_id, "the secret", by="ana")
        response = await asyncio.wait_for(run.result(), 60)
    assert_closed(response.messages)
    assert results(response.messages) == ["the ***"]
    assert sent == ([{"card": "***"}] if agent == "pay" else [])
    counts = {what: sum(engine.ledger.counts(what).values()) for what in SIDES}
    again = point == "tool.acted"  # the hooks had run, and it was not recorded
    assert counts == {"before": 1, "after": 1} | ({side: 2} if again else {})
    assert await client.memory.list("after") == {"call_1": 1}, "what hooks write is kept once"
    kinds = [event.type async for event in run.events(wait=False)]
    assert [kinds.count(kind) for kind in ("tool.started", "tool.completed")] == [1, 1]
