"""An agent whose tool says how it goes, on the model at ``TEST_MODEL_URL``. ``TEST_WORKERS`` share the first calls.

The tool goes on when so many processes have begun one: each has room for two activities, so no one gets them all.
"""

from __future__ import annotations

import os

from perdure import Agent, RunContext, ToolContext, tool
from perdure.providers.openai_chat import OpenAIChat
from tests.support.engine import run_worker
from tests.support.ledger import Ledger
from tests.support.wait import eventually

WORKERS = int(os.environ["TEST_WORKERS"])
ledger = Ledger(os.environ["TEST_LEDGER"])


def _everybody() -> bool:
    return len({entry["pid"] for entry in ledger.entries("told")}) >= WORKERS


@tool(idempotent=True)
async def tell(ctx: ToolContext, n: int) -> str:
    """Tell how it goes."""
    ledger.add("told", ctx.run_id, pid=os.getpid(), n=n)
    await eventually(_everybody, deadline=60, what="a call at every worker")
    for step in range(3):
        ctx.progress(f"{n}, step {step}")
    return f"told {n}"


async def instructions(ctx: RunContext) -> str:
    """Says who makes the model call."""
    ledger.add("asks", ctx.run_id, pid=os.getpid(), iteration=ctx.iteration)
    return "Tell."


agent = Agent(
    "telling",
    OpenAIChat(base_url=os.environ["TEST_MODEL_URL"], api_key="test"),
    instructions=instructions,
    tools=[tell],
)

if __name__ == "__main__":
    run_worker([agent], max_concurrent_activities=2)
