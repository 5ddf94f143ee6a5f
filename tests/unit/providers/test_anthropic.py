"""The provider against a real HTTP server that enforces the API's rules."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    MalformedReplyError,
    ModelNotFoundError,
    OverloadedError,
    PerdureError,
    ProviderConnectionError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from perdure.ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta, ToolSpec
from perdure.providers import Anthropic
from perdure.types.messages import (
    BlobRef,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from tests.servers.anthropic import error_body, sign, thinking
from tests.servers.model_server import AnthropicServer, Call, Reply, Rule, error
from tests.support.wait import eventually

KEY = "sk-ant-api03-0123456789"
HERE = "anthropic@127.0.0.1"
MODEL = "claude-sonnet-4-6"
HI = ModelRequest(MODEL, [Message.user("hi")])
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}

Ask = Callable[..., Awaitable[list[StreamEvent]]]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    async with AnthropicServer() as running:
        yield running


@pytest.fixture
async def provider(server: AnthropicServer) -> AsyncIterator[Anthropic]:
    made = Anthropic(base_url=server.base_url, api_key=KEY)
    yield made
    await made.aclose()


@pytest.fixture
def ask(server: AnthropicServer, provider: Anthropic) -> Ask:
    """Ask the provider once, with the server answering by ``rule``; everything that was streamed."""

    async def run(rule: Rule | Any = "Hello.", request: ModelRequest = HI) -> list[StreamEvent]:
        server.rule = rule if callable(rule) or isinstance(rule, str) else lambda _: rule
        return [event async for event in provider.stream(request)]

    return run


def done(events: list[StreamEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


def result(call_id: str, content: str = "ok", **rest: Any) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="add", content=content, **rest)


async def test_text_and_thinking_stream_and_complete(ask: Ask) -> None:
    *deltas, completed = await ask([thinking("let me see"), "Hello wörld."])
    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["Hello ", "wörld."]
    assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == "let me see"
    assert isinstance(completed, Completed)
    thought = ThinkingPart(text="let me see", provider=HERE, opaque={"signature": sign("let me see")})
    assert completed.parts == (thought, TextPart(text="Hello wörld."))
    assert (completed.finish_reason, completed.model) == ("stop", MODEL)


async def test_calls_stream_and_complete_in_their_order(ask: Ask) -> None:
    *deltas, completed = await ask(
        Reply(content=["first", Call("add", {"a": 1}, id="c1"), "then", Call("noop", id="c2")])
    )
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    assert completed.parts == (
        TextPart(text="first"),
        ToolCallPart(id="c1", name="add", arguments={"a": 1}),
        TextPart(text="then"),
        ToolCallPart(id="c2", name="noop"),
    )
    told = [d for d in deltas if isinstance(d, ToolCallDelta)]
    assert {(d.index, d.id, d.name) for d in told} == {(0, "c1", "add"), (1, "c2", "noop")}
    assert "".join(d.arguments for d in told if d.index == 0) == '{"a": 1}'


async def test_malformed_arguments_are_kept_as_they_came(ask: Ask) -> None:
    completed = done(await ask(Call("add", '{"a": NaN}', id="c1")))
    assert completed.parts == (ToolCallPart(id="c1", name="add", malformed='{"a": NaN}'),)


async def test_usage_counts_what_the_cache_had_to_do_with(ask: Ask) -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 26,
        "output_tokens": 20,
        "output_tokens_details": {"thinking_tokens": 12},
    }
    assert done(await ask(Reply(text="x", usage=usage))).usage == Usage(
        input_tokens=100, output_tokens=20, cached_tokens=64, cache_write_tokens=26, reasoning_tokens=12
    )


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("something_new", "other"),
    ],
)
async def test_stop_reasons(ask: Ask, reason: str, finish: str) -> None:
    assert done(await ask(Reply(text="x", finish_reason=reason))).finish_reason == finish


@pytest.mark.parametrize("cut", ['{"a": 1, "b": [', "", Call("add", "")])
@pytest.mark.parametrize("reason", ["max_tokens", "refusal"])
async def test_a_call_that_was_cut_short_is_dropped(ask: Ask, cut: Any, reason: str) -> None:
    last = cut if isinstance(cut, Call) else Call("add", cut)
    said = Reply(text="so", calls=[Call("add", {"a": 1}, id="whole"), last], finish_reason=reason)
    completed = done(await ask(said))
    assert completed.parts == (TextPart(text="so"), ToolCallPart(id="whole", name="add", arguments={"a": 1}))


async def test_the_whole_conversation_goes_out(ask: Ask, server: AnthropicServer) -> None:
    own = ThinkingPart(text="hm", provider=HERE, opaque={"signature": sign("hm")})
    sealed = OpaquePart(provider=HERE, data={"type": "redacted_thinking", "data": "sealed/x"})
    calls = (ToolCallPart(id="c1", name="add", arguments={"a": 1}), ToolCallPart(id="c2", name="add", malformed="{a"))
    messages = [
        Message.user("first"),
        Message(role="assistant", parts=(own, sealed, TextPart(text="well"), *calls)),
        Message(role="tool", parts=(result("c1", "1"),)),
        Message(role="tool", parts=(result("c2", "ValueError: no", is_error=True),)),
        Message.user("more\n“quoted”"),
        Message(role="assistant", parts=(ThinkingPart(text="unsigned"), TextPart(text=" \n"))),
        Message.user("and more"),
    ]
    settings = {"max_tokens": 9, "stop": "x", "metadata": {"user_id": "u1"}, "reasoning_effort": None}
    request = ModelRequest("claude-x", messages, "be brief", [ADD], None, settings, {"service_tier": "auto"})
    await ask("fine", request)
    tool = {"name": "add", "description": "Adds.", "input_schema": ADD.parameters}
    assert server.requests == [
        {
            "model": "claude-x",
            "stream": True,
            "max_tokens": 9,
            "stop_sequences": ["x"],
            "metadata": {"user_id": "u1"},
            "service_tier": "auto",
            "tools": [tool | EPHEMERAL],
            "system": [{"type": "text", "text": "be brief"} | EPHEMERAL],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "first"} | EPHEMERAL]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": sign("hm")},
                        {"type": "redacted_thinking", "data": "sealed/x"},
                        {"type": "text", "text": "well"},
                        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                        {"type": "tool_use", "id": "c2", "name": "add", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                        {"type": "tool_result", "tool_use_id": "c2", "content": "ValueError: no", "is_error": True},
                        {"type": "text", "text": "more\n“quoted”"},
                        {"type": "text", "text": "and more"} | EPHEMERAL,
                    ],
                },
            ],
        }
    ]


async def test_a_reply_goes_back_as_it_came(ask: Ask, server: AnthropicServer) -> None:
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "e"}]}
    cited = {"type": "text", "text": "It is so.", "citations": [{"type": "char_location", "cited_text": "so"}]}
    call = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}, "caller": {"type": "direct"}}
    redacted = {"type": "redacted_thinking", "data": "sealed/1"}
    content = [thinking("one"), redacted, searched, found, cited, thinking(""), call]
    completed = done(await ask(Reply(content=content)))
    said = Message(role="assistant", parts=completed.parts)
    assert (completed.finish_reason, said.text) == ("tool_calls", "It is so.")
    again = ModelRequest(MODEL, [Message.user("hi"), said, Message(role="tool", parts=(result("c1"),))], tools=[ADD])
    await ask("fine", again)
    assert server.requests[-1]["messages"][1]["content"] == content


async def test_what_another_origin_said_goes_out_without_what_it_alone_understands(
    ask: Ask, server: AnthropicServer
) -> None:
    other = "anthropic"  # Anthropic itself is another origin than this server
    parts = (
        ThinkingPart(text="hm", provider=other, opaque={"signature": "theirs"}),
        OpaquePart(provider="openai-responses", data={"type": "reasoning", "encrypted_content": "x"}),
        TextPart(text="well", provider=other, opaque={"citations": [{"type": "char_location"}]}),
        ToolCallPart(id="functions.add:0", name="functions.add", provider="google", opaque={"thought_signature": "x"}),
    )
    messages = [
        Message.user("first"),
        Message(role="assistant", parts=parts),
        Message(role="tool", parts=(result("functions.add:0"),)),
    ]
    await ask("fine", ModelRequest(MODEL, messages, tools=[ADD], settings={"reasoning_effort": "high"}))
    text, call = server.requests[0]["messages"][1]["content"]
    assert text == {"type": "text", "text": "well"}
    assert (call["type"], call["name"], sorted(call)) == ("tool_use", "functions_add", ["id", "input", "name", "type"])
    assert server.requests[0]["messages"][2]["content"][0]["tool_use_id"] == call["id"]


async def test_ids_that_every_reply_counts_from_0_are_told_apart(ask: Ask, server: AnthropicServer) -> None:
    calls = [ToolCallPart(id=name, name="add") for name in ("call_0", "call_1")]
    turn = [Message.assistant("", *calls), Message(role="tool", parts=(result("call_0"), result("call_1")))]
    other = [Message.assistant("", calls[0]), Message(role="tool", parts=(result("call_0"),))]
    await ask("x", ModelRequest(MODEL, [Message.user("hi"), *turn, *other, *turn], tools=[ADD]))
    messages = server.requests[0]["messages"]
    ids = [[block["id"] for block in message["content"]] for message in messages[1::2]]
    assert ids == [["call_0", "call_1"], ["call_0_2"], ["call_0_3", "call_1_2"]]


@pytest.mark.parametrize(
    ("messages", "roles"),
    [
        ([Message.assistant("I begin.")], ["user", "assistant", "user"]),
        ([Message.user(" ")], ["user"]),
        ([Message.user("a"), Message.assistant("b"), Message.user("")], ["user", "assistant", "user"]),
        ([Message.user("a"), Message(role="assistant", parts=()), Message.user("b")], ["user"]),
        ([Message.user("a"), Message.assistant("x"), Message.assistant("y")], ["user", "assistant", "user"]),
        ([Message.system("Be kind."), Message.user("a")], ["user"]),
    ],
)
async def test_roles_take_turns_whatever_the_conversation_is(
    ask: Ask, server: AnthropicServer, messages: list[Message], roles: list[str]
) -> None:
    await ask("fine", ModelRequest(MODEL, messages))
    assert [message["role"] for message in server.requests[0]["messages"]] == roles


async def test_a_message_is_encoded_once(ask: Ask, server: AnthropicServer) -> None:
    message = Message.user("hi")
    await ask("one", ModelRequest(MODEL, [message]))
    message.remember_wire(f"anthropic:{HERE}", b'{"type":"text","text":"from memory"}')
    await ask("two", ModelRequest(MODEL, [message]))
    assert [request["messages"][0]["content"][0]["text"] for request in server.requests] == ["hi", "from memory"]


async def test_content_that_was_not_loaded_is_refused(ask: Ask) -> None:
    blob = BlobRef(hash="0" * 64, size=5)
    with pytest.raises(BadRequestError, match="not loaded"):
        await ask("x", ModelRequest(MODEL, [Message(role="user", parts=(TextPart(blob=blob),))]))


async def test_each_call_begins_with_the_bytes_of_the_one_before(ask: Ask, server: AnthropicServer) -> None:
    messages: list[Message] = [Message.user("go")]
    for turn in range(5):
        content = [thinking(f"round {turn}"), Call("add", {"a": turn}, id=f"c{turn}")]
        completed = done(await ask(content, ModelRequest(MODEL, messages, "be brief", [ADD])))
        messages = [
            *messages,
            Message(role="assistant", parts=completed.parts),
            Message(role="tool", parts=(result(f"c{turn}", "x" * turn),)),
        ]
    mark = b',"cache_control":{"type":"ephemeral"}'
    for before, after in zip(server.bodies, server.bodies[1:], strict=False):
        assert after.replace(mark, b"").startswith(before.replace(mark, b"").removesuffix(b"]}"))
    for index, request in enumerate(server.requests):
        marked = [n for n, m in enumerate(request["messages"]) if "cache_control" in m["content"][-1]]
        assert marked == [2 * n for n in range(index + 1)][-2:], "what the call before wrote, and the end"


@pytest.mark.parametrize(
    ("options", "marks"),
    [
        ({}, 4),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, 3),
        ({"cache_control": None}, 0),
        ({"tools": [{"type": "web_search_20260318", "name": "web_search", **EPHEMERAL}]}, 4),
    ],
)
async def test_never_more_than_four_breakpoints(
    ask: Ask, server: AnthropicServer, options: dict[str, Any], marks: int
) -> None:
    messages = [Message.user("a"), Message.assistant("b"), Message.user("c")]
    await ask("x", ModelRequest(MODEL, messages, "be brief", [ADD], provider_options=options))
    asked = server.requests[0]
    blocks = [*asked["tools"], *asked["system"], *(block for m in asked["messages"] for block in m["content"])]
    placed = [block["cache_control"] for block in blocks if "cache_control" in block]
    assert len(placed) == marks
    assert all(mark == (options.get("cache_control") or EPHEMERAL["cache_control"]) for mark in placed)


async def test_the_apis_own_tools_stand_before_the_agents(ask: Ask, server: AnthropicServer) -> None:
    search = {"type": "web_search_20260318", "name": "web_search"}
    await ask("x", ModelRequest(MODEL, [Message.user("a")], tools=[ADD], provider_options={"tools": [search]}))
    assert [tool["name"] for tool in server.requests[0]["tools"]] == ["web_search", "add"]


async def test_a_paused_reply_goes_on(ask: Ask, server: AnthropicServer) -> None:
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    replies = [
        Reply(content=[{"type": "text", "text": "Looking. "}, searched], finish_reason="pause_turn"),
        Reply(content=[found, {"type": "text", "text": "Found."}]),
    ]
    *deltas, completed = await ask(lambda _: replies[len(server.requests) - 1])
    assert isinstance(completed, Completed)
    assert (completed.finish_reason, len(completed.parts)) == ("stop", 4)
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "Looking. Found."
    assert completed.usage.input_tokens > len(server.bodies[0]) // 4, "both pieces are counted"
    begun = {"role": "assistant", "content": [{"type": "text", "text": "Looking. "}, searched]}
    assert server.requests[1]["messages"][-1] == begun
    again = [Message.user("hi"), Message(role="assistant", parts=completed.parts), Message.user("thanks")]
    await ask("x", ModelRequest(MODEL, again))
    assert server.requests[2]["messages"][1]["content"][1:3] == [searched, found]


async def test_a_reply_that_pauses_for_ever_ends(ask: Ask, server: AnthropicServer) -> None:
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    reply = Reply(content=[{"type": "text", "text": "x"}, searched], finish_reason="pause_turn")
    completed = done(await ask(lambda _: reply))
    assert (completed.finish_reason, len(server.requests)) == ("other", 10)
    assert completed.parts == (TextPart(text="x"),) * 10, "a search without a result would be refused"


async def test_a_reply_that_is_not_streamed(ask: Ask) -> None:
    content = [
        thinking("hm"),
        {"type": "text", "text": "well"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
    ]
    usage = {"input_tokens": 3, "output_tokens": 2}
    body = {"type": "message", "model": "m", "content": content, "stop_reason": "tool_use", "usage": usage}
    *deltas, completed = await ask(Reply(body=body))
    assert isinstance(completed, Completed)
    assert [part.type for part in completed.parts] == ["thinking", "text", "tool_call"]
    assert (completed.finish_reason, completed.model, completed.usage.total_tokens) == ("tool_calls", "m", 5)
    assert TextDelta("well") in deltas


async def test_an_emoji_cut_in_two_arrives_whole(ask: Ask) -> None:
    pieces = [rb'{"type":"text_delta","text":"a\ud83d"}', rb'{"type":"text_delta","text":"\ude00 \ud800."}']
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":%b}\n\n'
    chunks: list[Any] = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(delta % piece for piece in pieces),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ]
    *deltas, completed = await ask(Reply(chunks=chunks))
    assert isinstance(completed, Completed)
    assert completed.parts == (TextPart(text="a😀 \ufffd."),)
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "a😀 \ufffd."


ERRORS: list[tuple[Reply, type[PerdureError]]] = [
    (error(400, "prompt is too long: 200001 tokens > 200000 maximum"), ContextLengthError),
    (error(400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2"), ContextLengthError),
    (error(413, "Request exceeds the maximum size", "request_too_large"), ContextLengthError),
    (error(400, "messages: roles must alternate"), BadRequestError),
    (error(401, "invalid x-api-key", "authentication_error"), AuthenticationError),
    (error(404, "model: claude-x", "not_found_error"), ModelNotFoundError),
    (error(429, "slow down", "rate_limit_error", retry_after="2"), RateLimitError),
    (error(500, "Internal server error", "api_error"), ProviderServerError),
    (error(504, "took too long", "timeout_error"), ProviderTimeoutError),
    (error(529, "Overloaded", "overloaded_error"), OverloadedError),
]


@pytest.mark.parametrize(("reply", "cls"), ERRORS, ids=lambda value: str(getattr(value, "status", "")))
async def test_errors(ask: Ask, reply: Reply, cls: type[PerdureError]) -> None:
    with pytest.raises(cls) as caught:
        await ask(reply)
    assert type(caught.value) is cls
    assert getattr(caught.value, "status", None) == reply.status
    assert caught.value.__cause__ is None
    assert getattr(caught.value, "retry_after", None) == (2.0 if reply.status == 429 else None)


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("overloaded_error", OverloadedError),
        ("api_error", ProviderServerError),
        ("rate_limit_error", RateLimitError),
        ("timeout_error", ProviderTimeoutError),
        ("invalid_request_error", BadRequestError),
    ],
)
async def test_errors_in_the_stream(ask: Ask, kind: str, cls: type[PerdureError]) -> None:
    chunks = [{"type": "message_start", "message": {}}, error_body("it broke", kind)]
    with pytest.raises(cls, match="it broke") as caught:
        await ask(Reply(chunks=chunks))
    assert type(caught.value) is cls


async def test_a_wrong_key_names_the_variable(server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.rule = lambda _: error(401, f"invalid x-api-key {KEY}", "authentication_error")
    for made, name in (
        (Anthropic(base_url=server.base_url), "ANTHROPIC_API_KEY"),
        (Anthropic(base_url=server.base_url, api_key_env="MY_KEY"), "MY_KEY"),
    ):
        with pytest.raises(AuthenticationError, match=name):
            _ = [event async for event in made.stream(HI)]
        assert server.stats.requests == (0 if name == "ANTHROPIC_API_KEY" else 1)
        monkeypatch.setenv(name, KEY)
        monkeypatch.setenv("MY_KEY", KEY)
        with pytest.raises(AuthenticationError) as caught:
            _ = [event async for event in made.stream(HI)]
        assert name in (caught.value.hint or "")
        assert KEY not in f"{caught.value!r} {caught.value}"
        await made.aclose()
        monkeypatch.delenv("MY_KEY")


@pytest.mark.parametrize("reply", [Reply(text="so far", done=False), Reply(text="so far so good", cut_after=400)])
async def test_a_stream_that_was_cut(ask: Ask, reply: Reply) -> None:
    with pytest.raises(TruncatedStreamError):
        await ask(reply)


@pytest.mark.parametrize(
    "chunks",
    [
        ["no object"],
        [b"event: message_start\ndata: {broken\n\n"],
        [{"type": "content_block_start", "index": 0, "content_block": "none"}],
        [{"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}}],
    ],
)
async def test_what_is_no_reply(ask: Ask, chunks: list[Any]) -> None:
    sent = [b'event: x\ndata: "no object"\n\n' if chunk == "no object" else chunk for chunk in chunks]
    with pytest.raises(MalformedReplyError):
        await ask(Reply(chunks=sent))


async def test_a_web_page_is_no_reply(ask: Ask) -> None:
    with pytest.raises(MalformedReplyError, match="web page"):
        await ask(Reply(body=b"<html></html>", headers={"content-type": "text/html"}))


async def test_nobody_listens() -> None:
    made = Anthropic(base_url="http://127.0.0.1:9", api_key=KEY)
    with pytest.raises(ProviderConnectionError):
        _ = [event async for event in made.stream(HI)]
    await made.aclose()


async def test_silence_times_out(server: AnthropicServer) -> None:
    server.rule = lambda _: Reply(text="never", hang=server.release)
    made = Anthropic(base_url=server.base_url, api_key=KEY, timeout=0.2)
    with pytest.raises(ProviderTimeoutError):
        _ = [event async for event in made.stream(HI)]
    await made.aclose()


async def test_a_client_that_hangs_up_is_gone(server: AnthropicServer, provider: Anthropic) -> None:
    server.rule = lambda _: Reply(text="one two three", hang=server.release, hang_after=4)
    events = provider.stream(HI)
    async for event in events:
        assert event == TextDelta("one ")
        break
    await events.aclose()  # type: ignore[attr-defined]  # it is an async generator
    await eventually(lambda: server.stats.aborted == 1, deadline=10, what="a reply that was given up")


async def test_requests_are_authenticated_and_versioned(ask: Ask, server: AnthropicServer) -> None:
    await ask()
    sampled = {"temperature": 0.2, "top_p": 0.9, "top_k": 3}
    await ask("x", ModelRequest(MODEL, [Message.user("hi")], settings=sampled))
    first, second = server.headers
    assert first["authorization"] == f"Bearer {KEY}"
    assert first["x-api-key"] == KEY, "for servers that look for it there"
    assert (first["anthropic-version"], second["anthropic-version"]) == ("2026-10-21", "2023-06-01")
    assert server.requests[1].items() >= sampled.items()


async def test_an_address_may_end_in_v1(server: AnthropicServer) -> None:
    made = Anthropic(base_url=f"{server.base_url}/v1/", api_key=KEY)
    assert done([event async for event in made.stream(HI)]).parts == (TextPart(text="Hello."),)
    await made.aclose()


async def test_connections_are_given_back(server: AnthropicServer) -> None:
    made = Anthropic(base_url=server.base_url, api_key=KEY)
    _ = [event async for event in made.stream(HI)]
    await made.aclose()
    await made.aclose()
    _ = [event async for event in made.stream(HI)]  # opens them again
    await made.aclose()
    gc.collect()
