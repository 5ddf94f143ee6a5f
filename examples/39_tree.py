"""A coordinator with two researchers: what all of them do, live, from the one run that is followed."""

import asyncio

from perdure import Agent, local, tool


@tool
async def search(query: str) -> str:
    """Search the library."""
    await asyncio.sleep(0.2)
    return f"Three books about {query}."


researcher = Agent(
    "researcher",
    "openai:gpt-5-mini",
    description="Finds facts. Give it one question.",
    instructions="Search, then answer in a sentence.",
    tools=[search],
)
coordinator = Agent(
    "coordinator",
    "openai:gpt-5",
    instructions="Split the task in two questions, and have both researched at the same time.",
    subagents=[researcher],
)


async def main() -> None:
    async with local(agents=[coordinator]) as client:
        run = await client.start("coordinator", "How did whaling and its literature end?")
        async for event in run.events():  # children=False: the coordinator's own alone
            if event.type == "model.delta":
                continue
            # The way down: which agent, by which call. Empty for what the coordinator does itself.
            who = " > ".join(["coordinator", *(f"{step.agent} ({step.call_id})" for step in event.path)])
            said = getattr(event, "content", "") or getattr(event, "text", "") or getattr(event, "state", "")
            print(f"{event.seq:>3}  {who}: {event.type} {said[:60]}")
        print((await run.result()).content)


if __name__ == "__main__":
    asyncio.run(main())
