"""PARITY.md, part B: what a minimal loop over a generic session does, durably."""

from __future__ import annotations

import pytest

from perdure import Agent, Message, tool
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then

pytestmark = pytest.mark.server


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


async def test_b3_the_loop_ends_without_calls_or_at_the_limit_as_it_stands(engine: Engine) -> None:
    ends = Agent("ends", ScriptedProvider([call("note", what="a"), "Noted."]), tools=[note])
    cut = Agent(
        "cut", ScriptedProvider(calls_then(9, "note", what="{n}")), tools=[note], max_iterations=2, on_limit="return"
    )
    async with engine.served(ends, cut) as client:
        ended = await (await client.start("ends", "Go.")).result()
        stopped = await (await client.start("cut", "Go.")).result()
    assert (ended.content, ended.iterations, ended.finish_reason) == ("Noted.", 2, "stop")
    assert (stopped.iterations, stopped.calls, stopped.finish_reason) == (2, 2, "limit")
    assert results(stopped.messages) == ["noted 0", "noted 1"]


async def test_b4_calls_of_one_reply_run_in_parallel_with_results_in_order(engine: Engine) -> None:
    second_is_done = Gate()

    @tool
    async def first() -> str:
        """Ends after the second."""
        await second_is_done()
        return "one"

    @tool
    async def second() -> str:
        """Lets the first end."""
        second_is_done.open()
        raise LookupError("two")

    provider = ScriptedProvider([[call("first"), call("second")], "Done."])
    async with engine.served(Agent("parallel", provider, tools=[first, second])) as client:
        response = await (await client.start("parallel", "Go.")).result()
    assert results(response.messages) == ["one", "LookupError: two"]


async def test_b5_a_session_is_opened_extended_sent_to_and_has_a_response(engine: Engine) -> None:
    async with engine.served(Agent("echo", ScriptedProvider(lambda r: "|".join(users(r.messages))))) as client:
        run = await client.start("echo", mode="session", history=[Message.user("zero"), Message.assistant("Hi.")])
        assert (await run.turn().status()).state == "unknown", "nothing was said yet"
        first = await (await run.send("one")).result()
        second = await (await client.send("echo", "two", id=run.id)).result()
        assert [first.content, second.content] == ["zero|one", "zero|one|two"]
        assert second.messages[-1].text == second.content
