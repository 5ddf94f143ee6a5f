"""Tools are functions: signature and docstring are the schema that the model sees, and that its arguments must fit."""

from typing import Literal

from perdure import Agent, ToolContext, tool


@tool(idempotent=True)  # run again if its worker is lost: reading twice does no harm
async def stock(article: Literal["lamp", "chair"]) -> int:
    """How many of an article are in stock."""
    return {"lamp": 4, "chair": 0}[article]


@tool  # the default: at most once: how far a lost attempt came is unknown; plain def runs in a thread
def order(article: str, quantity: int, ctx: ToolContext) -> str:
    """Place an order."""
    return f"ordered {quantity} {article}, under key {ctx.idempotency_key}"  # the key is for the API that acts


shop = Agent("shop", "openai:gpt-5-mini", instructions="You sell furniture.", tools=[stock, order])

if __name__ == "__main__":
    print(shop.call_sync("Two lamps, please.").content)
