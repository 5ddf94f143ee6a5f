"""A tool that acts for the user: the token reaches it, and stands in no history, transcript or log."""

import asyncio

from perdure import Agent, RunContext, ToolContext, local, tool

ACCOUNTS = {"token-of-ana": 12.50}  # what an API behind the tool would answer to "Authorization: Bearer …"


@tool
async def balance(ctx: ToolContext) -> str:
    """The user's balance."""
    assert ctx.auth_context is not None
    return f"{ACCOUNTS[ctx.auth_context['token']]:.2f} euros"


def instructions(ctx: RunContext) -> str:
    return f"You help {ctx.auth_context['user'] if ctx.auth_context else 'a guest'}."


teller = Agent("teller", "openai:gpt-5-mini", instructions=instructions, tools=[balance])


async def main() -> None:
    async with local(agents=[teller]) as client:
        # Elsewhere than on this machine's own server it is encrypted with PERDURE_ENCRYPTION_KEYS, here with its own.
        run = await client.start(teller, "How much do I have?", auth_context={"user": "Ana", "token": "token-of-ana"})
        print((await run.result()).content)
        history = b"".join([event.SerializeToString() async for event in run.handle.fetch_history_events()])
        for text in ("How much do I have?", "token-of-ana"):
            print(f"{text!r} is in the history: {text.encode() in history}")


if __name__ == "__main__":
    asyncio.run(main())
