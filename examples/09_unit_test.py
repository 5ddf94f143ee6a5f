"""A unit test of an agent with a scripted model: no key, no server, no network, milliseconds."""

from perdure import Agent, tool
from perdure.testing import call, scripted


@tool
def refund(order_id: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order_id}"


support = Agent("support", "openai:gpt-5-mini", instructions="You help customers.", tools=[refund])


def test_what_was_paid_is_refunded() -> None:
    with scripted(support, [call("refund", order_id="77", amount=12.5), "You have it back."]) as script:
        response = support.call_sync("Order 77 arrived broken, it cost 12.50.")
    assert response.content == "You have it back."
    result = script.requests[1].messages[-1].tool_results[0]  # what the model was told, at its second call
    assert result.content == "refunded 12.5 for 77"
