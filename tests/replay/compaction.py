"""Kinds of runs whose conversation is compacted: when it is due, when a model refused it, when nothing helps."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from perdure import Agent, Compaction, Run
from perdure.calls.summary import SUMMARY_PROMPT
from perdure.errors import ContextLengthError, PerdureError
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import Part, TextPart, ToolCallPart, Usage
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


def counting(calls: int, most: int, gate: Gate | None = None) -> Any:
    """A model that calls a tool so many times, counts 10 tokens a message, and refuses more than ``most``."""
    done: list[int] = []

    async def reply(request: ModelRequest) -> Any:
        if len(request.messages) > most:
            return ContextLengthError("too long")
        usage, last = Usage(input_tokens=10 * len(request.messages), output_tokens=1), request.messages[-1]
        said: Part = TextPart(text="Done.")
        if SUMMARY_PROMPT in last.text:
            if gate is not None:
                await gate()
            said = TextPart(text="Summed up.")
        elif len(done) < calls:
            done.append(1)
            said = ToolCallPart(id=f"call_{len(done)}", name="add", arguments={"a": len(done), "b": 1})
        return Completed((said,), "tool_calls" if said.type == "tool_call" else "stop", usage, "m")

    return reply


def keeper(reply: Any, *ways: Compaction, **options: Any) -> Agent:
    return Agent("recorded", ScriptedProvider(reply), **{"tools": TOOLS, "compaction": ways, **options})


async def _ended(engine: Engine, agent: Agent, **options: Any) -> Run:
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go. " * 100, **options)
        await _end(run)
    return run


@scenario
async def summed_up(engine: Engine) -> Run:
    return await _ended(engine, keeper(counting(6, 99), Compaction.summarise(at=100, keep_last=2)))


@scenario
async def summed_up_and_continued_as_new(engine: Engine) -> Run:
    agent = keeper(counting(20, 99), Compaction.summarise(at=100, keep_last=2))
    return await _ended(engine, agent, max_history_events=40)


@scenario
async def summed_up_after_a_refusal(engine: Engine) -> Run:
    return await _ended(engine, keeper(counting(8, 9), Compaction.summarise(at=1_000_000, keep_last=2)))


@scenario
async def tightened_after_a_refusal(engine: Engine) -> Run:
    return await _ended(engine, keeper(counting(8, 9), Compaction.window(messages=14)))


@scenario
async def too_long_in_every_way(engine: Engine) -> Run:
    ways = [Compaction.summarise(at=1_000_000, keep_last=2), Compaction.window(messages=9)]
    return await _ended(engine, keeper(counting(8, 1), *ways))


@scenario
async def interrupted_in_a_summary(engine: Engine) -> Run:
    gate = Gate()
    agent = keeper(counting(6, 99, gate), Compaction.summarise(at=100, keep_last=2))
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go. " * 100, mode="session")
        await eventually(lambda: gate.entered == 1)
        await run.interrupt("Something else.")
        await eventually(lambda: gate.entered == 2)
        gate.open()
        with suppress(PerdureError):
            await run.turn().result()
        await run.close()
        await _end(run)
    return run


@scenario
async def cancelled_in_a_summary(engine: Engine) -> Run:
    gate = Gate()
    agent = keeper(counting(6, 99, gate), Compaction.summarise(at=100, keep_last=2))
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go. " * 100)
        await eventually(lambda: gate.entered == 1)
        await run.cancel()
        await _end(run)
    return run
