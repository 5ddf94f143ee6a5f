"""Tools and parts of the instructions beside their agent, as decorators; the same as tools=[…] and instructions=[…]."""

from datetime import UTC, datetime

from perdure import Agent, RunContext

shop = Agent("shop", "openai:gpt-5-mini", instructions="You sell furniture.")


@shop.instructions  # for each model call; the parts follow each other
def opening_hours(ctx: RunContext) -> str:
    return f"It is {datetime.now(UTC):%A}; the shop is open {ctx.context.get('hours', 'all day')}."


@shop.tool
async def stock(article: str) -> int:
    """How many of an article are in stock."""
    return {"lamp": 4}.get(article, 0)


@shop.tool(timeout=30, idempotent=True)
def price(article: str) -> float:
    """The price of an article, in euros."""
    return {"lamp": 29.9}[article]


if __name__ == "__main__":
    print(shop.call_sync("What is a lamp?", context={"hours": "9 to 5"}).content)
