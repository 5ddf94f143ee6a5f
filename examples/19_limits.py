"""A run that must not cost more than it is worth: it stops at its limit, and a person decides whether it goes on."""

import asyncio

from perdure import Agent, Limits, Run, local, tool


@tool(idempotent=True)
def look(page: int) -> str:
    """Read a page of the archive."""
    return "nothing of interest" if page < 4 else "the charter was signed in 1848"


clerk = Agent(
    "clerk",
    "openai:gpt-5-mini",
    instructions="Look through the archive, one page after the other.",
    tools=[look],
    limits=Limits(tool_calls=2, cost_usd=0.50, turn=Limits(wall_time="10m")),
    on_limit="pause",
)


async def decide(run: Run) -> None:
    async for event in run.events():
        if event.type == "run" and event.state == "paused":
            print(f"paused: {event.reason}")
            await run.resume(limits={"tool_calls": 10}, by="ana")


async def main() -> None:
    async with local(agents=[clerk]) as client:
        run = await client.start("clerk", "When was the charter signed?")
        await decide(run)
        print((await run.result()).content)


if __name__ == "__main__":
    asyncio.run(main())
