"""A step policy that asks other agents: two critics read the conversation so far, each on a branch of its own."""

import asyncio

from pydantic import BaseModel, Field

from perdure import Agent, Step, hook, tool


class Verdict(BaseModel):
    enough: bool = Field(description="Whether the question can be answered from what was found")
    missing: str = Field("", description="What to look for next")


def critic(name: str, asks: str) -> Agent:
    return Agent(name, "openai:gpt-5-mini", instructions=f"Judge what was found so far. {asks}", output=Verdict)


critics = [critic("sources", "Do two pages agree?"), critic("dates", "Is the year certain?")]


@tool
def read(page: int) -> str:
    """Read a page of the archive."""
    return f"Page {page}: the charter was signed in {1848 if page > 1 else 'spring'}."


@hook("on_iteration", agents=critics)
async def review(step: Step) -> None:
    verdicts = await asyncio.gather(*(step.branch(one, "Is this enough?") for one in critics))
    if missing := [verdict.missing for verdict in verdicts if not verdict.enough]:
        step.inject("Not yet. " + " ".join(missing))
    else:
        step.remove_tool("read")


archivist = Agent("archivist", "openai:gpt-5", instructions="Answer from the archive.", tools=[read], hooks=[review])

if __name__ == "__main__":
    response = archivist.call_sync("When was the charter signed?")
    print(response.content)
    print([message.text for message in response.messages if message.by == "step"])
