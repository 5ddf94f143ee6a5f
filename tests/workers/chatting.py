"""A chat bot that remembers each user, on the model at ``TEST_MODEL_URL``. Its tools write to the ledger too."""

from __future__ import annotations

import os
from typing import Any

from perdure import Agent, RunContext, ToolContext, tool
from perdure.providers.openai_chat import OpenAIChat
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ["TEST_LEDGER"])


def _user(ctx: RunContext) -> str:
    context: Any = ctx.context
    return str(context["user"])


async def _keep(ctx: ToolContext, n: int) -> int:
    """What the user said as number ``n``, kept behind what was said before."""
    said = await ctx.memory.get("said", _user(ctx), [])
    ledger.add("note", f"{_user(ctx)}/{n}", attempt=ctx.attempt)
    await ctx.memory.put("said", _user(ctx), [*said, n])
    return len(said) + 1


@tool(idempotent=True)
async def note(ctx: ToolContext, n: int) -> int:
    """Remember a message."""
    return await _keep(ctx, n)


@tool(idempotent=True, inline=True)
async def jot(ctx: ToolContext, n: int) -> int:
    """Remember a message, at once."""
    return await _keep(ctx, n)


async def instructions(ctx: RunContext) -> str:
    """Counts the model calls of the user: once each, however often one is tried."""
    asked = await ctx.memory.get("asked", _user(ctx), 0) + 1
    await ctx.memory.put("asked", _user(ctx), asked)
    return f"You talk to {_user(ctx)}."


agent = Agent(
    "chatting",
    OpenAIChat(base_url=os.environ.get("TEST_MODEL_URL", "http://127.0.0.1:1/v1"), api_key="test"),
    instructions=instructions,
    tools=[note, jot],
)

if __name__ == "__main__":
    run_worker([agent])
