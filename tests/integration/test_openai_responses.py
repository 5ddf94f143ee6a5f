"""A run on the Responses API: what the API gave is in the transcript, and goes back as it came, to any worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.types.messages import ThinkingPart
from tests.servers.model_server import Call, Reply, ResponsesServer
from tests.servers.responses import outputs
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine


async def test_parallel_calls_and_encrypted_reasoning(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2)

    @tool
    def add(a: int, b: int = 1) -> int:
        """Adds, two at a time."""
        together.wait(30)
        return a + b

    def rule(request: dict[str, Any]) -> Reply:
        match len(outputs(request)):
            case 0:
                calls = [Call("add", {"b": 3, "a": 2}), Call("add", {"a": 5})]
                return Reply("Two at once.", calls=calls, thinking=["Hm."])
            case 2:
                return Reply(calls=[Call("add", {"a": 7}), Call("add", '{"a": 8}')], reasons=True)
            case _:
                return Reply(f"{outputs(request)}", thinking=["So."], phase="final_answer")

    async with ResponsesServer(rule) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
        agent = Agent("a", "openai-responses:gpt-test", tools=[add], settings={"reasoning_effort": "low"})
        async with engine.served(agent) as client:
            turn = await client.send("a", "Add 2 and 3, 5 and 1, then 7 and 1, 8 and 1.", id=engine.task_queue)
            response = await turn.result()
        assert response.content == "['5', '6', '8', '9']"
        assert results(response.messages) == ["5", "6", "8", "9"]
        assert_closed(response.messages)
        thoughts = [p for m in response.messages for p in m.parts if isinstance(p, ThinkingPart)]
        assert [thought.text for thought in thoughts] == ["Hm.", "", "So."]
        async with engine.served(agent) as client:  # another worker, which has nothing in memory
            again = await client.send("a", "And again?", id=turn.run.id)
            assert (await again.result()).content == "['5', '6', '8', '9']"
            await again.run.close()
        assert server.stats.refused == 0
        for before, after in zip(server.bodies, server.bodies[1:], strict=False):
            assert after.startswith(before.removesuffix(b"]}"))
        sent = [item["type"] for item in server.requests[-1]["input"]]
        assert sent.count("reasoning") == 3
