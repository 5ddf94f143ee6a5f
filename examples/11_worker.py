"""A worker: serves agents until SIGTERM, then finishes what it has begun. Start as many as you like.

    perdure server start                    # or set TEMPORAL_ADDRESS and PERDURE_STORE_URL
    OPENAI_API_KEY=… python examples/11_worker.py
    python examples/12_client.py            # in another terminal

`perdure worker examples/11_worker.py` does the same without the lines at the end.
"""

import asyncio

from perdure import Agent, Client, Worker, tool


@tool(idempotent=True)
async def track(order_id: str) -> str:
    """Where a parcel is."""
    return f"order {order_id} is out for delivery"


support = Agent("support", "openai:gpt-5-mini", instructions="You help customers.", tools=[track])


async def main() -> None:
    client = await Client.connect()
    await Worker(client, agents=[support]).run()


if __name__ == "__main__":
    asyncio.run(main())
