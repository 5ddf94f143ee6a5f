"""Agents whose hooks use the clock, random numbers, files and HTTP. ``TEST_HOOKS`` is the version of their code."""

from __future__ import annotations

import os
import random
import time
import urllib.request
from pathlib import Path
from typing import Any

from perdure import Agent, ToolContext, hook, tool
from perdure.testing import ScriptedProvider
from perdure.types.messages import Message, ToolResultPart
from tests.support.engine import run_worker
from tests.support.ledger import Ledger
from tests.support.scripts import calls_then

ledger = Ledger(os.environ["TEST_LEDGER"])
VERSION = os.environ["TEST_HOOKS"]


def outside() -> str:
    """Something else each time, and in each version."""
    with urllib.request.urlopen(os.environ["TEST_URL"]) as answer:  # noqa: S310  # the test's own server
        told = answer.read().decode()
    note = Path(f"{os.environ['TEST_LEDGER']}.note")
    note.write_text(f"{VERSION} {random.random()} {time.time_ns()}")
    return f"{told} {note.read_text()}"


@hook("on_user_message")
def heard(message: Message) -> str:
    ledger.add("heard")
    return f"{message.text} ({outside()})"


@hook("before_llm_call")
async def asked(messages: Any) -> list[Message]:
    ledger.add("asked", str(len(messages)))
    return [*messages[:-1], messages[-1]]


@hook("after_llm_call")
def said(reply: Message) -> Any:
    ledger.add("said", reply.tool_calls[0].id if reply.tool_calls else "answer")
    return None if reply.tool_calls else f"{reply.text} {outside()}"


@hook("before_tool_call")
def before(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "seed": random.randrange(10**9)}


@hook("after_tool_call")
async def after(result: ToolResultPart, ctx: ToolContext) -> str:
    n = await ctx.memory.get("hooks", "tools", 0)
    await ctx.memory.put("hooks", "tools", n + 1)
    ledger.add("after", ctx.call_id)
    return f"{VERSION}: {result.content}"


@hook("on_finish")
def finished(content: str) -> str:
    ledger.add("finished")
    return f"{content} [{VERSION}]"


@tool(idempotent=True)
def dice(n: str, seed: int = 0) -> str:
    """Roll."""
    return f"{n} {seed}"


@tool(inline=True, idempotent=True)
def quick(n: str, seed: int = 0) -> str:
    """Roll, at once."""
    return f"{n} {seed}"


def agents() -> list[Agent]:
    """One whose tool is an activity, one whose tool is inline."""
    all_of_them = [heard, asked, said, before, after, finished]
    return [
        Agent(one.name, ScriptedProvider(calls_then(2, one.name, n="{n}")), tools=[one], hooks=all_of_them)
        for one in (dice, quick)
    ]


if __name__ == "__main__":
    run_worker(agents())
