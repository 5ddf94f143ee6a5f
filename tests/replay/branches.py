"""Kinds of runs whose step policy asks other agents: in parallel, in turn, in vain, and while they are stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Agent, Limits, Run, Step, hook, register_provider
from perdure.errors import BranchError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.replay.subagents import helper
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then
from tests.support.wait import eventually


def stepping(policy: Any, count: int = 1, **options: Any) -> Agent:
    replies = calls_then(count, "add", a=1, b=2)
    hooks = [hook("on_iteration")(policy)]
    return Agent("recorded", ScriptedProvider(replies), **{"tools": TOOLS, "hooks": hooks, **options})


async def _run(engine: Engine, agent: Agent, *others: Agent, **options: Any) -> Run:
    async with engine.served(agent, *others) as client:
        run = await client.start(agent, "Go.", **options)
        await _end(run)
    return run


@scenario
async def branches_in_parallel_and_in_turn(engine: Engine) -> Run:
    """Two at once, then a third that needs what they said; that one asks another model."""

    async def policy(step: Step) -> None:
        first = await asyncio.gather(step.branch("helper", "a"), step.branch("helper", "b", messages="none"))
        step.inject(await step.branch("helper", f"{len(first)}?", model="small:tiny"))

    register_provider("small", ScriptedProvider(lambda _: "Helped otherwise."))
    return await _run(engine, stepping(policy), helper())


@scenario
async def branch_that_fails(engine: Engine) -> Run:
    """Its error is caught; it has used something."""

    async def policy(step: Step) -> None:
        try:
            await step.branch("helper")
        except BranchError as error:
            step.finish(str(error))

    failing = helper(lambda _: "word", max_iterations=1, finish="tag", on_limit="error")
    return await _run(engine, stepping(policy), failing)


@scenario
async def branches_over_continue_as_new(engine: Engine) -> Run:
    """One at each step."""

    def policy(step: Step) -> None:
        step.inject(step.branch("helper", f"{step.iteration}?").result())

    return await _run(engine, stepping(policy, 4), helper(lambda _: "Helped."), max_history_events=20)


@scenario
async def branches_under_a_limit(engine: Engine) -> Run:
    """They use it up: the model is to finish; the policy, which asks once more, is told that nothing is left."""

    async def policy(step: Step) -> None:
        await asyncio.gather(*(step.branch("helper", str(n)) for n in range(2)))
        try:
            await step.branch("helper", "more")
        except BranchError as error:
            step.inject(str(error))

    talker = helper(lambda _: "word " * 60)
    return await _run(engine, stepping(policy, limits=Limits(tokens=100)), talker)


async def _held(engine: Engine, stop: str) -> Run:
    gate = Gate()

    async def held(request: ModelRequest) -> str:
        if "Stop." not in users(request.messages):
            await gate()
        return "Helped."

    async def policy(step: Step) -> None:
        step.inject(await step.branch("helper"))

    async with engine.served(stepping(policy), helper(held)) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: gate.entered == 1)
        match stop:
            case "cancel":
                await run.cancel()
            case "interrupt":
                await run.interrupt("Stop.")
            case "message":
                await run.inject("Meanwhile.")
                gate.open()
        await _end(run)
    return run


@scenario
async def branch_of_a_cancelled_run(engine: Engine) -> Run:
    """It is cancelled too."""
    return await _held(engine, "cancel")


@scenario
async def branch_of_an_interrupted_run(engine: Engine) -> Run:
    """It is interrupted too; the run goes on, and asks again."""
    return await _held(engine, "interrupt")


@scenario
async def branch_and_a_message(engine: Engine) -> Run:
    """One that comes while the branch runs is for the next step."""
    return await _held(engine, "message")
