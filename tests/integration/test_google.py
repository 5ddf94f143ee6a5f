"""A run on Gemini's own format: parallel calls, thought signatures, and a conversation that goes on with them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.types.messages import ThinkingPart
from tests.servers.model_server import Call, GoogleServer, Reply
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def now() -> str:
    """The time."""
    return "noon"


def rule(request: dict[str, Any]) -> Any:
    """Two rounds of calls, of which only the first has an id and a signature, then an answer that is signed."""
    replies = sum(content["role"] == "model" for content in request["contents"])
    if replies < 2:
        return Reply(
            thinking=f"round {replies}",
            calls=[
                Call("add", {"a": replies, "b": 1}, signature=f"c2ln{replies}A=="),
                Call("add", {"a": replies, "b": 2}, id=None),
                Call("now", id=None),
            ],
        )
    return Reply(text="All done.", signature="ZW5k")


async def test_parallel_calls_and_signatures(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with GoogleServer(rule, api_key="test-key") as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.base_url)
        monkeypatch.setenv("GEMINI_API_KEY", "test-key")
        agent = Agent("a", "google:gemini-3-pro", tools=[add, now], settings={"reasoning_effort": "low"})
        async with engine.served(agent) as client:
            run = await client.start("a", "Add.")
            response = await run.result()
    assert response.content == "All done."
    assert_closed(response.messages)
    assert results(response.messages) == ["1", "2", "noon", "2", "3", "noon"]
    thoughts = [part.text for message in response.messages for part in message.parts if isinstance(part, ThinkingPart)]
    assert thoughts == ["round 0", "round 1"]
    # The server refuses a signature that comes back changed, or on another part: all of them were taken.
    assert (server.stats.requests, server.stats.refused) == (3, 0)
    sent = [part.get("thoughtSignature") for content in server.requests[-1]["contents"] for part in content["parts"]]
    assert [signature for signature in sent if signature] == ["c2ln0A==", "c2ln1A=="]
    declared = server.requests[0]["tools"][0]["functionDeclarations"]
    assert [declaration["name"] for declaration in declared] == ["add", "now"]
    assert "parametersJsonSchema" not in declared[1]
