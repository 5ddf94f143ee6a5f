"""``Agent(context=…)``: checked where a run starts, else at its first step; ``ctx.context`` is of the type."""

from __future__ import annotations

import uuid
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, RunContext, ToolContext, tool
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.checks import results
from tests.support.engine import Engine


class User(BaseModel):
    user_id: str
    born: date | None = None


@tool
async def who(ctx: ToolContext[User]) -> str:
    """Who is it?"""
    return repr(ctx.context)


@tool(inline=True)
def year(ctx: ToolContext[User]) -> int:
    """Born when?"""
    assert ctx.context.born is not None
    return ctx.context.born.year


def instructions(ctx: RunContext[User]) -> str:
    return f"You talk to {ctx.context.user_id}."


def greeter(provider: ScriptedProvider | None = None) -> Agent:
    provider = provider or ScriptedProvider([[call("who"), call("year")], "Hello."])
    return Agent("greeter", provider, context=User, instructions=instructions, tools=[who, year])


ANA = User(user_id="ana", born=date(2000, 1, 2))


@pytest.mark.parametrize("given", [ANA, {"user_id": "ana", "born": date(2000, 1, 2)}], ids=["instance", "mapping"])
async def test_tools_and_instructions_get_the_object(engine: Engine, given: Any) -> None:
    agent = greeter()
    async with engine.served(agent) as client:
        response = await (await client.start(agent, "Hi.", context=given)).result()
    assert results(response.messages) == [repr(ANA), "2000"]
    assert response.messages[0].text == "You talk to ana."


async def test_a_client_that_has_the_agent_refuses_at_once(engine: Engine) -> None:
    agent = greeter()
    async with engine.served(agent) as client:
        for context in (None, {}, {"user_id": 7}, {"born": "2000-01-02"}):
            with pytest.raises(InvalidInputError, match="does not fit agent 'greeter': user_id: "):
                await client.start(agent, "Hi.", context=context)
        assert await client.list() == []


async def test_a_run_that_was_started_by_name_fails_at_its_first_step(engine: Engine) -> None:
    provider = ScriptedProvider(["never asked"])
    async with engine.served(greeter(provider)) as client:
        for context in (None, {"user_id": 7}):
            run = await client.start("greeter", "Hi.", context=context)
            with pytest.raises(InvalidInputError, match="does not fit agent 'greeter': user_id: "):
                await run.result()
        start = {"agent": "greeter", "message": "Hi.", "context": {"user_id": "bo", "born": "soon"}}
        raw = await client.temporal.start_workflow(
            WORKFLOW_TYPE, start, id=f"c-{uuid.uuid4().hex}", task_queue=engine.task_queue
        )
        with pytest.raises(InvalidInputError, match="born: "):
            await client.run(raw.id).result()
    assert provider.requests == []
