"""PARITY.md, part B: what a minimal loop over a generic session does, durably."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import Agent, File, Message, tool
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider, call
from perdure.types.session_form import from_session, to_session
from tests.support.checks import results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


async def test_b1_a_session_of_generic_messages_comes_in_and_goes_out(engine: Engine) -> None:
    session: list[dict[str, Any]] = [
        {"type": "user", "content": "Note a."},
        {"type": "thinking", "content": "I shall."},
        {"type": "assistant", "content": "At once."},
        {"type": "tool_call", "name": "note", "id": "c1", "input": {"what": "a"}},
        {"type": "tool_result", "id": "c1", "output": "noted a"},
        {"type": "assistant", "content": "Noted."},
    ]
    image = File(b"\x89PNG\r\n\x1a\n", name="a.png")
    provider = ScriptedProvider([call("note", what="b"), "Both."])
    async with engine.served(Agent("notes", provider, tools=[note])) as client:
        response = await (await client.start("notes", ["Note b too.", image], history=session)).result()
        flat = to_session(response.messages)
        kept = await client.file(response.messages[4].parts[1])
        with pytest.raises(InvalidInputError, match=r"session\[1\]: type is one of"):
            await client.start("notes", "Go.", history=[*session[:1], {"type": "tool", "content": "x"}])
    # What comes from outside says who has brought it.
    assert flat[:6] == [{**item, "given_by": "tests"} if item["type"] == "tool_result" else item for item in session]
    said = [(entry["type"], entry.get("content") or entry.get("output") or entry.get("input")) for entry in flat[6:]]
    assert said == [
        ("user", "Note b too."),
        ("user", None),
        ("tool_call", {"what": "b"}),
        ("tool_result", "noted b"),
        ("assistant", "Both."),
    ]
    assert json.loads(json.dumps(flat)) == flat
    assert from_session(flat) == list(response.messages)
    assert kept == image.data


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


async def test_b5_a_session_is_forked_and_both_go_on(engine: Engine) -> None:
    async with engine.served(Agent("echo", ScriptedProvider(lambda r: "|".join(users(r.messages))))) as client:
        run = await client.start("echo", mode="session", history=[Message.user("zero"), Message.assistant("Hi.")])
        await (await run.send("one")).result()
        fork = await run.fork("two")
        assert (await fork.turn().result()).content == "zero|one|two"
        assert (await (await run.send("three")).result()).content == "zero|one|three", "a fork is a copy"
        assert (await (await fork.send("four")).result()).content == "zero|one|two|four"
