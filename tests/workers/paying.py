"""An agent that pays at ``TEST_SHOP_URL``: ``pay`` inline, ``charge`` in an activity of its own.

``TEST_KILL_AT`` is a point, and ``TEST_KILL_COUNT`` which time it is reached in this process.
"""

from __future__ import annotations

import os
from typing import cast

import httpx

from perdure import Agent, tool
from perdure.ports.test_seams import Point
from perdure.providers.openai_chat import OpenAIChat
from perdure.testing import kill_at
from tests.support.engine import run_worker


async def order(n: str) -> str:
    """Have the shop, which counts, do it."""
    async with httpx.AsyncClient(base_url=os.environ["TEST_SHOP_URL"], timeout=120, trust_env=False) as shop:
        (await shop.post(f"/{n}")).raise_for_status()
    return f"paid {n}"


@tool(inline=True)
async def pay(n: str) -> str:
    """Pay, within the model's activity."""
    return await order(n)


@tool
async def charge(n: str) -> str:
    """Pay, in an activity of its own."""
    return await order(n)


if __name__ == "__main__":
    if point := os.environ.pop("TEST_KILL_AT", None):
        once = f"{os.environ['TEST_LEDGER']}.killed"
        kill_at(cast(Point, point), count=int(os.environ.get("TEST_KILL_COUNT", "1")), once=once)
    model = OpenAIChat(base_url=os.environ["TEST_MODEL_URL"], api_key="test")
    run_worker([Agent("paying", model, tools=[pay, charge])])
