"""A client: knows the agent's name and nothing of its code. Needs a worker: 11_worker.py."""

import asyncio
import sys

from perdure import Client


async def main(question: str) -> None:
    client = await Client.connect(actor="web")
    run = await client.start("support", question)
    response = await run.result()
    print(f"{run.id}: {response.content}")
    print(f"{response.calls} model calls, {response.usage.total_tokens} tokens")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Where is order 77?"))
