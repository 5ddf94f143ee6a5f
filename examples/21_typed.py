"""Typed input and output: a complaint goes in, a resolution comes out; what the desk may not promise goes back."""

from typing import Literal

from pydantic import BaseModel, Field

from perdure import Agent, ModelRetry, tool


class Complaint(BaseModel):
    order_id: str
    text: str


class Resolution(BaseModel):
    """How a complaint is resolved."""

    verdict: Literal["refund", "replace", "none"] = Field(description="What the customer gets")
    amount: float = Field(0.0, description="Euros, for a refund")
    reasons: list[str] = Field([], description="Each in a sentence")


@tool(inline=True)
def paid(order_id: str) -> float:
    """What was paid for an order, in euros."""
    return 30.0


desk = Agent("desk", "openai:gpt-5-mini", tools=[paid], input=Complaint, output=Resolution)


@desk.output_validator
def within_reason(output: Resolution) -> Resolution:
    if output.amount > 30:
        raise ModelRetry("no more than was paid can be refunded")
    return output


if __name__ == "__main__":
    response = desk.call_sync(Complaint(order_id="7", text="It came <broken>."))
    resolution = response.output
    print(f"{resolution.verdict}, {resolution.amount:.2f} euros: {' '.join(resolution.reasons)}")
