"""A call waits for a person, who is reminded, and in the end another one is asked. Days are seconds here."""

import asyncio
from typing import Any

from perdure import Agent, Approval, RunContext, hook, local, tool


@tool(needs_approval=Approval(remind=1, expires=60))
def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount:g} EUR of order {order}"


asked: asyncio.Queue[str] = asyncio.Queue()
main_loop: asyncio.AbstractEventLoop


@hook("on_approval", on_error="log")
async def notify(name: str, arguments: dict[str, Any], reminder: int, ctx: RunContext) -> None:
    """What would post in a chat: first to Ana, and from the second reminder on to her boss."""
    person = "boss" if reminder >= 2 else "ana"
    print(f"to {person}{f', reminder {reminder}' if reminder else ''}: {name}({arguments}) of {ctx.agent} waits")
    if person == "boss":
        main_loop.call_soon_threadsafe(asked.put_nowait, person)


clerk = Agent("clerk", "openai:gpt-5-mini", instructions="Help customers.", tools=[refund], hooks=[notify])


async def main() -> None:
    global main_loop
    main_loop = asyncio.get_running_loop()  # hooks run on a loop of their own
    async with local(agents=[clerk]) as client:
        run = await client.start("clerk", "My lamp of order 7 is broken.")
        decided = await run.approve(by=await asked.get(), comment="sorry for the delay")
        print(f"{decided.state} by {decided.by}: {decided.comment}")
        print((await run.result()).content)


if __name__ == "__main__":
    asyncio.run(main())
