"""A derivation, written by an editor and scored by three judges at the same time, until all of them are content."""

from pydantic import BaseModel, Field

from perdure import Agent, delegate


class Score(BaseModel):
    score: int = Field(description="0 to 100", ge=0, le=100)
    objection: str = Field("", description="What to mend first")


def judge(name: str, asks: str) -> Agent:
    return Agent(name, "openai:gpt-5-mini", description=asks, instructions=f"Score a derivation. {asks}", output=Score)


judges = [
    judge("rigour", "Does each step follow from the one before?"),
    judge("clarity", "Can a student follow it?"),
    judge("notation", "Is every symbol introduced, and used alike?"),
]
editor = Agent("editor", "openai:gpt-5", description="Writes a derivation, or mends one by what judges object to.")
coordinator = Agent(
    "coordinator",
    "openai:gpt-5-mini",
    instructions="Have the editor write the derivation. Give it to all judges in one reply, so that they work at the "
    "same time. Until all score above 90, have the editor mend it by the objections, and ask all of them again.",
    tools=[editor.as_tool("write", "Ask the editor. Give all that is needed: it remembers nothing."), delegate(judges)],
)

if __name__ == "__main__":
    print(coordinator.call_sync("Derive the Fourier transform of a Gaussian.").content)
