"""The smallest durable agent: a model, a tool and a question. It starts what it needs on this machine.

OPENAI_API_KEY=… python examples/01_hello.py
"""

from perdure import Agent, tool


@tool
async def refund(order_id: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order_id}"


support = Agent("support", "openai:gpt-5-mini", instructions="You help customers.", tools=[refund])

if __name__ == "__main__":
    print(support.call_sync("Order 77 arrived broken, it cost 12.50.").content)
