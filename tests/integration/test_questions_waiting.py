"""What waits for an answer outlives workers and executions."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, ToolContext, callback_tool, tool
from perdure.testing import ScriptedProvider, call
from tests.integration.test_questions import asked, told
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool
async def transfer(ctx: ToolContext) -> str:
    """Transfer."""
    first = await ctx.ask("Which account?", str)
    return f"{first} {await ctx.ask('Sure?', bool)}"


read = callback_tool("read", "Read the page.")


async def test_a_question_outlives_workers_that_are_killed(engine: Engine) -> None:
    """Nothing of the tool's first run is in doubt, although it is not idempotent. The first worker is lost behind the
    question: it is recorded, and its activity not reported, and the next attempt finds it and runs nothing."""
    await engine.process("asking", TEST_KILL_AT="tool.recorded")
    client = await engine.client()
    run = await client.start("clerk", "Go.")
    second = await engine.process("asking")
    await asked(run, 2)
    assert len(engine.ledger.entries("run")) == 1
    await second.kill()
    await engine.process("asking")
    assert {one.kind for one in await asked(run, 2)} == {"question", "callback"}
    await run.answer("call_page", "opened", by="ana")
    await run.answer("call_pay", "savings", by="bea")
    assert (await run.result()).content == "Done."
    assert await told(run) == ["3 from savings", "opened"]
    assert [one["account"] for one in engine.ledger.entries("paid")] == ["savings"]
    assert list(engine.ledger.counts("run").values()) == [2], "once to ask, once with the answer, under one key"


async def test_it_continues_as_new_while_it_waits_for_answers(engine: Engine) -> None:
    calls = [[call("transfer"), call("read"), *(call("look", n=n) for n in range(4))], "Done."]
    agent = Agent("clerk", ScriptedProvider(calls), tools=[transfer, read, look])
    async with engine.served(agent) as client:
        run = await client.start("clerk", "Go.", max_history_events=15)
        one, two = await asked(run, 2)

        async def continued() -> bool:
            return (await run.describe()).run_id != run.handle.first_execution_run_id

        await eventually(continued, what="the next execution")
        await run.answer(one.call_id, "savings", by="ana")
        await run.answer(two.call_id, {"page": None}, by="bea")
        (second,) = await asked(run, question="Sure?")
        assert second.hash != one.hash
        await run.answer(value=True)
        await run.result()
        assert (await told(run))[:2] == ["savings True", '{"page": null}']


async def test_a_tool_that_is_gone_when_it_was_answered_is_an_error(engine: Engine) -> None:
    agent = Agent("clerk", ScriptedProvider([call("transfer"), "Done."]), tools=[transfer])
    async with engine.served(agent) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
    async with engine.served(Agent("clerk", ScriptedProvider(["Done."]), tools=[look])):
        await run.answer(value="savings")
        await run.result()
        assert (await told(run))[0].startswith("tool not found: transfer")


async def test_who_stops_waiting_for_his_answer_to_be_taken_is_not_told_that_the_server_is_gone(engine: Engine) -> None:
    async with engine.served(Agent("reader", ScriptedProvider([call("read"), "Done."]), tools=[read])) as client:
        run = await client.start("reader", "Go.")
        (one,) = await asked(run)
    with pytest.raises(TimeoutError):  # there is no worker that could take it
        async with asyncio.timeout(0.3):
            await run.answer(one.call_id, "x")
