"""Several agents with plain asyncio: some at the same time, and then one that goes on with what they said."""

import asyncio

from perdure import Agent, local

MODEL = "openai:gpt-5-mini"
optimist = Agent("optimist", MODEL, instructions="You say what speaks for it, in one line.")
pessimist = Agent("pessimist", MODEL, instructions="You say what speaks against it, in one line.")
judge = Agent("judge", MODEL, instructions="You hear both sides and decide, in one line.")


async def main() -> None:
    question = "Should we move the database this week?"
    async with local(agents=[optimist, pessimist, judge]) as client:

        async def ask(agent: Agent, message: str) -> str:
            # With an id of its own (id="move-1-judge"), a script that was killed finds each run where it left it.
            return (await (await client.start(agent, message)).result()).content

        sides = await asyncio.gather(ask(optimist, question), ask(pessimist, question))
        print(await ask(judge, "\n".join([question, *sides])))


if __name__ == "__main__":
    asyncio.run(main())
