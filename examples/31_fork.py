"""What would have become of it? A finished run is tried again from the middle, with another result of a tool."""

import asyncio

from perdure import Agent, local, tool


@tool
def price(city: str) -> str:
    """What a night in a city costs."""
    return {"Oslo": "140 euros", "Rome": "95 euros"}[city]


planner = Agent("planner", "openai:gpt-5-mini", instructions="You find the cheapest city.", tools=[price])


async def main() -> None:
    async with local(agents=[planner]) as client:
        run = await client.start("planner", "Oslo or Rome?")
        print(f"as it is: {(await run.result()).content}")
        call = next(call for message in await run.transcript() for call in message.tool_calls)

        cheap = await run.fork(results={call.id: "20 euros"})  # goes on behind the call, as if that were its result
        print(f"what if:  {(await cheap.result()).content}")
        asked = await run.fork("And by train?")  # from the end
        print(f"and then: {(await asked.result()).content}")

        parted = await run.diff(cheap)
        print(f"they part after iteration {parted.iteration}: {parted.right[0].tool_results[0].content}")


if __name__ == "__main__":
    asyncio.run(main())
