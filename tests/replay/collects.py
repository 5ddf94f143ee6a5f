"""Runs whose activity ends without a result, in the pause before its next attempt, and which collect what it had
recorded."""

from __future__ import annotations

from contextlib import suppress

from perdure import Run
from perdure.errors import PerdureError
from perdure.testing import call
from tests.integration.test_collect import CHARGES, PAYS, Till, between_attempts, damaged_reply, is_paused
from tests.replay.scenarios import scenario
from tests.support.engine import Engine
from tests.support.wait import eventually


async def _end(run: Run) -> Run:
    await run.close()
    with suppress(PerdureError):
        await run.result()
    return run


@scenario
async def collected_reply(engine: Engine) -> Run:
    async with between_attempts(engine, Till(*PAYS), "tool.recorded") as run:
        await run.interrupt("What have you paid?")
        await run.turn().result()
        return await _end(run)


@scenario
async def collected_answer(engine: Engine) -> Run:
    async with between_attempts(engine, Till("All is paid."), "model.recorded") as run:
        await run.interrupt()
        await run.turn().result()
        return await _end(run)


@scenario
async def collected_nothing(engine: Engine) -> Run:
    async with between_attempts(engine, Till(*PAYS), "model.answered") as run:
        await run.interrupt("What have you paid?")
        await run.turn().result()
        return await _end(run)


@scenario
async def collected_tools(engine: Engine) -> Run:
    replied = [*CHARGES, call("charge", n="2")]
    async with between_attempts(engine, Till(*replied), "tool.recorded") as run:
        await run.interrupt("What have you paid?")
        await run.turn().result()
        return await _end(run)


@scenario
async def collected_by_a_cancelled_run(engine: Engine) -> Run:
    async with between_attempts(engine, Till(*PAYS), "tool.claimed") as run:
        await run.cancel()
        with suppress(PerdureError):
            await run.result()
        return run


@scenario
async def collected_after_a_pause(engine: Engine) -> Run:
    """What is recorded cannot be read: the run pauses, and collects once more when it is resumed."""
    async with between_attempts(engine, Till(*PAYS), "tool.recorded") as run:
        with damaged_reply(engine):
            await run.interrupt("What have you paid?")
            await eventually(lambda: is_paused(run))
        await run.resume()
        await run.turn().result()
        return await _end(run)


@scenario
async def collected_after_a_pause_by_a_cancelled_run(engine: Engine) -> Run:
    async with between_attempts(engine, Till(*PAYS), "tool.recorded") as run:
        with damaged_reply(engine):
            await run.interrupt("What have you paid?")
            await eventually(lambda: is_paused(run))
        await run.cancel()
        with suppress(PerdureError):
            await run.result()
        return run
