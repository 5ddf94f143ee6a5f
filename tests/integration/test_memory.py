"""``ctx.memory`` in real runs: shared by conversations, part of each outcome, and right when workers are lost."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import Any

import pytest

from perdure import Agent, RunContext, ToolContext, tool
from perdure.errors import RunCancelledError
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine, side_by_side
from tests.support.scripts import Gate
from tests.support.wait import eventually


@tool
async def learn(ctx: ToolContext, fact: str) -> str:
    """Keep a fact of the user."""
    facts = await ctx.memory.get(ctx.context["user"], "facts", [])
    await ctx.memory.put(ctx.context["user"], "facts", [*facts, fact])
    return "kept"


@tool(inline=True)
def recall(ctx: ToolContext) -> Any:
    """What is known of the user?"""
    return ctx.memory.blocking.get(ctx.context["user"], "facts")


def instructions(ctx: RunContext) -> str:
    return f"Known: {ctx.memory.blocking.list(ctx.context['user'])}"


async def test_what_one_conversation_keeps_another_finds(engine: Engine) -> None:
    provider = ScriptedProvider(
        [call("learn", fact="likes tea"), "Noted.", call("recall"), "Tea?", call("recall"), "?"]
    )
    agent = Agent("host", provider, instructions=instructions, tools=[learn, recall])
    async with engine.served(agent) as client:
        await (await client.start("host", "I like tea.", context={"user": "ana"})).result()
        said = await (await client.start("host", "What do I like?", context={"user": "ana"})).result()
        other = await (await client.start("host", "What do I like?", context={"user": "bo"})).result()
        kept = await client.memory.list("ana")
    assert results(said.messages) == ['["likes tea"]']
    assert results(other.messages) == ["null"]
    assert provider.requests[2].system == "Known: {'facts': ['likes tea']}"
    assert kept == {"facts": ["likes tea"]}


async def test_a_tool_that_fails_has_kept_nothing(engine: Engine) -> None:
    @tool
    async def half(ctx: ToolContext) -> None:
        """Do half of it."""
        await ctx.memory.put("n", "half", 1)
        raise ValueError("the other half")

    @tool(timeout=0.2)
    async def hang(ctx: ToolContext) -> None:
        """Never end."""
        await ctx.memory.put("n", "hang", 1)
        await asyncio.Event().wait()

    @tool
    async def odd(ctx: ToolContext) -> None:
        """Keep what cannot be kept."""
        await ctx.memory.put("n", "odd", {1: object()})

    replies = [[call("half"), call("hang"), call("odd")], "I see."]
    agent = Agent("clumsy", ScriptedProvider(replies), tools=[half, hang, odd])
    async with engine.served(agent) as client:
        response = await (await client.start("clumsy", "Go.")).result()
        assert await client.memory.list("n") == {}
    failed, hung, refused = results(response.messages)
    assert failed == "ValueError: the other half"
    assert hung.startswith("TimeoutError: hang did not finish")
    assert refused.startswith("InvalidInputError: memory 'n', key 'odd': the value must be plain JSON")


async def test_a_tool_that_is_cancelled_has_kept_nothing(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def hang(ctx: ToolContext) -> None:
        """Never end."""
        await ctx.memory.put("n", "hang", 1)
        await gate()

    agent = Agent("slow", ScriptedProvider([call("hang")]), tools=[hang])
    async with engine.served(agent) as client:
        run = await client.start("slow", "Go.")
        await eventually(lambda: gate.entered)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert await client.memory.list("n") == {}


KILLED_AT = [
    ("again", "tool.acted"),
    ("inline", "tool.acted"),
    ("inline", "tool.recorded"),
    ("once", "tool.acted"),
    ("once", "tool.recorded"),
    ("instructions", "model.answered"),
    ("instructions", "model.recorded"),
]


@pytest.mark.fault(
    "Workers",
    "A worker is killed between a tool's act and its record.",
    "What the tool wrote to memory is there once, or not at all.",
)
@pytest.mark.server
async def test_a_worker_killed_between_the_act_and_its_record_counts_once(engine: Engine) -> None:
    """And what a tool has kept whose outcome is unknown does not count."""
    await side_by_side(
        engine, {f"{agent} {point}": partial(_killed_at, agent=agent, point=point) for agent, point in KILLED_AT}
    )


async def _killed_at(engine: Engine, *, agent: str, point: str) -> None:
    client = await engine.client()
    doomed = await engine.process("memory", TEST_KILL_AT=point)
    run = await client.start(agent, "Go.")
    assert await doomed.gone() == -signal.SIGKILL
    await engine.process("memory")
    response = await run.result()
    unknown = (agent, point) == ("once", "tool.acted")
    if unknown:
        assert results(response.messages)[0].startswith("OutcomeUnknown: once was started")
    elif agent != "instructions":
        assert results(response.messages) == ["1"]
    assert await client.memory.list("visits") == ({} if unknown else {agent: 1})
    ran_again = point in ("tool.acted", "model.answered") and not unknown
    assert engine.ledger.counts("visit") == {agent: 2 if ran_again else 1}
