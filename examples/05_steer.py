"""Steer a run from another process: all that this one knows is its id."""

import asyncio
import sys

from perdure import Client


async def main(id: str, text: str) -> None:
    client = await Client.connect(actor="ana")
    run = client.run(id)
    status = await run.status()
    print(f"{id} is {status.state}, at: {status.doing}, iteration {status.iteration}")
    await run.interrupt(text)  # stops what is in flight; inject() would let it finish, and speak before the next call
    print((await run.result()).content)
    for message in await run.transcript():
        print(f"{message.role:>9}  {message.text or message.tool_calls or message.tool_results}")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
