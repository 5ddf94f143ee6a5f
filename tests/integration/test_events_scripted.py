"""Following scripted runs: the testing kit gives what a server gives."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import AuthenticationError, RunNotFoundError
from perdure.testing import call, fail, scripted
from tests.support.following import ANSWER, BEGIN, STEP, all_of, assert_whole, run_end, shown


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_scripted_run_is_followed_as_a_real_one() -> None:
    agent = Agent("busy", "openai:any", tools=[look])
    replies: list[Any] = [call("look"), "Done."]
    async with scripted(agent, replies) as script:
        run = await script.client.start("busy", "Go.")
        events = await all_of(run.events())
        turn = await all_of(run.turn().events())
        again = await all_of(run.events(after=events[4].seq))
        with pytest.raises(RunNotFoundError):
            await all_of(script.client.run("nobody").events())
    assert shown(events) == [*BEGIN, *STEP, *ANSWER, "run completed"]
    assert_whole(events)
    assert again == events[5:]
    assert shown(turn) == shown(events)[:-1]


async def test_scripted_sessions_ends_and_text() -> None:
    agent = Agent("talker", "openai:any")
    replies: list[Any] = ["One.", "Two.", fail(AuthenticationError("no key"))]
    async with scripted(agent, replies) as script:
        first = await script.send("One?", id="s")
        events = first.run.events()
        assert shown(await all_of(first.events())) == [*BEGIN, *ANSWER, "run waiting"]
        second = await script.send("Two?", id="s")
        assert shown(await all_of(second.events())) == [*BEGIN[1:], *ANSWER, "run waiting"]
        await first.run.handle.terminate()
        assert run_end(await all_of(events)).state == "terminated"
        with pytest.raises(AuthenticationError):
            async for _ in agent.stream("Three?"):
                pass
