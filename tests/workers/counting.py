"""An agent whose tools write what they do to the ledger, on the model at ``TEST_MODEL_URL``."""

from __future__ import annotations

import asyncio
import os

from perdure import Agent, ToolContext, tool
from perdure.providers.openai_chat import OpenAIChat
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ["TEST_LEDGER"])
seconds = float(os.environ.get("TEST_TOOL_SECONDS", "0.05"))


@tool
async def work(ctx: ToolContext, n: str) -> str:
    """Do something that must not be done twice."""
    ledger.add("work", n, attempt=ctx.attempt)
    await asyncio.sleep(seconds)
    ledger.add("worked", n)
    return f"worked {n}"


@tool(idempotent=True)
async def look(ctx: ToolContext, n: str) -> str:
    """Do something that may be done again."""
    ledger.add("look", n, attempt=ctx.attempt)
    await asyncio.sleep(seconds)
    return f"looked {n}"


agent = Agent(
    "counting",
    OpenAIChat(base_url=os.environ.get("TEST_MODEL_URL", "http://127.0.0.1:1/v1"), api_key="test"),
    tools=[work, look],
    max_iterations=10_000,
)

if __name__ == "__main__":
    run_worker([agent])
