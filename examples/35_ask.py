"""A clerk whose tool asks a person in the middle of its work, and goes on with the answer."""

import asyncio

from pydantic import BaseModel

from perdure import Agent, ToolContext, tool
from perdure.client.inbox import PendingCall


class Transfer(BaseModel):
    account: str
    amount: float


@tool
async def pay(ctx: ToolContext, invoice: str) -> str:
    """Pay an invoice."""
    transfer = await ctx.ask(f"From which account shall I pay {invoice}, and how much?", Transfer, expires="7d")
    if not await ctx.ask(f"Pay {transfer.amount:g} EUR from {transfer.account}?", bool):
        return "not paid"
    return f"paid {transfer.amount:g} EUR from {transfer.account}"  # what acts stands behind the questions


clerk = Agent("clerk", "openai:gpt-5-mini", instructions="Pay what the user asks you to.", tools=[pay])


def person(waiting: PendingCall) -> object:
    """What a person does, usually elsewhere: `perdure approvals`, and `perdure answer`."""
    print(waiting.question)
    return True if waiting.form == {"type": "boolean"} else Transfer(account="savings", amount=40)


async def main() -> None:
    response = await clerk.call("Pay invoice 7, please.", on_approval=person)
    print(response.content)


if __name__ == "__main__":
    asyncio.run(main())
