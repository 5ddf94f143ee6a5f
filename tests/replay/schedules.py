"""A kind of run that a schedule begins, whose history is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure import Agent, Run
from perdure.testing import ScriptedProvider
from tests.replay.approvals import _waits, pay
from tests.replay.scenarios import _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import calls_then
from tests.support.wait import eventually


@scenario
async def scheduled(engine: Engine) -> Run:
    """The second for the same time: Temporal hands it the result of the first, and it goes on from its end."""
    paying = Agent("recorded", ScriptedProvider(calls_then(2, "pay", a=1, b=1)), tools=[pay])
    due = datetime(2026, 1, 1, tzinfo=UTC)
    async with engine.served(paying) as client:
        made = await client.schedule("recorded", "Go.", id=engine.task_queue, cron="0 0 1 1 *")
        run = client.run(f"schedule:{engine.task_queue}-2026-01-01T00:00:00Z")
        for count in (1, 2):
            await made.backfill(due - timedelta(minutes=1), due)

            async def begun(count: int = count) -> bool:
                return (await made.describe()).begun == count

            await eventually(begun)
            if count == 1:
                for _ in range(2):
                    await _waits(run, 1)
                    await run.approve(by="ana")
            await _end(run)
        await made.delete()
    return run
