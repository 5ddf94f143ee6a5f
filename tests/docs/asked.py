"""What a request to the model has, and the model of the agent that several examples share."""

from __future__ import annotations

from typing import Any

from tests.servers.model_server import Call

Request = dict[str, Any]


def results(request: Request) -> list[str]:
    """What the tools answered so far."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


def users(request: Request) -> list[str]:
    """What the user said so far."""
    return [message["content"] for message in request["messages"] if message["role"] == "user"]


def system(request: Request) -> str:
    """The system prompt."""
    return "".join(message["content"] for message in request["messages"] if message["role"] == "system")


def track(request: Request) -> Any:
    """The model of the support agent that tracks parcels."""
    done = results(request)
    return f"It is on its way: {done[0]}." if done else Call("track", {"order_id": "77"})
