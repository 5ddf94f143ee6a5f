"""Instructions made for each call, from a context that the caller gives: typed, and checked before anything is paid."""

import asyncio
from typing import Literal

from pydantic import BaseModel

from perdure import Agent, RunContext, ToolContext, local, tool
from perdure.errors import InvalidInputError


class Customer(BaseModel):
    name: str
    language: Literal["Spanish", "Dutch"]


async def instructions(ctx: RunContext[Customer]) -> str:  # may read a database; runs before every model call
    return f"You help {ctx.context.name}, who speaks {ctx.context.language}."


@tool
def balance(ctx: ToolContext[Customer]) -> str:  # the model sees no parameter: whose balance it is, is not its choice
    """The customer's balance."""
    return f"{ctx.context.name} has 12.50 euros"


teller = Agent("teller", "openai:gpt-5-mini", instructions=instructions, tools=[balance], context=Customer)


async def main() -> None:
    async with local(agents=[teller]) as client:
        for name, language in (("Ana", "Spanish"), ("Jan", "Dutch"), ("Eva", "Klingon")):
            try:
                run = await client.start(teller, "How much do I have?", context={"name": name, "language": language})
                print((await run.result()).content)
            except InvalidInputError as error:
                print(error)


if __name__ == "__main__":
    asyncio.run(main())
