"""A worker: serves agents until SIGTERM, then finishes what it has begun. Start as many as you like.

`perdure worker examples/11_worker.py` does the same without the lines below the agent.
"""

import asyncio

from perdure import Agent, Client, Worker, tool


@tool(idempotent=True)
async def track(order_id: str) -> str:
    """Where a parcel is."""
    return f"order {order_id} is out for delivery"


support = Agent("support", "openai:gpt-5-mini", instructions="You help customers.", tools=[track])


async def main() -> None:
    await Worker(await Client.connect(), agents=[support]).run()


if __name__ == "__main__":
    asyncio.run(main())
