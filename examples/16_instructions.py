"""Instructions made for each call: a function of the run, with data that the caller gave it.

OPENAI_API_KEY=… python examples/16_instructions.py
"""

import asyncio

from perdure import Agent, RunContext, ToolContext, local, tool


async def instructions(ctx: RunContext) -> str:  # may read a database; runs before every model call
    user = ctx.context
    hurry = " Come to an end now." if ctx.iteration > 5 else ""
    return f"You help {user['name']}, who speaks {user['language']}.{hurry}"


@tool
def balance(ctx: ToolContext) -> str:  # the model sees no parameter: whose balance it is, is not its choice
    """The user's balance."""
    return f"{ctx.context['name']} has 12.50 euros"


teller = Agent("teller", "openai:gpt-5-mini", instructions=instructions, tools=[balance])


async def main() -> None:
    async with local(agents=[teller]) as client:
        for name, language in (("Ana", "Spanish"), ("Jan", "Dutch")):
            context = {"name": name, "language": language}  # plain JSON, kept with the run
            run = await client.start("teller", "How much do I have?", context=context)
            print((await run.result()).content)


if __name__ == "__main__":
    asyncio.run(main())
