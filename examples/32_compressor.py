"""A text compressor: a coordinator has a text shortened and judged, again and again, until it loses too much."""

from pydantic import BaseModel, Field

from perdure import Agent, Limits


class Loss(BaseModel):
    """What a shorter version has lost."""

    lossy: bool = Field(description="Whether a fact is missing that a reader needs")
    missing: str = Field("", description="The most important of them")


shortener = Agent(
    "shortener",
    "openai:gpt-5-mini",
    description="Makes a text a third shorter.",
    instructions="Answer with the text that you are given, a third shorter, and nothing else.",
)
judge = Agent(
    "judge",
    "openai:gpt-5-mini",
    description="Says whether a shorter version has lost a fact. Give it the original and the version.",
    output=Loss,
)
compressor = Agent(
    "compressor",
    "openai:gpt-5",
    instructions="Have the text shortened, and each version judged against the original. Shorten the last version "
    "further until one is lossy. Answer with the shortest version that is not.",
    subagents=[shortener, judge],
    limits=Limits(cost_usd=0.5),  # of the whole tree
)

if __name__ == "__main__":
    text = "The meeting is on Monday, 3 March, at ten o'clock in the morning, in the large room on the second floor."
    print(compressor.call_sync(text).content)
