"""A word put in while the agent works: it is heard at the next model call, and what is in flight goes on."""

import asyncio

from perdure import Agent, local, tool


@tool
async def measure(room: str) -> str:
    """Measure a room. Takes its time."""
    await asyncio.sleep(1)
    return "19 degrees"


agent = Agent("thermostat", "openai:gpt-5-mini", instructions="You watch the heating.", tools=[measure])


async def main() -> None:
    async with local(agents=[agent]) as client:
        run = await client.start(agent, "Is the hall warm enough?", by="bea")
        async for event in run.events():
            if event.type == "tool.started":
                # From any task or process that knows the id; on the command line: perdure inject ID "…"
                await run.inject("The guests come at eight.", id="guests", by="ana")  # the same id counts once
        response = await run.result()
        for message in response.messages:
            if message.role == "user":
                print(f"{message.by}: {message.text}")
        print(f"thermostat: {response.content}")


if __name__ == "__main__":
    asyncio.run(main())
