"""The file of agents that the tests of conversations talk with: ``agents.py`` in their folder."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from perdure import Agent, ToolContext, tool
from perdure.errors import AuthenticationError
from perdure.ports.model import Completed, TextDelta
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.messages import TextPart

FOLDER = Path(os.environ["CLI_TEST_FOLDER"])


class User(BaseModel):
    name: str


class Trip(BaseModel):
    city: str


@asynccontextmanager
async def lifespan():
    yield "the file's resources"


@tool
def gate(ctx: ToolContext, n: int) -> str:
    """Wait until the test opens it."""
    print("entered the gate")
    with (FOLDER / "entered").open("a") as entered:
        entered.write("x")
    while not (FOLDER / "open").exists() and not ctx.cancelled:
        time.sleep(0.02)
    return f"passed {n}"


@tool
def look(ctx: ToolContext) -> str:
    """What the tool is given."""
    return f"{ctx.resources}, {ctx.context.name}"


class Slow:
    """Writes a line, and the other when the test lets it."""

    async def stream(self, request):
        yield TextDelta("Line 1.\n")
        while not (FOLDER / "open").exists():  # noqa: ASYNC110  # the test is another process
            await asyncio.sleep(0.02)
        yield TextDelta("Line 2.")
        yield Completed((TextPart(text="Line 1.\nLine 2."),), model=request.model)


def said(request):
    return [message.text for message in request.messages if message.role == "user"]


def talk(request):
    text = said(request)[-1]
    if "fail" in text:
        raise AuthenticationError("the key is wrong")
    if "wait" in text and request.messages[-1].role != "tool":
        return ["I wait.", call("gate", n=len(said(request)))]
    return f"{len(said(request))}: " + " | ".join(repr(text) for text in said(request)[-2:])


def show(request):
    last = request.messages[-1]
    return last.tool_results[0].content if last.role == "tool" else [call("look")]


@tool(needs_approval=True)
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def pick(ctx: ToolContext) -> str:
    """Ask for the account."""
    return await ctx.ask("Which account?", Literal["savings", "checking"])


def serve(request):
    turn = list(itertools.takewhile(lambda message: message.role != "assistant", reversed(request.messages)))
    parts = [part for message in reversed(turn) for part in message.tool_results]
    results = [part.content for part in parts if part.name in ("refund", "pick")]
    if results:
        return ["I am done.", finish(city=" and ".join(results))]
    asks = "ask" in said(request)[-1]
    return [call("pick")] if asks else [call("refund", order=order) for order in ("a", "b", "c")]


talker = Agent("talker", ScriptedProvider(talk), tools=[gate])
shower = Agent("shower", ScriptedProvider(show), tools=[look], context=User)
planner = Agent("planner", ScriptedProvider(lambda _: "Planned."), input=Trip)
slow = Agent("slow", Slow())
desk = Agent("desk", ScriptedProvider(serve), tools=[refund, pick], output=Trip)
