"""Steer a run from another process: all that this one knows is its id."""

import asyncio
import sys

from perdure import Client


async def main(id: str, text: str) -> None:
    client = await Client.connect(actor="ana")
    run = client.run(id)
    status = await run.status()
    print(f"{id} is {status.state}, at: {status.doing}; model calls so far: {status.iteration}")
    await run.interrupt(text)  # stops what is in flight; inject() would let it finish, and speak before the next call
    print((await run.result()).content)
    for message in await run.transcript():
        calls = (f"{call.name} {call.arguments}" for call in message.tool_calls)
        print(f"{message.role:>9}:", message.text, *calls, *(result.content for result in message.tool_results))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
