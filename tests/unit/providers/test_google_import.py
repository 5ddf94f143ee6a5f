"""Contents as messages again: what was encoded comes back, as far as the format can hold it."""

from __future__ import annotations

import json
from typing import Any

from perdure.ports import ModelRequest
from perdure.providers.google_reply import decode
from perdure.providers.google_request import encode_request
from perdure.types.messages import Message, ToolCallPart
from tests.support.adapters import result, said, tool


def test_results_find_their_calls_by_order_and_name() -> None:
    contents: list[dict[str, Any]] = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"functionCall": {"name": name}} for name in ("add", "get", "add")]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "get", "response": {"output": {"a": 1}}}},
                {"functionResponse": {"name": "add", "response": {"n": 1}}},
                {"functionResponse": {"name": "add", "response": {"error": "no"}}},
                {"text": "go on"},
            ],
        },
    ]
    user, asked, answered, more = decode(contents)
    assert [call.id for call in asked.tool_calls] == ["call_1", "call_2", "call_3"]
    assert [(part.call_id, part.content, part.is_error) for part in answered.tool_results] == [
        ("call_2", '{"a": 1}', False),
        ("call_1", '{"n": 1}', False),
        ("call_3", "no", True),
    ]
    assert (user.text, more.text) == ("hi", "go on")


def test_results_are_sent_in_the_order_of_their_calls() -> None:
    calls = said(ToolCallPart(id="a", name="add"), ToolCallPart(id="b", name="get"))
    results = tool(result("b", name="get"), result("a", name="add"))
    body = json.loads(
        encode_request(ModelRequest("gemini-3-pro", [Message.user("hi"), calls, results]), origin="google")
    )
    assert [part["functionResponse"]["id"] for part in body["contents"][2]["parts"]] == ["a", "b"]
