"""Kinds of runs with a step policy whose histories are stored: what it keeps, edits, answers and ends."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Message, Run, Step, hook
from perdure.hooks import Hook
from perdure.testing import ScriptedProvider, call
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.replay.sessions import closed, said
from tests.support.engine import Engine
from tests.support.scripts import calls_then


def _stepping(policy: Any, count: int = 3, **options: Any) -> Agent:
    made: Hook = hook("on_iteration")(policy)
    replies = calls_then(count, "add", a=1, b=2)
    return Agent("recorded", ScriptedProvider(replies), **{"tools": TOOLS, "hooks": [made], **options})


async def _run(engine: Engine, agent: Agent, **options: Any) -> Run:
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.", **options)
        await _end(run)
    return run


@scenario
async def step_keeps(engine: Engine) -> Run:
    """For the turn and for the run, over a continue-as-new."""

    def policy(step: Step) -> None:
        if step.iteration == 1:
            step.settings["temperature"] = 0.5
            step.keep("run")
            step.remove_tool("slow")
            step.instructions = "Hurry."
            step.keep()

    return await _run(engine, _stepping(policy, 6), max_history_events=20)


@scenario
async def step_keeps_in_a_session(engine: Engine) -> Run:
    def policy(step: Step) -> None:
        step.settings["seed"] = step.iteration
        step.keep("run" if step.iteration % 2 else "turn")
        step.inject("Mind.")
        step.results[0] = "changed"

    replies = [call("add", a=1, b=1), "One.", call("double", n=1), call("add", a=1, b=1), "Two."]
    agent = Agent("recorded", ScriptedProvider(replies), tools=TOOLS, hooks=[hook("on_iteration")(policy)])
    async with engine.served(agent) as client:
        return await closed(await said(client, engine.task_queue, "1", "2"))


@scenario
async def step_edits_the_history(engine: Engine) -> Run:
    def policy(step: Step) -> None:
        if step.iteration == 2:
            step.trim(2)
            step.messages[0] = Message.user("Otherwise.")

    return await _run(engine, _stepping(policy))


@scenario
async def step_finishes(engine: Engine) -> Run:
    return await _run(engine, _stepping(lambda step: step.iteration == 2 and step.finish("Enough.")))


@scenario
async def step_aborts(engine: Engine) -> Run:
    return await _run(engine, _stepping(lambda step: step.iteration == 2 and step.abort("enough")))


@scenario
async def step_fails(engine: Engine) -> Run:
    return await _run(engine, _stepping(lambda step: step.add_tool("nobody's")))
