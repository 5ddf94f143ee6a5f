"""Forks: another run from a point of a conversation, and where two of them part."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from perdure import Agent, Message, tool
from perdure.errors import InvalidInputError, RunExistsError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import ToolCallPart
from perdure.types.outcome_unknown import FORKED
from tests.support.checks import results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then, replied
from tests.support.wait import eventually


@tool
def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


def answer(request: ModelRequest) -> Any:
    """Looks up three things, then says how often it has replied, and what it was told and found."""
    if replied(request) < 3:
        return ToolCallPart(id=f"call_{replied(request)}", name="look", arguments={"what": str(replied(request))})
    return f"{replied(request)}: {'|'.join(users(request.messages))}; {'|'.join(results(request.messages))}"


def seeker(**options: Any) -> Agent:
    return Agent("seeker", ScriptedProvider(answer), tools=[look], **options)


def rows(engine: Engine, table: str) -> int:
    with sqlite3.connect(engine.store_path) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - our own names


async def test_a_finished_run_is_forked_after_an_iteration(engine: Engine) -> None:
    async with engine.served(seeker()) as client:
        run = await client.start("seeker", "Go.", context={"user": "7"})
        first = await run.result()
        assert first.content == "3: Go.; found 0|found 1|found 2"
        branch = await run.fork("What if?", at=2)
        said = await branch.result()
        assert said.content == "3: Go.|What if?; found 0|found 1|found 2"
        parted = await run.diff(branch)
        assert (parted.iteration, len(parted.shared)) == (2, 5), "the results of iteration 2 are on both sides"
        assert parted.left[0].tool_calls[0].id == "call_2"
        assert parted.right[0].text == "What if?"
        assert await run.transcript() == list(first.messages), "the forked run stays as it was"
        memo = await (await branch.describe()).memo()
        assert memo["forked_from"] == {"run": run.id, "at": 2, "by": "tests"}
        start = await branch.fork("Once more.", at=0)
        assert (await start.result()).content == "3: Once more.; found 0|found 1|found 2"


async def test_both_branches_go_on_independently(engine: Engine) -> None:
    agent = Agent("echo", ScriptedProvider(lambda request: "|".join(users(request.messages))))
    async with engine.served(agent) as client:
        chat = await client.send("echo", "one", id="chat-" + engine.task_queue)
        await chat.result()
        branch = await chat.run.fork("left")
        assert (await branch.turn().result()).content == "one|left"
        assert (await (await chat.run.send("right")).result()).content == "one|right"
        assert (await (await branch.send("more")).result()).content == "one|left|more", "a session's fork is a session"
        assert (await (await chat.run.send("still")).result()).content == "one|right|still"
        parted = await chat.run.diff(branch)
        assert [message.text for message in parted.shared] == ["one", "one"]
        assert [message.text for message in parted.left][::2] == ["right", "still"]
        assert [message.text for message in parted.right][::2] == ["left", "more"]
        await chat.run.close()
        await branch.close()
        await asyncio.gather(chat.run.result(), branch.result())
        again = await chat.run.fork(at=1)
        assert (await again.status()).doing == "message", "there is nothing to answer: it waits"
        assert (await (await again.send("third")).result()).content == "one|third"


async def test_a_running_run_is_forked_and_its_open_calls_are_closed(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Waits."""
        await gate()
        return "slow is done"

    def reply(request: ModelRequest) -> Any:
        found = results(request.messages)
        return "; ".join(found) if found else [ToolCallPart(id="a", name="slow", arguments={}), call("look", what="x")]

    agent = Agent("both", ScriptedProvider(reply), tools=[slow, look])
    async with engine.served(agent) as client:
        run = await client.start("both", "Go.")
        await eventually(lambda: gate.entered, what="the tool")
        closed = await (await run.fork("Now.")).result()
        assert closed.content == f"{FORKED}; {FORKED}"
        told = await (await run.fork(results={"a": "as if"})).result()
        assert told.content == f"as if; {FORKED}"
        gate.open()
        assert (await run.result()).content == "slow is done; found x"


async def test_a_tool_result_is_edited(engine: Engine) -> None:
    async with engine.served(seeker()) as client:
        run = await client.start("seeker", "Go.")
        await run.result()
        branch = await run.fork(results={"call_1": "nothing at all"})
        assert (await branch.result()).content == "3: Go.; found 0|nothing at all|found 2"
        parted = await run.diff(branch)
        assert parted.iteration == 2
        assert (results(parted.left)[0], results(parted.right)[0]) == ("found 1", "nothing at all")
        with pytest.raises(InvalidInputError, match="no call 'call_0' in iteration 2"):
            await run.fork(at=2, results={"call_0": "x"})
        with pytest.raises(InvalidInputError, match="no call 'x' in the conversation"):
            await run.fork(results={"x": "x"})
        with pytest.raises(InvalidInputError, match="no iteration 5: the conversation has 4"):
            await run.fork(at=5)
        with pytest.raises(RunExistsError):
            await run.fork("Go.", id=branch.id)


async def test_a_fork_has_another_model_and_what_the_run_was_started_with(engine: Engine) -> None:
    seen: list[Any] = []

    def reply(request: ModelRequest) -> Any:
        seen.append((request.model, request.settings.get("temperature")))
        return "Done."

    agent = Agent("model", ScriptedProvider(reply), settings={"temperature": 0.1})
    async with engine.served(agent) as client:
        run = await client.start("model", "Go.", override={"settings": {"temperature": 0.7}}, max_history_events=11)
        await run.result()
        await (await run.fork("And now?")).result()
        assert [temperature for _, temperature in seen] == [0.7, 0.7]
        await (await run.fork("And now?", override={"settings": {"temperature": 0.9}})).result()
        assert seen[-1][1] == 0.9


@pytest.mark.slow
@pytest.mark.server
async def test_a_run_that_continued_as_new_is_forked(engine: Engine) -> None:
    agent = Agent("long", ScriptedProvider(calls_then(6, "look", what="{n}")), tools=[look])
    async with engine.served(agent) as client:
        run = await client.start("long", "Go.", max_history_events=12)
        await run.result()
        assert (await run.describe()).run_id != run.handle.first_execution_run_id
        branch = await run.fork("Again.", at=3)
        assert results((await branch.result()).messages) == [f"found {n}" for n in range(6)]


@pytest.mark.server
async def test_a_fork_of_a_long_conversation_adds_one_row(engine: Engine) -> None:
    said = [Message.user("q") if n % 2 == 0 else Message.assistant("a") for n in range(2000)]
    agent = Agent("echo", ScriptedProvider(lambda request: str(len(request.messages))))
    async with engine.served(agent) as client:
        run = await client.start("echo", "Go.", history=said)
        assert (await run.result()).content == "2001"
    before = {table: rows(engine, table) for table in ("nodes", "blobs", "runs", "journal")}
    client = await engine.client()  # no worker serves it: what is counted is the fork's alone
    whole = await client.run(run.id).fork("What if?")
    inside = await client.run(run.id).fork("What if?", at=500)
    after = {table: rows(engine, table) for table in before}
    assert after == before | {"nodes": before["nodes"] + 1}, "the first shares all; the second parts inside a node"
    async with engine.served(agent):
        assert (await whole.result()).content == "2003"
        assert (await inside.result()).content == "1001"
