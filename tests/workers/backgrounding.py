"""An agent that starts two others in background and collects them; a tool of theirs takes its time, once."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import Agent, background, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import ToolCallPart
from tests.support.engine import run_worker
from tests.support.ledger import Ledger
from tests.support.scripts import replied

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


@tool(idempotent=True)
async def weigh(what: str) -> str:
    """Weigh something: the first time, for ever."""
    first = not ledger.counts("weigh")[what]
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
    turn = replied(request)
    ledger.add("boss", str(turn))
    match turn:
        case 0:
            return [
                ToolCallPart(id=f"start_{what}", name="start_agent", arguments={"agent_name": "judge", "message": what})
                for what in ("a stone", "a feather")
            ]
        case 1:
            return [
                ToolCallPart(id=f"collect_{handle}", name="collect_agent", arguments={"handle": handle})
                for handle in ("b1", "b2")
            ]
    return " and ".join(part.content for part in request.messages[-1].tool_results)


def agents() -> list[Agent]:
    judges = Agent("judge", ScriptedProvider(judge), tools=[weigh])
    return [Agent("boss", ScriptedProvider(boss), tools=background([judges]))]


if __name__ == "__main__":
    run_worker(agents())
