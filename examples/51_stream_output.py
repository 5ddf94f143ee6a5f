"""An outline that grows on the screen while the model writes it: partial values of the agent's output type."""

import asyncio

from pydantic import BaseModel

from perdure import Agent, local


class Outline(BaseModel):
    """An outline of a talk."""

    title: str = ""  # fields that may still be missing need a default
    points: list[str] = []


planner = Agent("planner", "openai:gpt-5-mini", output=Outline)


async def main() -> None:
    async with local(agents=[planner]) as client:
        turn = await client.send(planner, "A talk about durable agents, three points.", id="talk-1")
        outline = Outline()
        async for outline in turn.stream_output():  # each is a whole Outline; the last one is the answer
            print(f"\r{outline.title}: {len(outline.points)} points", end="", flush=True)
        print()
        for point in outline.points:
            print("-", point)


if __name__ == "__main__":
    asyncio.run(main())
