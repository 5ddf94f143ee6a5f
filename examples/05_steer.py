"""Steer a run while it works: say something to it, ask what it does, wait for its answer, read what was said.

OPENAI_API_KEY=… python examples/05_steer.py
"""

import asyncio

from perdure import Agent, local, tool


@tool
async def search(topic: str) -> list[str]:
    """Search the library for a topic. Takes a while."""
    await asyncio.sleep(2)
    return [f"A history of {topic}", f"{topic.title()} for beginners"]


librarian = Agent("librarian", "openai:gpt-5-mini", instructions="You recommend books.", tools=[search])


async def main() -> None:
    async with local(agents=[librarian]) as client:
        run = await client.start("librarian", "I want to read about gardens.")
        await run.inject("Only one book, please.")  # joins the conversation at the next model call
        status = await run.status()
        print(f"{run.id} is {status.state}, at: {status.doing}")
        response = await run.result()
        print(f"after {response.iterations} model calls: {response.content}")
        for message in await run.transcript():
            print(f"{message.role:>9}  {message.text or message.tool_calls or message.tool_results}")


if __name__ == "__main__":
    asyncio.run(main())
