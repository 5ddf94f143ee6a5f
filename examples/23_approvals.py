"""A clerk who may look at orders, but refunds them only when a person has agreed, maybe to less."""

import asyncio

from perdure import Agent, Approval, allow, ask, tool
from perdure.client.inbox import PendingCall


@tool
def look(order: str) -> str:
    """Look at an order."""
    return f"order {order}: a lamp, 40 EUR, arrived broken"


@tool(needs_approval=Approval(expires="7d"))
def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount:g} EUR of order {order}"


clerk = Agent(
    "clerk",
    "openai:gpt-5-mini",
    instructions="Help customers with their orders.",
    tools=[look, refund],
    approvals=[allow("look"), ask("*")],
)


async def review(waiting: PendingCall) -> None:
    """What a reviewer does, usually elsewhere: `perdure approvals`, and `perdure approve` or `deny`."""
    print(f"waits: {waiting.tool}({waiting.arguments})")
    decided = await waiting.approve(by="ana", comment="half of it", arguments={"order": "7", "amount": 20})
    print(f"{decided.state} by {decided.by}: {decided.comment}")


async def main() -> None:
    response = await clerk.call("My lamp of order 7 is broken.", on_approval=review)
    print(response.content)


if __name__ == "__main__":
    asyncio.run(main())
