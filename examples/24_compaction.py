"""A run whose conversation would not fit: old results are left out, then the rest is summed up. Nothing is lost."""

import asyncio

from perdure import Agent, Compaction, local, tool

PAGES = {
    number: f"Entry {number}. " + "Wind from the west, sea calm, nothing in sight. " * 20 for number in range(1, 13)
}
PAGES[3] += "The mate has hidden the key under the third plank."


@tool(idempotent=True, inline=True)
def page(number: int) -> str:
    """A page of the ship's log."""
    return PAGES.get(number, "There is no such page.")


reader = Agent(
    "reader",
    "openai:gpt-5-mini",
    instructions="Read the ship's log page by page, to its end, and answer.",
    tools=[page],
    compaction=[
        Compaction.clear_results(after=4),  # a view: what the model is sent; costs nothing
        Compaction.summarise(at=1_500, keep_last=4),  # a rewrite: a model call of its own
    ],
)


async def main() -> None:
    async with local(agents=[reader]) as client:
        run = await client.start(reader, "Where is the key?")
        print((await run.result()).content)
        async for event in run.events(wait=False):
            if event.type == "compacted":
                print(f"{event.messages_before} messages became {event.messages_after}")
        present, everything = await run.transcript(), await run.transcript(full=True)
        print(f"{len(present)} messages now, {len(everything)} in all")


if __name__ == "__main__":
    asyncio.run(main())
