"""The fake API itself: refuses what the real one refuses, and is understood by the official SDK's own calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.servers.chat import parse
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.servers.wire import RefusedError

USER = {"role": "user", "content": "hi"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ("a", "b")],
}


def answer(call_id: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def with_call(**fields: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}} | fields
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def tool(name: str = "f", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def schema(**properties: Any) -> dict[str, Any]:
    return {"messages": [USER], "tools": [tool(type="object", properties=properties)]}


GOOD: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [USER, CALLS, answer("b"), answer("a"), USER]},
    {"messages": [USER, {"role": "assistant", "content": ""}]},
    {"messages": [USER], "tools": [tool()], "tool_choice": "required", "stream": True, "stream_options": {}},
    {"messages": [USER], "metadata": {"a": "b"}, "store": True},
    user({"type": "text", "text": "x"}, image("https://x/y"), image("data:image/png;base64,iVBORw=="))
    | {"reasoning_effort": "max"},
    user({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}),
    user({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    {
        "messages": [USER],
        "tools": [tool(**{"type": "object", "$defs": {"A": {}}, "properties": {"a": {"$ref": "#/$defs/A"}}})],
    },
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("empty array", {"messages": []}),
    ("Missing", {}),
    ("Unknown parameter", {"messages": [USER], "max_token": 3}),
    ("Supported values", {"messages": [{"role": "robot", "content": ""}]}),
    ("expected a string, got null", {"messages": [{"role": "user", "content": None}]}),
    ("expected a string, got null", {"messages": [USER, {"role": "assistant", "content": None}]}),
    ("Invalid type", {"messages": [{"role": "user", "content": 3}]}),
    ("did not have response messages: a, b", {"messages": [USER, CALLS]}),
    ("did not have response messages: b", {"messages": [USER, CALLS, answer("a")]}),
    ("did not have response messages: b", {"messages": [USER, CALLS, answer("a"), USER, answer("b")]}),
    ("preceeding message", {"messages": [USER, answer("a")]}),
    ("preceeding message", {"messages": [USER, CALLS, answer("a"), answer("b"), answer("c")]}),
    ("Duplicate response", {"messages": [USER, CALLS, answer("a"), answer("a"), answer("b")]}),
    ("empty array", {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": []}]}),
    ("arguments", {"messages": [USER, with_call(function={"name": "f", "arguments": {}}), answer("a")]}),
    ("arguments", {"messages": [USER, with_call(function={"name": "f", "arguments": "{x"}), answer("a")]}),
    ("name", {"messages": [USER, with_call(function={"name": "f g", "arguments": "{}"}), answer("a")]}),
    ("too long", {"messages": [USER, with_call(id="a" * 41), answer("a" * 41)]}),
    ("empty array", {"messages": [USER], "tools": []}),
    ("pattern", {"messages": [USER], "tools": [tool("a.b")]}),
    ("unique", {"messages": [USER], "tools": [tool(), tool()]}),
    ("must be of", {"messages": [USER], "tools": [tool(type="string")]}),
    ("missing items", {"messages": [USER], "tools": [tool(type="object", properties={"x": {"type": "array"}})]}),
    ("only allowed when 'tools'", {"messages": [USER], "tool_choice": "auto"}),
    (
        "not among",
        {"messages": [USER], "tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    ),
    ("only allowed when 'stream'", {"messages": [USER], "stream_options": {"include_usage": True}}),
    ("temperature", {"messages": [USER], "temperature": 3}),
    ("empty array", user()),
    ("Supported types", user("x")),
    ("Supported types", user({"type": "text", "text": "x", "cache_control": {}})),
    ("Supported types", user({"type": "refusal", "refusal": "x"})),
    ("Supported types", {"messages": [USER, {"role": "assistant", "content": [image("https://x")]}]}),
    ("Supported types", {"messages": [USER, CALLS, answer("a") | {"content": [image("https://x")]}, answer("b")]}),
    ("Invalid image", user(image("ftp://x"))),
    ("Invalid image", user(image("data:image/bmp;base64,Qk0="))),
    ("Invalid image", user(image("data:image/png;base64,AAAA"))),
    ("filename", user({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}})),
    ("PDF", user({"type": "file", "file": {"filename": "a", "file_data": "data:text/plain;base64,AAAA"}})),
    ("Invalid audio", user({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "ogg"}})),
    ("reasoning_content", {"messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": "y"}]}),
    ("at most 16 strings", {"messages": [USER], "metadata": {"a": 1}, "store": True}),
    ("only allowed when 'store'", {"messages": [USER], "metadata": {"a": "b"}}),
    ("can't be resolved", schema(a={"$ref": "#/$defs/A"})),
    ("not valid under any", schema(a={"type": "str"})),
    ("anyOf is empty", schema(a={"anyOf": []})),
    ("top level", {"messages": [USER], "tools": [tool(type="object", oneOf=[{"type": "object"}])]}),
    ("not supported", {"messages": [USER], "max_tokens": 1, "max_completion_tokens": 1}),
]


@pytest.mark.parametrize("request_json", GOOD)
def test_accepts(request_json: dict[str, Any]) -> None:
    assert parse(json.dumps({"model": "m"} | request_json).encode())


@pytest.mark.parametrize(("said", "request_json"), BAD)
def test_refuses(said: str, request_json: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=said) as caught:
        parse(json.dumps({"model": "m"} | request_json).encode())
    assert caught.value.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "m", "x": NaN}', b'"\xff"'])
def test_refuses_what_is_no_json_object(body: bytes) -> None:
    with pytest.raises(RefusedError):
        parse(body)


async def test_the_official_sdk_understands_it() -> None:
    async with OpenAIServer(lambda _: ["text", Call("f", {"a": 1})], api_key="right", models={"m"}) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="right", max_retries=0) as client:
            whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            assert whole.choices[0].message.tool_calls
            assert whole.choices[0].message.content == "text"
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}])
            client.api_key = "wrong"
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert (server.stats.completed, server.stats.refused, len(server.requests)) == (2, 2, 2)


async def test_a_reply_hangs_until_it_is_released() -> None:
    async with OpenAIServer() as server:
        server.rule = lambda _: Reply(text="one two", hang=server.release, hang_after=2)
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            texts = []
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)
                if texts[-1] == "one ":
                    server.release.set()
            assert "".join(text or "" for text in texts) == "one two"
