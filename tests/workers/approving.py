"""An agent that calls ``pay`` for each word of what it is told, at once. Calls and reminders go to the ledger.

``TEST_CODE`` says what a deploy has made of it: ``"gone"`` has no such tool, ``"ask"`` and ``"deny"`` have such a rule,
``"free"`` asks no person, and its calls hang.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import Agent, Approval, ToolContext, ask, deny, hook, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ["TEST_LEDGER"])
code = os.environ.get("TEST_CODE", "")
expires = os.environ.get("TEST_EXPIRES")
APPROVAL = Approval(remind=1, expires=float(expires)) if expires else Approval(remind=1)


@tool(idempotent=True, needs_approval=False if code in ("free", "ask") else APPROVAL)
async def pay(ctx: ToolContext, to: str, amount: int = 5) -> str:
    """Pay a person."""
    ledger.add("pay", to, amount=amount)
    if code == "free":
        await asyncio.Event().wait()
    return f"paid {amount} to {to}"


@hook("on_approval")
def notify(arguments: dict[str, Any], reminder: int) -> None:
    """What would notify a person."""
    ledger.add("told", f"{arguments['to']} {reminder}")


def reply(request: ModelRequest) -> Any:
    """A call for each word; then the end."""
    said = request.messages[-1]
    return "Done." if said.role == "tool" else [call("pay", to=word) for word in said.text.split()]


rules = {"ask": [ask("pay")], "deny": [deny("pay")]}
agent = Agent(
    "paying",
    ScriptedProvider(reply),
    tools=[] if code == "gone" else [pay],
    approvals=rules.get(code, []),
    hooks=[notify],
)

if __name__ == "__main__":
    run_worker([agent])
