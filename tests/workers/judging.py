"""An agent that calls another one, whose tool takes its time: both are in the ledger."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import Agent, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import ToolCallPart
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


@tool(idempotent=True)
async def weigh(what: str) -> str:
    """Weigh something: the first time, for ever."""
    first = not ledger.entries("weigh")
    ledger.add("weigh", what)
    if first:
        await asyncio.Event().wait()
    return f"{what} weighs 3"


def judge(request: ModelRequest) -> Any:
    ledger.add("judge", str(len(request.messages)))
    last = request.messages[-1]
    if last.role == "tool":
        return last.tool_results[0].content
    return ToolCallPart(id="call_weigh", name="weigh", arguments={"what": last.text})


def boss(request: ModelRequest) -> Any:
    ledger.add("boss", str(len(request.messages)))
    last = request.messages[-1]
    if last.role == "tool":
        return f"The judge said: {last.tool_results[0].content}"
    return ToolCallPart(id="call_judge", name="call_judge", arguments={"task": "a stone"})


def agents() -> list[Agent]:
    return [Agent("boss", ScriptedProvider(boss), subagents=[Agent("judge", ScriptedProvider(judge), tools=[weigh])])]


if __name__ == "__main__":
    run_worker(agents())
