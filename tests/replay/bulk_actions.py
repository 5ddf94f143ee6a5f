"""A bulk action whose history is stored: it resumes two runs, in two activities."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perdure import Agent, Run
from perdure.client.bulk_actions import BulkFilter
from perdure.errors import PerdureError
from perdure.testing import ScriptedProvider, at
from tests.replay.scenarios import scenario
from tests.support.engine import Engine
from tests.support.wait import eventually


@scenario
async def bulk_action_that_goes_on_behind_a_lost_record(engine: Engine) -> Run:
    agent = Agent("recorded", ScriptedProvider(["Done."] * 9))
    lost: list[int] = []

    def lose_the_record() -> None:
        if not lost:
            lost.append(1)
            raise asyncio.CancelledError

    async with engine.served(agent) as client:
        runs = [await client.start(agent, "Go.", id=f"bulk-{number}", mode="session") for number in range(2)]
        for run in runs:
            await run.turn().result()
            await run.cancel()
            with suppress(PerdureError):
                await run.result()
        with at("bulk.acted", lose_the_record):
            ids = BulkFilter(ids=tuple(run.id for run in runs))

            async def are_listed() -> bool:
                return (await client.bulk_actions.preview("resume", ids)).counts == {"pending": 2}

            await eventually(are_listed)
            action = await client.bulk_actions.start("resume", ids)
            bulk = client.run(f"perdure-bulk/{action.id}")
            await bulk.handle.result()
    return bulk
