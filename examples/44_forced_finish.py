"""An answer in any case: at its limit the agent is made to give one, of the type that was asked for."""

from pydantic import BaseModel, Field

from perdure import Agent, tool


class Estimate(BaseModel):
    days: int = Field(description="Working days")
    sure: bool = Field(description="Whether all pages were read")


@tool
def page(number: int) -> str:
    """Read a page of the plan. It has 900."""
    return f"page {number}: two days"


planner = Agent(
    "planner",
    "openai:gpt-5-mini",
    instructions="Estimate the work in the plan. Read as much of it as you can.",
    tools=[page],
    output=Estimate,
    max_iterations=3,  # then the model may call nothing but __finish__; on_limit="error" would raise instead
)

if __name__ == "__main__":
    response = planner.call_sync("How long will it take?")
    estimate = response.output
    print(f"{estimate.days} days, {'sure' if estimate.sure else 'not sure'}")
    print(f"{response.iterations} model calls, finish_reason {response.finish_reason}")
