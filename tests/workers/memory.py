"""An agent that counts visits in memory. A run of it may be killed at a named point: ``TEST_KILL_AT``."""

from __future__ import annotations

import os

from perdure import Agent, RunContext, ToolContext, tool
from perdure.testing import ScriptedProvider
from tests.support.engine import run_worker
from tests.support.ledger import Ledger
from tests.support.scripts import calls_then

ledger = Ledger(os.environ["TEST_LEDGER"])


async def add(ctx: RunContext, key: str) -> int:
    """One more, as anybody would write it."""
    n: int = await ctx.memory.get("visits", key, 0) + 1
    await ctx.memory.put("visits", key, n)
    ledger.add("visit", key)
    return n


@tool(idempotent=True)
async def again(ctx: ToolContext) -> int:
    """Count, and again after a lost worker."""
    return await add(ctx, "again")


@tool
async def once(ctx: ToolContext) -> int:
    """Count, once at most."""
    return await add(ctx, "once")


@tool(inline=True, idempotent=True)
async def inline(ctx: ToolContext) -> int:
    """Count, inside the model's activity."""
    return await add(ctx, "inline")


async def greet(ctx: RunContext) -> str:
    await add(ctx, "instructions")
    return "Greet."


def agents() -> list[Agent]:
    """One for each tool, and one whose instructions count."""
    counting = [
        Agent(one.name, ScriptedProvider(calls_then(1, one.name)), tools=[one]) for one in (again, once, inline)
    ]
    return [*counting, Agent("instructions", ScriptedProvider(lambda _: "Hello."), instructions=greet)]


if __name__ == "__main__":
    run_worker(agents())
