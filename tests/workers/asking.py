"""An agent whose tool asks, and that hands a call to a client; runs of the tool are in the ledger."""

from __future__ import annotations

import os
from typing import Any

from perdure import Agent, ToolContext, callback_tool, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import ToolCallPart
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


@tool
async def transfer(ctx: ToolContext, amount: int) -> str:
    """Move money. Not idempotent."""
    ledger.add("run", ctx.idempotency_key)
    account = await ctx.ask("Which account?", str)
    ledger.add("paid", ctx.idempotency_key, account=account)
    return f"{amount} from {account}"


open_page = callback_tool("open_page", "Open a page in the browser.", output=str)


def clerk(request: ModelRequest) -> Any:
    if request.messages[-1].role == "tool":
        return "Done."
    return [
        ToolCallPart(id="call_pay", name="transfer", arguments={"amount": 3}),
        ToolCallPart(id="call_page", name="open_page", arguments={}),
    ]


if __name__ == "__main__":
    run_worker([Agent("clerk", ScriptedProvider(clerk), tools=[transfer, open_page])])
