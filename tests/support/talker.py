"""The file of agents that the tests of conversations talk with: ``agents.py`` in their folder."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel

from perdure import Agent, ToolContext, tool
from perdure.errors import AuthenticationError
from perdure.testing import ScriptedProvider, call

FOLDER = Path(os.environ["CLI_TEST_FOLDER"])


class User(BaseModel):
    name: str


@asynccontextmanager
async def lifespan():
    yield "the file's resources"


@tool
def gate(ctx: ToolContext, n: int) -> str:
    """Wait until the test opens it."""
    print("entered the gate")
    (FOLDER / "entered").touch()
    while not (FOLDER / "open").exists() and not ctx.cancelled:
        time.sleep(0.02)
    return f"passed {n}"


@tool
def look(ctx: ToolContext) -> str:
    """What the tool is given."""
    return f"{ctx.resources}, {ctx.context.name}"


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


talker = Agent("talker", ScriptedProvider(talk), tools=[gate])
shower = Agent("shower", ScriptedProvider(show), tools=[look], context=User)
