"""An agent whose model answers nothing at first: only the second thing that it is told."""

from __future__ import annotations

import asyncio
import os

from perdure import Agent
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from tests.support.checks import users
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


async def reply(request: ModelRequest) -> str:
    heard = users(request.messages)
    if len(heard) == 1:
        ledger.add("asked", heard[0])
        await asyncio.Event().wait()
    return f"You said {heard[-1]}"


def agents() -> list[Agent]:
    return [Agent("stuck", ScriptedProvider(reply))]


if __name__ == "__main__":
    run_worker(agents())
