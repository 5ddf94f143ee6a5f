"""An agent with a tool that needs approval, on a worker that kills itself at a point of a webhook's delivery."""

from __future__ import annotations

import os
from typing import Any, cast

from perdure import Agent, tool
from perdure.ports.model import ModelRequest
from perdure.ports.test_seams import Point
from perdure.testing import ScriptedProvider, call, kill_at
from perdure.worker import webhook_delivery as deliveries
from tests.support.engine import run_worker


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


deliveries.POLL_SECONDS = 0.05
deliveries.LEASE_SECONDS = float(os.environ["TEST_WEBHOOK_LEASE"])
deliveries.RETRY_SECONDS = (0.05,) * 9
if point := os.environ.get("TEST_KILL_POINT"):
    kill_at(cast(Point, point), once=f"{os.environ['TEST_LEDGER']}.killed")


def reply(request: ModelRequest) -> Any:
    """By the transcript: a process that follows a killed one has a script of its own."""
    return "Done." if request.messages[-1].role == "tool" else call("refund", amount=3)


run_worker([Agent("support", ScriptedProvider(reply), tools=[refund])])
