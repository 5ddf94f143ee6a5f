"""The fake model server itself: refuses what the real APIs refuse, and is understood by the official SDKs."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.servers import chat, responses
from tests.servers.model_server import Call, OpenAIServer, Reply, ResponsesServer
from tests.servers.responses import ENCRYPTED, message, reasoning, seal
from tests.servers.wire import RefusedError
from tests.support.adapters import Api

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
    parameters = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def schema(**properties: Any) -> dict[str, Any]:
    return {"messages": [USER], "tools": [tool(type="object", properties=properties)]}


CHAT_GOOD: list[dict[str, Any]] = [
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
CHAT_BAD: list[tuple[str, dict[str, Any]]] = [
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


THOUGHT = reasoning("hm")
SAID = message("well")
SEALED = THOUGHT | {"encrypted_content": seal(THOUGHT, "m", SAID["id"])}
NEEDS = {SAID["id"]: THOUGHT["id"]}


def asked(call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"} | fields


def output(call_id: str = "c1", output: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def function(name: str = "f", strict: bool | None = False, **parameters: Any) -> dict[str, Any]:
    made = {"type": "function", "name": name, "parameters": parameters or {"type": "object", "properties": {}}}
    return made if strict is None else made | {"strict": strict}


def said(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


RESPONSES_GOOD: list[dict[str, Any]] = [
    {"input": "hi"},
    {"input": [USER, asked("a"), asked("b"), output("b"), output("a"), USER]},
    {"input": [USER, SEALED, SAID, USER]},
    {"input": [USER, {"role": "assistant", "content": "x"}]},
    {"input": [USER], "tools": [function(), {"type": "web_search"}], "tool_choice": "required"},
    {"input": [USER, asked(), output(output=[{"type": "input_text", "text": "x"}])]},
]
RESPONSES_BAD: list[tuple[str, dict[str, Any]]] = [
    ("empty array", {"input": []}),
    ("Missing", {}),
    ("Unknown parameter", {"input": "x", "max_tokens": 3}),
    ("below minimum", {"input": "x", "max_output_tokens": 15}),
    ("Supported values", {"input": [{"role": "tool", "content": "x"}]}),
    ("Supported values", {"input": [said({"type": "output_text", "text": "x", "annotations": []})]}),
    ("Supported values", {"input": [USER, SAID | {"content": [{"type": "input_text", "text": "x"}]}]}),
    ("Missing required parameter", {"input": [USER, {"role": "assistant", "content": SAID["content"]}]}),
    ("Unknown parameter", {"input": [USER, SEALED | {"status": "completed"}, SAID]}),
    ("begins with 'fc'", {"input": [USER, asked(id="call_1"), output()]}),
    ("begins with 'rs'", {"input": [USER, SEALED | {"id": "x"}, SAID]}),
    ("too long", {"input": [USER, asked("a" * 65), output("a" * 65)]}),
    ("No tool output found", {"input": [USER, asked()]}),
    ("No tool output found", {"input": [USER, asked(), USER, output()]}),
    ("No tool call found", {"input": [USER, output()]}),
    ("Duplicate output", {"input": [USER, asked(), output(), output()]}),
    ("arguments", {"input": [USER, asked(arguments="{x"), output()]}),
    ("required following item", {"input": [USER, SEALED, USER]}),
    ("required following item", {"input": [USER, SEALED]}),
    ("required 'reasoning' item", {"input": [USER, SAID]}),
    ("could not be verified", {"input": [USER, SEALED | {"summary": []}, SAID]}),
    ("could not be verified", {"input": [USER, SEALED | {"encrypted_content": "gAAAAx"}, SAID]}),
    ("could not be verified", {"input": [USER, SEALED, SAID], "model": "other"}),
    ("not found", {"input": [USER, THOUGHT, SAID]}),
    ("valid URL", {"input": [said({"type": "input_image", "image_url": "data:image/bmp;base64,aa"})]}),
    ("filename", {"input": [said({"type": "input_file", "file_data": "data:application/pdf;base64,aa"})]}),
    ("Missing required parameter: 'tools[0].name'", {"input": "x", "tools": [{"type": "function", "function": {}}]}),
    ("additionalProperties", {"input": "x", "tools": [function(strict=None)]}),
    ("missing items", {"input": "x", "tools": [function(type="object", properties={"x": {"type": "array"}})]}),
    ("unique", {"input": "x", "tools": [function(), function()]}),
    ("not found", {"input": "x", "tools": [function()], "tool_choice": {"type": "function", "name": "g"}}),
    ("only allowed when 'tools'", {"input": "x", "tool_choice": "auto"}),
    ("'huge'", {"input": "x", "reasoning": {"effort": "huge"}}),
]


PARSE = {
    "openai": (chat.parse, CHAT_GOOD, CHAT_BAD),
    "openai-responses": (lambda body: responses.parse(body, NEEDS), RESPONSES_GOOD, RESPONSES_BAD),
}


@pytest.mark.parametrize("format", PARSE)
def test_accepts_and_refuses(format: str) -> None:
    parse, good, bad = PARSE[format]
    for request in good:
        assert parse(json.dumps({"model": "m"} | request).encode())
    for said, request in bad:
        with pytest.raises(RefusedError) as caught:
            parse(json.dumps({"model": "m"} | request).encode())
        assert said in str(caught.value), request
        assert caught.value.status == (
            404 if said == "not found" and "input" in request and "tools" not in request else 400
        )
    for body in (b"", b"{", b"[]", b'{"model": "m", "x": NaN}', b'"\xff"', b'{"model": "m", "model": "m"}'):
        with pytest.raises(RefusedError):
            parse(body)


async def test_one_server_answers_all_formats(apis: dict[str, Api]) -> None:
    server = next(iter(apis.values())).server
    server.reset("Here.")
    for api in apis.values():
        assert (await api.reply("Here.")).finish_reason == "stop"
    paths = [path.partition("?")[0].rpartition("/")[2] for path in server.paths]
    assert paths == ["completions", "responses", "messages", "gemini-3-pro:streamGenerateContent", "completions"]
    server.replies = ["First.", Reply("Second.")]
    said = [(await apis["anthropic"].reply(lambda _: "Third.")).parts[0].text for _ in range(3)]  # type: ignore[union-attr]
    assert said == ["First.", "Second.", "Third."]
    assert server.stats.refused == 0


async def test_the_sdk_understands_chat_completions() -> None:
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


async def test_the_sdk_understands_responses() -> None:
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
