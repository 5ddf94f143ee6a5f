"""Kinds of runs whose histories are stored: typed answers, those that will not do, and typed inputs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from perdure import Agent, ModelRetry, Run
from perdure.errors import PerdureError
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.interface import WORKFLOW_TYPE
from tests.replay.scenarios import TOOLS, scenario
from tests.support.engine import Engine


class Sum(BaseModel):
    """What the recorded runs answer."""

    total: int
    note: str = ""


class Task(BaseModel):
    """What they are asked."""

    numbers: list[int]


def typed(*replies: Any, **options: Any) -> Agent:
    return Agent("recorded", ScriptedProvider(replies), **{"tools": TOOLS, "output": Sum, "input": Task, **options})


async def ran(engine: Engine, agent: Agent, message: Any = "Go.") -> Run:
    """A run of ``agent`` to its end, whichever it is."""
    async with engine.served(agent) as client:
        run = await client.start(agent, message)
        with suppress(PerdureError):
            await run.result()
    return run


@scenario
async def typed_answer(engine: Engine) -> Run:
    replies = [call("add", a=1, b=2)], ["So.", call("double", n=1), finish(total=3)]
    return await ran(engine, typed(*replies), Task(numbers=[1, 2]))


@scenario
async def typed_answer_that_will_not_do(engine: Engine) -> Run:
    wrong = [call("add", a=1, b=1), finish(total="three")]
    return await ran(engine, typed(wrong, "It is three.", finish(total=3)))


@scenario
async def typed_answers_that_never_do(engine: Engine) -> Run:
    return await ran(engine, typed(finish(), "<finish><total>x</total></finish>", finish(note="no")))


@scenario
async def typed_answer_in_words(engine: Engine) -> Run:
    return await ran(engine, typed("<finish><total>3</total></finish>"))


@scenario
async def typed_answer_at_a_limit(engine: Engine) -> Run:
    replies = [call("add", a=1, b=1)], [call("add", a=1, b=1)], "Hm.", finish(total=2)
    return await ran(engine, typed(*replies, max_iterations=1))


@scenario
async def typed_answer_of_a_large_list(engine: Engine) -> Run:
    return await ran(engine, typed(finish(value=["x" * 1000] * 60), output=list[str]))


@scenario
async def text_that_is_validated(engine: Engine) -> Run:
    def polite(output: str) -> str:
        if "please" not in output:
            raise ModelRetry("say please")
        return output.upper()

    return await ran(engine, typed("Go.", "Go, please.", output=str, output_validators=[polite]))


@scenario
async def typed_session(engine: Engine) -> Run:
    """Inputs of a plain client, continued as new between them."""
    agent = typed(*(finish(total=n) for n in range(6)))
    async with engine.served(agent) as client:
        start = {"agent": "recorded", "mode": "session", "max_history_events": 25}
        temporal = await engine.temporal()
        await temporal.start_workflow(WORKFLOW_TYPE, start, id=engine.task_queue, task_queue=engine.task_queue)
        run = client.run(engine.task_queue)
        for n in range(6):
            taken = await run.handle.execute_update("send_message", {"input": {"numbers": [n]}, "id": str(n)})
            await run.turn(taken["task_id"]).result()
        await run.close()
        await run.result()
    return run
