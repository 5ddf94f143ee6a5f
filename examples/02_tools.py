"""Kinds of tools: sync and async, typed with pydantic, idempotent, inline, and one that acts at most once.

OPENAI_API_KEY=… python examples/02_tools.py
"""

from pydantic import BaseModel, Field

from perdure import Agent, ToolContext, tool


class Item(BaseModel):
    article: str
    quantity: int = Field(ge=1)


@tool(idempotent=True, retries=3, timeout=30)  # run again if its worker is lost: reading twice does no harm
async def stock(article: str) -> int:
    """How many of an article are in stock."""
    return {"lamp": 4, "chair": 0}.get(article, 0)


@tool(inline=True)  # quick, so it runs together with the model call that asks for it; def runs in a thread
def in_currency(euros: float, currency: str) -> float:
    """Convert an amount in euros."""
    return euros * {"USD": 1.1, "GBP": 0.9}[currency]  # a KeyError is an answer too: the model sees it


@tool  # the default: never run again, because nobody knows how far a lost attempt came
async def order(items: list[Item], ctx: ToolContext) -> str:
    """Place an order."""
    # Hand the key to the API that acts: it is this call's own, and the same in every attempt.
    return f"ordered {', '.join(f'{i.quantity} {i.article}' for i in items)} under key {ctx.idempotency_key}"


shop = Agent("shop", "openai:gpt-5-mini", instructions="You sell furniture.", tools=[stock, in_currency, order])

if __name__ == "__main__":
    response = shop.call_sync("Two lamps please, 20 euros each. What is that in dollars?")
    results = [result.content for message in response.messages for result in message.tool_results]
    print(*results, response.content, sep="\n")
