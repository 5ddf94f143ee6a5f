"""Agents under names: a worker has them, a client starts one by its name alone, and changes it for one run."""

import asyncio

from perdure import Agent, local

presets = [
    Agent("pirate", "openai:gpt-5-mini", instructions="You talk like a pirate.", settings={"temperature": 1}),
    Agent("clerk", "openai:gpt-5-mini", instructions="You answer in one dry sentence."),
]


async def main() -> None:
    async with local(agents=presets) as client:
        for name in ("pirate", "clerk"):
            print(f"{name}: {(await (await client.start(name, 'Where is the harbour?')).result()).content}")

        # The agent stays as it is: what a run changes of it is the run's own.
        softer = {"settings": {"temperature": 0.2}, "instructions": "You talk like a retired pirate."}
        run = await client.start("pirate", "Where is the harbour?", override=softer)
        print(f"retired: {(await run.result()).content}")


if __name__ == "__main__":
    asyncio.run(main())
