"""The fake Responses API itself: refuses what the real one refuses, and is understood by the SDK's own calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.servers.model_server import Call, Reply, ResponsesServer
from tests.servers.responses import ENCRYPTED, message, parse, reasoning, seal
from tests.servers.wire import RefusedError

USER = {"role": "user", "content": "hi"}
THOUGHT = reasoning("hm")
SAID = message("well")
SEALED = THOUGHT | {"encrypted_content": seal(THOUGHT, "m", SAID["id"])}
NEEDS = {SAID["id"]: THOUGHT["id"]}


def call(call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"} | fields


def answer(call_id: str = "c1", output: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def tool(name: str = "f", strict: bool | None = False, **parameters: Any) -> dict[str, Any]:
    made = {"type": "function", "name": name, "parameters": parameters or {"type": "object"}}
    return made if strict is None else made | {"strict": strict}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


GOOD: list[dict[str, Any]] = [
    {"input": "hi"},
    {"input": [USER, call("a"), call("b"), answer("b"), answer("a"), USER]},
    {"input": [USER, SEALED, SAID, USER]},
    {"input": [USER, {"role": "assistant", "content": "x"}]},
    {"input": [USER], "tools": [tool(), {"type": "web_search"}], "tool_choice": "required"},
    {"input": [USER, call(), answer(output=[{"type": "input_text", "text": "x"}])]},
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("empty array", {"input": []}),
    ("Missing", {}),
    ("Unknown parameter", {"input": "x", "max_tokens": 3}),
    ("below minimum", {"input": "x", "max_output_tokens": 15}),
    ("Supported values", {"input": [{"role": "tool", "content": "x"}]}),
    ("Supported values", {"input": [user({"type": "output_text", "text": "x", "annotations": []})]}),
    ("Supported values", {"input": [USER, SAID | {"content": [{"type": "input_text", "text": "x"}]}]}),
    ("Missing required parameter", {"input": [USER, {"role": "assistant", "content": SAID["content"]}]}),
    ("Unknown parameter", {"input": [USER, SEALED | {"status": "completed"}, SAID]}),
    ("begins with 'fc'", {"input": [USER, call(id="call_1"), answer()]}),
    ("begins with 'rs'", {"input": [USER, SEALED | {"id": "x"}, SAID]}),
    ("too long", {"input": [USER, call("a" * 65), answer("a" * 65)]}),
    ("No tool output found", {"input": [USER, call()]}),
    ("No tool output found", {"input": [USER, call(), USER, answer()]}),
    ("No tool call found", {"input": [USER, answer()]}),
    ("Duplicate output", {"input": [USER, call(), answer(), answer()]}),
    ("arguments", {"input": [USER, call(arguments="{x"), answer()]}),
    ("required following item", {"input": [USER, SEALED, USER]}),
    ("required following item", {"input": [USER, SEALED]}),
    ("required 'reasoning' item", {"input": [USER, SAID]}),
    ("could not be verified", {"input": [USER, SEALED | {"summary": []}, SAID]}),
    ("could not be verified", {"input": [USER, SEALED | {"encrypted_content": "gAAAAx"}, SAID]}),
    ("could not be verified", {"input": [USER, SEALED, SAID], "model": "other"}),
    ("not found", {"input": [USER, THOUGHT, SAID]}),
    ("valid URL", {"input": [user({"type": "input_image", "image_url": "data:image/bmp;base64,aa"})]}),
    ("filename", {"input": [user({"type": "input_file", "file_data": "data:application/pdf;base64,aa"})]}),
    ("Missing required parameter: 'tools[0].name'", {"input": "x", "tools": [{"type": "function", "function": {}}]}),
    ("additionalProperties", {"input": "x", "tools": [tool(strict=None)]}),
    ("missing items", {"input": "x", "tools": [tool(type="object", properties={"x": {"type": "array"}})]}),
    ("unique", {"input": "x", "tools": [tool(), tool()]}),
    ("not found", {"input": "x", "tools": [tool()], "tool_choice": {"type": "function", "name": "g"}}),
    ("only allowed when 'tools'", {"input": "x", "tool_choice": "auto"}),
    ("'huge'", {"input": "x", "reasoning": {"effort": "huge"}}),
]


@pytest.mark.parametrize("request_json", GOOD)
def test_accepts(request_json: dict[str, Any]) -> None:
    assert parse(json.dumps({"model": "m"} | request_json).encode(), NEEDS)


@pytest.mark.parametrize(("said", "request_json"), BAD)
def test_refuses(said: str, request_json: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as caught:
        parse(json.dumps({"model": "m"} | request_json).encode(), NEEDS)
    assert said in str(caught.value)


async def test_the_sdks_own_calls_understand_it() -> None:
    reply = Reply("Hello there.", calls=[Call("f", {"a": 1}, id="c1")], thinking=["One.", "Two."])
    async with ResponsesServer(lambda _: reply) as server:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0)
        response = await client.responses.create(model="m", input="hi", include=[ENCRYPTED])
        assert response.output_text == "Hello there."
        async with client.responses.stream(model="m", input="hi", include=[ENCRYPTED]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        with pytest.raises(openai.BadRequestError, match="No tool call found"):
            await client.responses.create(
                model="m", input=[{"type": "function_call_output", "call_id": "c9", "output": "x"}]
            )
        await client.close()
