"""Agents of a deployment: ``careful`` is pinned, ``plain`` upgrades at once, ``lead`` is pinned and calls ``plain``.

``TEST_VERSION`` is the version of their code: their replies and their tools say it. Each reply and each payment goes to
the ledger, under the key of the message or call that it belongs to. A message "hold NAME" calls the tool ``hold``,
which runs until the file ``TEST_FOLDER/NAME`` is there; "pay NAME" asks for approval; "delegate NAME" has ``plain``
hold; any other text gets a reply.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from perdure import Agent, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.engine import run_worker
from tests.support.ledger import Ledger
from tests.support.wait import eventually

VERSION = os.environ["TEST_VERSION"]
FOLDER = Path(os.environ["TEST_FOLDER"])
ledger = Ledger(os.environ["TEST_LEDGER"])


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay a person."""
    ledger.add("pay", to, version=VERSION)
    return f"{VERSION} paid {to}"


@tool(idempotent=True, timeout=120)
async def hold(name: str) -> str:
    """Take a while."""
    ledger.add("hold", name, version=VERSION)
    await eventually((FOLDER / name).exists, deadline=110)
    return f"{VERSION} held {name}"


def reply(request: ModelRequest) -> Any:
    """A tool call for what asks for one; else an answer that says which version gave it."""
    last, asked = request.messages[-1], next(m.text for m in reversed(request.messages) if m.role == "user")
    ledger.add("reply", f"{asked}/{last.role}", version=VERSION)
    verb, _, name = asked.partition(" ")
    if last.role == "user" and verb in CALLS:
        tool_name, argument, text = CALLS[verb]
        return call(tool_name, **{argument: text.format(name)})
    return f"{VERSION}: {', '.join(result.content for result in last.tool_results) or asked}"


CALLS = {"hold": ("hold", "name", "{}"), "pay": ("pay", "to", "{}"), "delegate": ("call_plain", "task", "hold {}")}
"""By the first word of a message: the tool that is called, its argument, and what that is made of."""
model = ScriptedProvider(reply)
careful = Agent("careful", model, tools=[pay, hold], versioning="pinned")
plain = Agent("plain", model, tools=[pay, hold])
lead = Agent("lead", model, subagents=[plain], versioning="pinned")

if __name__ == "__main__":
    run_worker([careful, plain, lead], drain=10.0)
