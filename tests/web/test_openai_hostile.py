"""OpenAI's API under bodies that are nearly right: whatever stands there, an answer or an error of the client."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider
from tests.support.engine import Engine
from tests.web.test_openai_chat import WEATHER, connected
from tests.web.test_openai_responses import WEATHER as FUNCTION

REQUESTS = int(os.environ.get("TEST_REQUESTS", "400"))
ODD: list[Any] = [
    None, True, False, 0, -1, 2**70, 1e308, "", "x", "\x00", "a" * 10_000, "\U0001f600", [], {}, [None], [[]],
    {"": None},
    {"type": "message"}, {"role": "user"}, {"id": 7}, {"type": "function"}, ["user"], "data:image/png;base64,!!",
    {"type": "input_image", "image_url": "file:///etc/passwd"},
    {"type": "function_call_output", "call_id": "call_W10"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_WyJhIiwiYiIsImMiXQ", "approve": True},
    {"$ref": "#"}, {"type": "object", "properties": []}, "../..", "resp_W10", "resp_WyJhIiwiYiIsMF0", "text",
]  # fmt: skip
"""Values that no one has expected there."""
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/chat/completions",
        {
            "model": "helper",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "sun"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "go on"},
            ],
            "tools": [WEATHER], "tool_choice": "auto", "stream_options": {"include_usage": True}, "temperature": 1,
            "max_tokens": 10, "stop": ["x"], "user": "u", "metadata": {"a": "b"}, "response_format": {"type": "text"},
        },
    ),
    (
        "/responses",
        {
            "model": "helper", "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}", "id": "fc_1"},
                {"type": "function_call_output", "call_id": "c1", "output": "sun"},
                {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                 "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]},
                {"type": "message", "role": "user", "content": "go on"},
            ],
            "tools": [FUNCTION], "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "store": True,
            "background": False, "truncation": "auto", "metadata": {}, "max_output_tokens": 10,
            "previous_response_id": None, "conversation": None,
        },
    ),
]  # fmt: skip


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a body."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from list_places(child, (*path, key))


def spoil(body: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The body with one to three odd values."""
    spoiled = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        *path, last = chance.choice(list(list_places(spoiled)))
        owner: Any = spoiled
        for key in path:
            owner = owner[key]
        match chance.randint(0, 5):
            case 0:
                del owner[last]
            case 1 if isinstance(owner, list):
                owner.append(copy.deepcopy(chance.choice([*owner, *ODD])))
            case _:
                owner[last] = copy.deepcopy(chance.choice(ODD))
    return spoiled


@pytest.mark.slow
async def test_odd_values_are_errors_of_the_client(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(lambda _: "Hello."), client_tools=True)
    chance = random.Random(int(os.environ.get("TEST_SEED", "7")))
    answered = 0
    async with engine.served(agent) as client, connected(client) as access, access.http() as http:
        for path, body in BODIES:
            assert (await http.post(path, json=body)).status_code == 200
        for number in range(REQUESTS):
            path, body = BODIES[number % 2]
            spoiled = spoil(body, chance)
            answer = await http.post(path, json=spoiled)
            answered += answer.status_code == 200
            if answer.status_code != 200:
                assert 400 <= answer.status_code < 500, (json.dumps(spoiled)[:3000], answer.text[:500])
                assert answer.json()["error"]["message"], answer.text
    assert 0 < answered < REQUESTS
