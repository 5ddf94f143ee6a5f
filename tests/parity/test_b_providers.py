"""PARITY.md, part B: a session of generic messages, in each of the four wire formats."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.types.session_form import to_session
from tests.support.apis import FORMATS, Says, strict_api
from tests.support.engine import Engine


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


WIRE: dict[str, list[tuple[str, list[str]]]] = {
    "openai": [
        ("system", ["content"]),
        ("user", ["content"]),
        ("assistant", ["reasoning_content", "content", "tool_calls"]),
        ("tool", ["content", "tool_call_id"]),
        ("tool", ["content", "tool_call_id"]),
        ("assistant", ["content"]),
        ("user", ["content"]),
    ],
    "openai-responses": [
        ("user", ["message"]),
        ("model", ["reasoning", "web_search_call", "message", "function_call", "function_call"]),
        ("results", ["function_call_output", "function_call_output"]),
        ("model", ["message"]),
        ("user", ["message"]),
    ],
    "anthropic": [
        ("user", ["text"]),
        (
            "assistant",
            [
                "thinking",
                "redacted_thinking",
                "server_tool_use",
                "web_search_tool_result",
                "text",
                "tool_use",
                "tool_use",
            ],
        ),
        ("user", ["tool_result", "tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ],
    "google": [
        ("user", ["text"]),
        ("model", ["thought", "text", "functionCall", "functionCall"]),
        ("user", ["functionResponse", "functionResponse"]),
        ("model", ["text"]),
        ("user", ["text"]),
    ],
}
"""Of the same conversation: messages, and what is in each. The Responses format has items, put together here."""


def outline(request: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What :data:`WIRE` has of each message of ``request``."""
    if "contents" in request:
        parts = ("thought", "functionCall", "functionResponse", "text")
        return [
            (each["role"], [next(name for name in parts if name in part) for part in each["parts"]])
            for each in request["contents"]
        ]
    if "input" in request:
        grouped = itertools.groupby(request["input"], _side)
        return [(side, [item["type"] for item in items]) for side, items in grouped]
    said = request["messages"]
    if "system" in request:
        return [(each["role"], [block["type"] for block in each["content"]]) for each in said]
    keys = ("reasoning_content", "content", "tool_calls", "tool_call_id")
    return [(each["role"], [key for key in keys if key in each]) for each in said]


def _side(item: dict[str, Any]) -> str:
    return {"user": "user"}.get(item.get("role", ""), "results" if item["type"].endswith("_output") else "model")


SYSTEM = {
    "openai": lambda request: request["messages"][0]["content"],
    "openai-responses": lambda request: request["instructions"],
    "anthropic": lambda request: request["system"][0]["text"],
    "google": lambda request: request["systemInstruction"]["parts"][0]["text"],
}


@pytest.mark.parametrize("format", FORMATS)
async def test_b2_a_session_is_converted_to_the_format(engine: Engine, format: str) -> None:
    """Entries of one reply become one message with several blocks, and so do results; the system prompt is apart."""
    calls = [("note", {"what": "a"}), ("note", {"what": "b"})]
    async with strict_api(format) as api:
        api.replies = [Says("At once.", calls, thinking="Both."), Says("Noted."), Says("Again.")]
        agent = Agent("notes", api.model, instructions="Be brief.", tools=[note], settings={"reasoning_effort": "low"})
        async with engine.served(agent) as client:
            response = await (await client.start("notes", "Note a and b.")).result()
            session = json.loads(json.dumps(to_session(response.messages[1:])))
            await (await client.start("notes", "Once more.", history=session)).result()
    assert [entry["type"] for entry in session if entry["type"] != "thinking"] == [
        "user",
        "assistant",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "assistant",
    ]
    assert api.refused == 0
    assert outline(api.requests[-1]) == WIRE[format]
    assert SYSTEM[format](api.requests[-1]) == "Be brief."


PLAIN = [
    {"type": "user", "content": "Note a."},
    {"type": "thinking", "content": "I shall."},
    {"type": "assistant", "content": "At once."},
    {"type": "tool_call", "name": "note", "id": "c1", "input": {"what": "a"}},
    {"type": "tool_result", "id": "c1", "output": "noted a"},
]


@pytest.mark.parametrize("format", FORMATS)
async def test_b2_a_session_that_nobody_signed_is_taken_without_its_thinking(engine: Engine, format: str) -> None:
    async with strict_api(format) as api:
        api.replies = [Says("Noted.")]
        agent = Agent("notes", api.model, tools=[note])
        async with engine.served(agent) as client:
            response = await (await client.start("notes", "And?", history=PLAIN)).result()
    assert response.content == "Noted."
    kept = [{**item, "given_by": "tests"} if item["type"] == "tool_result" else item for item in PLAIN]
    assert to_session(response.messages)[: len(PLAIN)] == kept
    [request] = api.requests
    assert "I shall." not in json.dumps(request)
    assert "At once." in json.dumps(request)
