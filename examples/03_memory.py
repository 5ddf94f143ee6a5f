"""A chat bot: a session for each topic of a user, and a memory of the user that all of them share."""

import asyncio

from perdure import Agent, RunContext, ToolContext, local


async def remember(what: str, value: str, ctx: ToolContext) -> None:
    """Remember something about the user."""
    await ctx.memory.put(str(ctx.user), what, value)  # kept exactly once, whatever crashes


async def instructions(ctx: RunContext) -> str:
    return f"You chat. What you know of the user: {await ctx.memory.list(str(ctx.user))}"


async def main(user: str, topic: str) -> None:
    async with local(agents=[Agent("bot", "openai:gpt-5-mini", instructions=instructions, tools=[remember])]) as client:
        while text := await asyncio.to_thread(input, f"{user}> "):  # an empty line ends the program, not the session
            turn = await client.send("bot", text, id=f"{user}-{topic}", user=user)
            print((await turn.result()).content)


asyncio.run(main(input("Who are you? "), input("What about? ")))
