"""An agent whose step policy asks another one, whose tool takes its time: all are in the ledger.

With ``TEST_BRANCH_KILL`` the worker kills itself at that point of the second model call, which asks for the branch.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

from perdure import Agent, Step, hook, tool
from perdure.ports.model import ModelRequest
from perdure.ports.test_seams import Point
from perdure.testing import ScriptedProvider, kill_at
from perdure.types.messages import ToolCallPart
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


@tool(idempotent=True)
async def weigh(what: str) -> str:
    """Weigh something: the first time, for ever."""
    first = not ledger.entries("weigh") and "TEST_WEIGH" not in os.environ
    ledger.add("weigh", what)
    if first:
        await asyncio.Event().wait()
    return "3"


@tool(idempotent=True)
async def fetch() -> str:
    """Fetch it."""
    return "a stone"


def judge(request: ModelRequest) -> Any:
    ledger.add("judge", str(len(request.messages)))
    last = request.messages[-1]
    if last.role == "tool":
        return last.tool_results[0].content
    return ToolCallPart(id="call_weigh", name="weigh", arguments={"what": last.text})


def boss(request: ModelRequest) -> Any:
    ledger.add("boss", str(len(request.messages)))
    done = any(message.role == "tool" for message in request.messages)
    return "Done." if done else ToolCallPart(id="call_fetch", name="fetch", arguments={})


@hook("on_iteration")
async def policy(step: Step) -> None:
    ledger.add("policy", str(step.iteration))
    step.inject(f"The judge said: {await step.branch('judge', step.results[0].content)}")


if __name__ == "__main__":
    if point := os.environ.get("TEST_BRANCH_KILL"):
        kill_at(cast(Point, point), count=2, once=f"{os.environ['TEST_LEDGER']}.killed")
    run_worker(
        [
            Agent("boss", ScriptedProvider(boss), tools=[fetch], hooks=[policy]),
            Agent("judge", ScriptedProvider(judge), tools=[weigh]),
        ]
    )
