"""An agent whose step policy is anything but deterministic: it looks at the clock, at dice, at a file and at a server.

``TEST_POLICY`` says which code it has. With ``TEST_STEP_KILL`` the worker kills itself at that point of the second
model call, the first one that the policy runs before.
"""

from __future__ import annotations

import os
import random
import time
import urllib.request
from pathlib import Path
from typing import cast

from perdure import Agent, Step, hook, tool
from perdure.ports.test_seams import Point
from perdure.providers.openai_chat import OpenAIChat
from perdure.testing import kill_at
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ["TEST_LEDGER"])
version = os.environ.get("TEST_POLICY", "old")
notes = Path(f"{os.environ['TEST_LEDGER']}.notes")


@tool(idempotent=True)
async def look(n: str) -> str:
    """Look at something."""
    return f"looked {n}"


@hook("on_iteration")
def old(step: Step) -> None:
    """Keeps a setting, changes a result, says what it found."""
    with notes.open("a") as file:
        file.write(f"{time.time()}\n")
    with urllib.request.urlopen(os.environ["TEST_FACTS"]) as answer:  # noqa: S310  # a server of the test
        fact = answer.read().decode()
    ledger.add("policy", f"old {step.iteration}")
    step.settings["temperature"] = round(random.random(), 3)
    step.settings["seed"] = time.time_ns() % 100_000
    step.keep()
    step.results[-1] = f"{step.results[-1].content}, at {time.time()}"
    step.inject(f"old {step.iteration}: {fact}, {random.random()}, {notes.stat().st_size} bytes")


@hook("on_iteration")
def new(step: Step) -> None:
    """What was deployed meanwhile: it shortens the conversation, and wants other settings."""
    ledger.add("policy", f"new {step.iteration}")
    step.settings["temperature"] = 1.0
    step.trim(2)
    step.inject(f"new {step.iteration}: {random.random()}")


agent = Agent(
    "stepping",
    OpenAIChat(base_url=os.environ.get("TEST_MODEL_URL", "http://127.0.0.1:1/v1"), api_key="test"),
    tools=[look],
    hooks=[old if version == "old" else new],
)

if __name__ == "__main__":
    if point := os.environ.get("TEST_STEP_KILL"):
        kill_at(cast(Point, point), count=2, once=f"{os.environ['TEST_LEDGER']}.killed")
    run_worker([agent])
