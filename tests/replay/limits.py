"""Kinds of runs at limits whose histories are stored: each end, and people who raise a limit."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Limits, Run
from perdure.testing import ScriptedProvider, call
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


def _looking(calls: int = 1, **options: Any) -> Agent:
    """It calls tools for ever, ``calls`` at once, unless it is asked for its answer."""

    def reply(request: Any) -> Any:
        if not request.tools or replied(request) > 8:
            return "All I know is this."
        return ["Still looking.", *(call("add", a=n, b=1) for n in range(calls))]

    return Agent("recorded", ScriptedProvider(reply), tools=TOOLS, **options)


async def _at(run: Run, used: float) -> None:
    """Until it is paused at a limit of which so much is used."""

    async def paused() -> bool:
        use = (await run.status()).at_limit
        return use is not None and use.used == used

    await eventually(paused)


async def _one(engine: Engine, **options: Any) -> Run:
    async with engine.served(_looking(**options)) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def budget_finish(engine: Engine) -> Run:
    return await _one(engine, limits=Limits(tokens=30, wall_time="1h"))


@scenario
async def budget_return(engine: Engine) -> Run:
    return await _one(engine, limits=Limits(iterations=2), on_limit="return")


@scenario
async def budget_error(engine: Engine) -> Run:
    return await _one(engine, limits=Limits(turn=Limits(wall_time=0.001)), on_limit="error")


@scenario
async def tool_calls_refused(engine: Engine) -> Run:
    return await _one(engine, calls=3, limits=Limits(tool_calls=4))


@scenario
async def tool_calls_raised(engine: Engine) -> Run:
    """Calls are held back, and run when the limit is raised; in between it continues as new."""
    agent = _looking(calls=3, limits=Limits(tool_calls=4), on_limit="pause")
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.", max_history_events=20)
        await _at(run, 4)
        await run.resume()
        await run.resume(limits={"tool_calls": 11})
        await _at(run, 11)
        await run.interrupt()
        await _end(run)
    return run


@scenario
async def iterations_raised(engine: Engine) -> Run:
    async with engine.served(_looking(max_iterations=2, on_limit="pause")) as client:
        run = await client.start("recorded", "Go.")
        await _at(run, 2)
        await run.inject("And now?")
        await run.resume(limits={"max_iterations": 4})
        await _at(run, 4)
        await run.cancel()
        await _end(run)
    return run


@scenario
async def session_with_budgets(engine: Engine) -> Run:
    """The third turn finds nothing left."""
    agent = _looking(limits=Limits(iterations=4, turn=Limits(iterations=2)))
    async with engine.served(agent) as client:
        run = await client.start("recorded", "1", mode="session")
        await run.turn().result()
        for n in (2, 3):
            await (await run.send(str(n))).result()
        await run.close()
        await _end(run)
    return run


@scenario
async def session_with_unanswered(engine: Engine) -> Run:
    """Two messages come while the last call that a turn's limit allows is under way; the next turn is another."""
    gate = Gate()

    async def reply(request: Any) -> Any:
        if not request.tools:
            await gate()
            return "All I know is this."
        return ["Still looking.", call("add", a=1, b=1)]

    agent = Agent("recorded", ScriptedProvider(reply), tools=TOOLS, limits=Limits(turn=Limits(tokens=1)))
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.", mode="session")
        await eventually(lambda: gate.entered)
        await run.inject("And in winter?", id="m-1")
        await run.inject("And at night?")

        async def heard() -> bool:
            return (await run.status()).queued == 2

        await eventually(heard)
        gate.open()

        async def told() -> tuple[str, ...]:
            return (await run.status()).unanswered

        assert await eventually(told) == ("m-1", "")
        await (await run.send("More.")).result()
        await run.close()
        await _end(run)
    return run
