"""Branches in process: the same workflow code without a server; and agents that a hook brings with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Step, hook, tool
from perdure.errors import ApprovalPendingError, BranchError, DefinitionError
from perdure.testing import ScriptedProvider, call, finish, scripted
from tests.support.checks import users
from tests.support.engine import Engine


class Score(BaseModel):
    score: int


@tool
def look(at: str) -> str:
    """Look."""
    return f"seen {at}"


@tool(needs_approval=True)
def weigh(what: str) -> str:
    """Weigh."""
    return f"{what} weighs 3"


judge = Agent("judge", "openai:gpt-5", output=Score, tools=[weigh])


@hook("on_iteration", agents=[judge])
async def review(step: Step) -> None:
    try:
        first, second = await asyncio.gather(step.branch(judge, "a"), step.branch("judge", "b"))
    except BranchError as error:
        step.finish(str(error))
    else:
        step.inject(f"{first.score} and {second.score}")


boss = Agent("boss", "openai:gpt-5", tools=[look], hooks=[review])
REPLIES: list[Any] = [call("look", at="x"), "Done."]


@pytest.mark.parametrize("decide", [True, False])
def test_what_waits_for_approval_in_a_branch_does_not_hang_in_silence(*, decide: bool) -> None:
    def replies(request: Any) -> Any:
        return finish(score=3) if request.messages[-1].role == "tool" else call("weigh", what="a stone")

    with scripted(boss, REPLIES if decide else REPLIES[:1], others={judge: replies}):
        if decide:
            assert users(boss.call_sync("Go.", on_approval="approve").messages)[-1] == "3 and 3"
        else:
            with pytest.raises(ApprovalPendingError, match="weigh"):
                boss.call_sync("Go.", on_approval="raise")


async def test_the_worker_serves_the_agents_of_hooks(engine: Engine) -> None:
    own = ScriptedProvider([call("look", at="x"), "Done."])
    asked = Agent("asked", ScriptedProvider(["Of the agent."]))
    other = Agent("other", ScriptedProvider(["Of the worker."]))

    @hook("on_iteration", agents=[asked])
    async def first(step: Step) -> None:
        step.inject(await step.branch(asked))

    @hook("on_iteration", agents=[other, "boss"])
    async def second(step: Step) -> None:
        step.inject(await step.branch("other"))

    one = Agent("boss", own, tools=[look], hooks=[first])
    async with engine.served(one, hooks=[second]) as client:
        response = await (await client.start(one, "Go.")).result()
    assert users(response.messages) == ["Go.", "Of the worker.", "Of the agent."]


async def test_what_a_hook_may_ask_is_checked_when_it_is_defined(engine: Engine) -> None:
    with pytest.raises(DefinitionError, match="cannot ask other agents"):
        hook("on_finish", agents=[judge])
    with pytest.raises(DefinitionError, match="agents is a list"):
        hook("on_iteration", agents="judge")
    with pytest.raises(DefinitionError, match="names of agents, not 3"):
        hook("on_iteration", agents=[3])

    @hook("on_iteration", agents=["nobody"])
    async def nobody(step: Step) -> None:
        await step.branch("nobody")

    with pytest.raises(DefinitionError, match="'boss' has a hook that calls 'nobody', which this worker"):
        async with engine.served(Agent("boss", "openai:gpt-5", hooks=[nobody])):
            raise AssertionError("it serves")
