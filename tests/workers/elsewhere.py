"""An agent whose tools are run elsewhere, by the test's own worker and by a client; its hooks are in the ledger.

``TEST_KILL_AT`` is a point, and ``TEST_KILL_COUNT`` which time it is reached in this process.
"""

from __future__ import annotations

import os
from typing import Any, cast

from perdure import Agent, ToolContext, callback_tool, hook, remote_tool
from perdure.ports.model import ModelRequest
from perdure.ports.test_seams import Point
from perdure.testing import ScriptedProvider, kill_at
from perdure.types.messages import ToolCallPart, ToolResultPart
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


@hook("before_tool_call")
async def before(name: str, arguments: dict[str, Any], ctx: ToolContext) -> dict[str, Any]:
    await ctx.memory.put("before", ctx.call_id, True)
    ledger.add("before", name)
    return {**arguments, "card": "***"}


@hook("after_tool_call")
async def after(name: str, result: ToolResultPart, ctx: ToolContext) -> str:
    n = await ctx.memory.get("after", ctx.call_id, 0)
    await ctx.memory.put("after", ctx.call_id, n + 1)
    ledger.add("after", name)
    return result.content.replace("secret", "***")


def asks(name: str) -> Any:
    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return "Done."
        return ToolCallPart(id="call_1", name=name, arguments={"card": "4000"})

    return ScriptedProvider(reply)


if __name__ == "__main__":
    tools = [remote_tool("pay", {}, f"{os.environ['PERDURE_TASK_QUEUE']}-far"), callback_tool("show", "Show.")]
    if point := os.environ.pop("TEST_KILL_AT", None):
        once = f"{os.environ['TEST_LEDGER']}.killed"
        kill_at(cast(Point, point), count=int(os.environ["TEST_KILL_COUNT"]), once=once)
    run_worker([Agent(one.name, asks(one.name), tools=[one], hooks=[before, after]) for one in tools])
