"""``Agent.stream``: the text of a call as it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import AuthenticationError, NoWorkerError
from perdure.ports import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.testing import ScriptedProvider, call, fail, scripted
from perdure.types.messages import TextPart
from tests.support.engine import Engine
from tests.support.following import Slow
from tests.support.scripts import Gate
from tests.support.wait import eventually


@pytest.fixture
def here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """``Agent.stream`` goes to the tests' server, queue and store."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", engine.task_queue)
    return engine


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def text_of(pieces: AsyncIterator[str]) -> str:
    async with asyncio.timeout(60):
        return "".join([piece async for piece in pieces])


@pytest.mark.server
async def test_pieces_come_before_the_reply_is_whole(here: Engine) -> None:
    model = Slow("One ", "two.")
    pieces = Agent("slow", model).stream("Go.")
    assert await anext(pieces) == "One "
    model.gate.open()
    assert await text_of(pieces) == "two."


async def test_replies_begin_on_lines_of_their_own() -> None:
    agent = Agent("busy", "openai:any", tools=[look])
    replies: list[Any] = [["I look.", call("look")], [call("look")], "Seen."]
    async with scripted(agent, replies):
        assert await text_of(agent.stream("Go.")) == "I look.\nSeen."


async def test_what_is_left_is_cancelled(engine: Engine) -> None:
    async with engine.served(Agent("slow", Slow("One ", "two."))) as client:
        agent = Agent("slow", "openai:any")
        async for _ in agent.stream("Go.", client=client):
            break

        async def statuses() -> bool:
            return [run.status for run in await client.list(agent=agent.name)] == ["cancelled"]

        await eventually(statuses)


@pytest.mark.server
async def test_what_is_left_in_a_program_of_its_own_is_cancelled_before_its_worker_goes(here: Engine) -> None:
    agent = Agent(here.task_queue, Slow("One ", "two."))
    pieces = agent.stream("Go.")
    assert await anext(pieces) == "One "
    await pieces.aclose()
    client = await here.client()

    async def cancelled() -> bool:  # nobody is there to cancel it any more; Temporal's list may be a moment old
        return [run.status for run in await client.list(agent=agent.name)] == ["cancelled"]

    await eventually(cancelled)


async def test_what_has_an_id_goes_on(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        agent, named = Agent("slow", "openai:any"), "named"
        pieces = agent.stream("Go.", id=named, client=client)
        assert await anext(pieces) == "One "
        await pieces.aclose()
        model.gate.open()
        assert (await client.run(named).result()).content == "One two."
        assert await text_of(agent.stream("Go.", id=named, client=client)) == "One two."


async def test_the_runs_error_comes_behind_its_text(engine: Engine) -> None:
    replies: list[Any] = [["I look.", call("look")], fail(AuthenticationError("no key"))]
    agent = Agent("busy", ScriptedProvider(replies), tools=[look])
    async with engine.served(agent) as client:
        pieces = agent.stream("Go.", client=client)
        assert await anext(pieces) == "I look."
        with pytest.raises(AuthenticationError, match="no key"):
            await anext(pieces)


@pytest.mark.parametrize(("again", "said"), [("Half, whole.", "Half, whole."), ("No.", "Half\nNo.")])
async def test_a_reply_that_is_cut_off_is_written_on(engine: Engine, again: str, said: str) -> None:
    gate = Gate()

    class Cut:
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            self.asked += 1
            if self.asked == 1:
                yield TextDelta("Half")
                await gate()
                return
            yield TextDelta(again)
            yield Completed((TextPart(text=again),), model=request.model)

    agent = Agent("cut", Cut())
    async with engine.served(agent) as client:
        pieces = agent.stream("Go.", client=client)
        first = await anext(pieces)
        gate.open()
        assert first + await text_of(pieces) == said


@pytest.mark.server
async def test_nobody_serves_it(here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure import local_engine

    monkeypatch.setattr(local_engine, "NO_WORKER_SECONDS", 0.5)
    client = await here.client()
    with pytest.raises(NoWorkerError, match=r"--task-queue .*The run was cancelled"):
        await text_of(Agent("nobody", "openai:any").stream("Go.", client=client))
