"""The provider against a real HTTP server that enforces the API's rules."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from itertools import pairwise

import pytest

from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    MalformedReplyError,
    ModelNotFoundError,
    PerdureError,
    ProviderConnectionError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from perdure.ports import Completed, ModelRequest, TextDelta, ThinkingDelta, ToolCallDelta, ToolSpec
from perdure.providers.chat_request import encode_request
from perdure.providers.openai_chat import OpenAIChat
from perdure.types.messages import BlobRef, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from tests.servers.model_server import Call, OpenAIServer, Reply, error
from tests.unit.providers.conftest import KEY, Ask

HI = ModelRequest("gpt-test", [Message.user("hi")])
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def result(call_id: str, content: str = "ok") -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="add", content=content)


async def test_text_streams_and_completes(ask: Ask) -> None:
    *deltas, completed = await ask(Reply(text="Hello wörld.", thinking="let me see"))
    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["Hello ", "wörld."]
    assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == "let me see"
    assert isinstance(completed, Completed)
    thinking = ThinkingPart(text="let me see", provider="openai@127.0.0.1", opaque={"field": "reasoning_content"})
    assert completed.parts == (thinking, TextPart(text="Hello wörld."))
    assert (completed.finish_reason, completed.model) == ("stop", "gpt-test")


async def test_calls_stream_and_complete(ask: Ask) -> None:
    *deltas, completed = await ask([Call("add", {"a": 1}, id="c1"), "both", Call("add", {"text": "é" * 40}, id="c2")])
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    assert completed.parts == (
        TextPart(text="both"),
        ToolCallPart(id="c1", name="add", arguments={"a": 1}),
        ToolCallPart(id="c2", name="add", arguments={"text": "é" * 40}),
    )
    second = [d for d in deltas if isinstance(d, ToolCallDelta) and d.index == 1]
    assert {(d.id, d.name) for d in second} == {("c2", "add")}
    assert "".join(d.arguments for d in second) == '{"text": "' + r"\u00e9" * 40 + '"}'


async def test_usage(ask: Ask) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    completed = (await ask(Reply(text="x", usage=usage)))[-1]
    assert isinstance(completed, Completed)
    assert completed.usage == Usage(input_tokens=100, output_tokens=20, cached_tokens=64, reasoning_tokens=12)


async def test_the_whole_conversation_goes_out(ask: Ask, server: OpenAIServer) -> None:
    calls = (ToolCallPart(id="c1", name="add", arguments={"a": 1}), ToolCallPart(id="c2", name="add", malformed="{a"))
    messages = [
        Message.user("first"),
        Message(role="assistant", parts=(ThinkingPart(text="hm"), TextPart(text="well"), *calls)),
        Message(role="tool", parts=(result("c1", "1"), result("c2", "ValueError: not JSON"))),
        Message(role="assistant", parts=(ThinkingPart(text="only thinking"),)),
        Message.user("more\n“quoted” \x00"),
    ]
    settings = {"temperature": 0.2, "top_p": 1, "max_tokens": 9, "stop": ["x"], "seed": 3, "reasoning_effort": "low"}
    options = {"parallel_tool_calls": False}
    request = ModelRequest("m", messages, "be brief", [ADD], "add", settings, options)
    await ask("fine", request)
    assert server.requests == [
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": [
                {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD.parameters}}
            ],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            **settings,
            **options,
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "first"},
                {
                    "role": "assistant",
                    "content": "well",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
                        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "ValueError: not JSON"},
                {"role": "assistant", "content": ""},
                {"role": "user", "content": "more\n“quoted” \ufffd"},
            ],
        }
    ]


async def test_a_message_is_encoded_once(ask: Ask, server: OpenAIServer) -> None:
    message = Message.user("hi")
    await ask("one", ModelRequest("m", [message]))
    message.remember_wire("openai@127.0.0.1", b'{"role":"user","content":"from memory"}')
    await ask("two", ModelRequest("m", [message]))
    assert [request["messages"][0]["content"] for request in server.requests] == ["hi", "from memory"]


async def test_lone_surrogates_are_cleaned_both_ways(ask: Ask, server: OpenAIServer) -> None:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("a\ud83d", "\ude00b", "\udc00", "\ud800")]
    chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    *deltas, completed = await ask(Reply(chunks=chunks), ModelRequest("m", [Message.user("x\ud800y")], "s\udfff"))
    assert isinstance(completed, Completed)
    assert completed.parts == (TextPart(text="a😀b��"),)
    for delta in deltas:
        assert isinstance(delta, TextDelta)
        delta.text.encode()
    assert server.requests[0]["messages"][1]["content"] == "x�y"


async def test_max_tokens_has_the_name_that_the_endpoint_knows(server: OpenAIServer, ask: Ask) -> None:
    request = ModelRequest("m", [Message.user("hi")], settings={"max_tokens": 5, "temperature": None})
    await ask("x", request)
    newer = OpenAIChat(base_url=server.base_url, api_key=KEY, max_tokens_name="max_completion_tokens")
    async for _ in newer.stream(request):
        pass
    await newer.aclose()
    assert [sorted(r) for r in server.requests] == [
        ["max_tokens", "messages", "model", "stream", "stream_options"],
        ["max_completion_tokens", "messages", "model", "stream", "stream_options"],
    ]
    assert OpenAIChat()._max_tokens_wire("api.openai.com") == "max_completion_tokens"
    assert OpenAIChat()._max_tokens_wire("x.openai.azure.com") == "max_completion_tokens"
    assert OpenAIChat()._max_tokens_wire("notopenai.com") == "max_tokens"


async def test_the_environment_names_endpoint_and_key(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    provider = OpenAIChat(api_key_env="OTHER_KEY")
    with pytest.raises(AuthenticationError, match="OTHER_KEY"):
        [event async for event in provider.stream(HI)]
    for key in ("one", "two"):
        monkeypatch.setenv("OTHER_KEY", f"{key}\n")
        assert [event async for event in provider.stream(HI)]
    await provider.aclose()
    assert [headers["authorization"] for headers in server.headers] == ["Bearer one", "Bearer two"]


async def test_one_connection_serves_all_calls(ask: Ask, server: OpenAIServer) -> None:
    for _ in range(3):
        await ask()
    assert server.connections == 1
    assert server.stats.completed == 3


def test_an_instance_works_on_several_event_loops() -> None:
    provider = OpenAIChat(api_key=KEY)

    async def once() -> int:
        async with OpenAIServer() as server:
            provider._base_url = server.base_url
            events = [event async for event in provider.stream(HI)]
            await provider.aclose()
            return len(events)

    assert [asyncio.run(once()) for _ in range(2)] == [2, 2]
    gc.collect()
    assert not provider._clients


async def test_whoever_stops_listening_hangs_up(server: OpenAIServer, provider: OpenAIChat) -> None:
    server.rule = lambda _: Reply(text="one two three", hang=server.release, hang_after=2)
    stream = provider.stream(HI)
    assert await anext(stream) == TextDelta("one ")
    await stream.aclose()
    gone = asyncio.Event()
    server.rule = lambda _: gone.set() or "again"
    assert [event async for event in provider.stream(HI)][-1]
    assert server.stats.aborted == 1


async def test_cancelling_is_not_translated(server: OpenAIServer, provider: OpenAIChat) -> None:
    server.rule = lambda _: Reply(text="never", hang=server.release)

    async def run() -> None:
        async for _ in provider.stream(HI):
            pass

    task = asyncio.ensure_future(run())
    await server.wait_requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("reply", "expected", "status"),
    [
        (error(401, "Incorrect API key provided: " + KEY, code="invalid_api_key"), AuthenticationError, 401),
        (error(404, "The model `x` does not exist", code="model_not_found"), ModelNotFoundError, 404),
        (error(429, "Slow down.", code="rate_limit_exceeded"), RateLimitError, 429),
        (Reply(status=400, body=b"<html>no</html>"), BadRequestError, 400),
    ],
)
async def test_error_answers(ask: Ask, reply: Reply, expected: type[PerdureError], status: int) -> None:
    with pytest.raises(expected) as caught:
        await ask(reply)
    assert caught.value.status == status
    assert KEY not in repr(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "html" not in str(caught.value)


async def test_a_refused_key_names_the_variable(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.rule = lambda _: error(401, "Incorrect API key provided", code="invalid_api_key")
    monkeypatch.setenv("MY_KEY", KEY)
    provider = OpenAIChat(base_url=server.base_url, api_key_env="MY_KEY")
    with pytest.raises(AuthenticationError, match="Check MY_KEY") as caught:
        [event async for event in provider.stream(HI)]
    assert not caught.value.retryable
    assert server.stats.requests == 1
    await provider.aclose()


async def test_metadata_goes_with_store(ask: Ask, server: OpenAIServer) -> None:
    request = ModelRequest("m", [Message.user("hi")], settings={"metadata": {"team": "a"}})
    with pytest.raises(BadRequestError, match=r"{'store': True}"):
        await ask("x", request)
    await ask("x", replace(request, provider_options={"store": True}))
    assert server.requests[-1]["metadata"] == {"team": "a"}


async def test_a_reply_that_was_cut_has_no_half_call(ask: Ask) -> None:
    reply = Reply(calls=[Call("add", {"a": 1}, id="c1"), Call("add", '{"a": 1', id="c2")], finish_reason="length")
    completed = (await ask(reply))[-1]
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "length"
    assert completed.parts == (ToolCallPart(id="c1", name="add", arguments={"a": 1}),)


def test_a_conversation_goes_on_from_the_same_prefix() -> None:
    """What the server keeps of a prompt serves the next call: all before the end is the same, byte for byte."""
    bodies: list[bytes] = []
    request = ModelRequest("m", [Message.user("hi")], "be brief", [ADD], settings={"temperature": 0})
    for n in range(3):
        bodies.append(encode_request(request, origin="openai", max_tokens_name="max_tokens"))
        more = Message.assistant("", ToolCallPart(id=f"c{n}", name="add", arguments={"b": 1, "a": 2}))
        request = replace(request, messages=[*request.messages, more, Message(role="tool", parts=(result(f"c{n}"),))])
    for earlier, later in pairwise(bodies):
        assert later.startswith(earlier.removesuffix(b"]}"))


async def test_retry_after_is_read(ask: Ask) -> None:
    with pytest.raises(RateLimitError) as caught:
        await ask(error(429, "Slow down.", retry_after_ms="1500", retry_after="9"))
    assert caught.value.retry_after == 1.5


@pytest.mark.parametrize("cut", [5, 300])
async def test_a_cut_connection_is_a_truncated_stream(ask: Ask, cut: int) -> None:
    with pytest.raises(TruncatedStreamError):
        await ask(Reply(text="one two three four five", cut_after=cut))


@pytest.mark.parametrize("done", [True, False])
async def test_no_finish_reason_is_a_truncated_stream(ask: Ask, done: bool) -> None:
    with pytest.raises(TruncatedStreamError):
        await ask(Reply(chunks=[{"choices": [{"delta": {"content": "one"}}]}], done=done))


@pytest.mark.parametrize(
    "chunk", [b"data: {broken\n\n", b"data: [1]\n\n", b"data: \xff\xfe\n\n", {"choices": [{"delta": "text"}]}]
)
async def test_garbage_in_the_stream_is_malformed(ask: Ask, chunk: object) -> None:
    with pytest.raises(MalformedReplyError):
        await ask(Reply(chunks=[chunk]))


async def test_a_web_page_is_malformed_and_names_base_url(ask: Ask) -> None:
    with pytest.raises(MalformedReplyError, match="base_url"):
        await ask(Reply(body=b"<html>", headers={"content-type": "text/html; charset=utf-8"}))


async def test_an_answer_that_is_no_stream_is_taken_whole(ask: Ask) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}
    events = await ask(Reply(body={"choices": [choice], "usage": {"prompt_tokens": 3}, "model": "m1"}))
    assert events == [
        TextDelta("whole"),
        Completed((TextPart(text="whole"),), "stop", Usage(input_tokens=3), "m1"),
    ]


async def test_an_error_in_the_stream_is_classified(ask: Ask) -> None:
    chunks = [
        {"choices": [{"delta": {"content": "one"}}]},
        {"error": {"message": "Slow down", "code": "rate_limit_exceeded"}},
    ]
    with pytest.raises(RateLimitError, match="Slow down"):
        await ask(Reply(chunks=chunks))


async def test_silence_is_a_timeout(server: OpenAIServer) -> None:
    server.rule = lambda _: Reply(text="never", hang=server.release, hang_after=1)
    provider = OpenAIChat(base_url=server.base_url, api_key=KEY, timeout=0.05)
    with pytest.raises(ProviderTimeoutError):
        [event async for event in provider.stream(HI)]
    await provider.aclose()


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:1/v1", "http://[::1]:1/v1"])
async def test_nobody_listens(base_url: str) -> None:
    provider = OpenAIChat(base_url=base_url, api_key=KEY)
    with pytest.raises(ProviderConnectionError, match="base_url"):
        [event async for event in provider.stream(HI)]
    await provider.aclose()


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        ("127.0.0.1/v1", KEY),
        ("ftp://x/v1", KEY),
        ("http://127.0.0.1:1/v1", "sk-abc\ndefghijk"),
        ("http://127.0.0.1:1/v1", "schlüssel"),
    ],
)
async def test_a_request_that_cannot_be_sent_is_not_retried_and_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, base_url: str, key: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    provider = OpenAIChat(api_key=key)
    with pytest.raises(PerdureError) as caught:
        [event async for event in provider.stream(HI)]
    assert not caught.value.retryable
    assert "defghijk" not in str(caught.value)
    assert "schl" not in str(caught.value)
    await provider.aclose()


async def test_content_that_was_not_loaded_is_refused(ask: Ask) -> None:
    part = ToolResultPart(call_id="c", name="add", blob=BlobRef(hash="ab" * 32, size=9))
    with pytest.raises(BadRequestError, match="not loaded"):
        await ask("x", ModelRequest("m", [Message(role="tool", parts=(part,))]))


async def test_the_servers_rules_reach_the_caller(ask: Ask) -> None:
    messages = [Message.user("hi"), Message.assistant("", ToolCallPart(id="c1", name="add"))]
    with pytest.raises(BadRequestError, match="c1"):
        await ask("x", ModelRequest("m", messages))
