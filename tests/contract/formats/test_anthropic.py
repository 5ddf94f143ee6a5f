"""What only Anthropic has: blocks, cache breakpoints, paused replies, thinking by model, what goes out in full."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from perdure.errors import (
    AuthenticationError,
    ContextLengthError,
    OverloadedError,
    ProviderError,
    ProviderServerError,
    SettingsError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta, ToolSpec
from perdure.providers.anthropic import Anthropic
from perdure.providers.anthropic_reply import AnthropicReply
from perdure.providers.anthropic_request import EncodedRequest, encode_request
from perdure.types.messages import (
    BlobRef,
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.servers.anthropic import parse, sign, thinking
from tests.servers.model_server import AnthropicServer, Call, Reply
from tests.support.adapters import ADD, KEY, Api, result

ADAPTER = "anthropic"

HERE = "anthropic@127.0.0.1"
MODEL = "claude-sonnet-4-6"
HI = ModelRequest(MODEL, [Message.user("hi")])
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def done(events: list[StreamEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


async def test_calls_stream_and_complete_in_their_order(ask: Api) -> None:
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


def complete(*events: dict[str, Any], stop_reason: str = "end_turn", **usage: Any) -> Completed:
    reply = AnthropicReply("api.test", HERE)
    end = {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage}
    for event in ({"type": "message_start", "message": {}}, *events, end, {"type": "message_stop"}):
        list(reply.feed(event))
    return reply.complete()


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -1, 2.0**60, "7", None])
def test_usage_that_is_not_a_count_is_zero(count: Any) -> None:
    usage = complete(input_tokens=count, output_tokens=3, output_tokens_details={"thinking_tokens": count}).usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (0, 3, 0)


@pytest.mark.parametrize("tool_use_id", [["s1"], {}, None])
def test_a_result_with_a_malformed_id_answers_no_call(tool_use_id: Any) -> None:
    blocks = (
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": tool_use_id, "content": []},
    )
    events = ({"type": "content_block_start", "index": i, "content_block": block} for i, block in enumerate(blocks))
    assert complete(*events, stop_reason="max_tokens").parts == (OpaquePart(provider=HERE, data=blocks[1]),)


async def test_events_need_no_names(ask: Api) -> None:
    """Some compatible servers send the data alone."""
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    events = ({"type": "message_start", "message": {}}, text, end, {"type": "message_stop"})
    chunks = [b"event: ping\ndata:\n\n", *(f"data: {json.dumps(event)}\n\n".encode() for event in events)]
    completed = await ask.reply(Reply(chunks=chunks))
    assert completed.parts == (TextPart(text="Hello."),)
    error = {"error": {"type": "overloaded_error", "message": "it broke"}}
    with pytest.raises(OverloadedError, match="it broke"):
        await ask(Reply(chunks=[f"event: error\ndata: {json.dumps(error)}\n\n".encode()]))


@pytest.mark.parametrize(
    ("data", "cls", "said"),
    [
        ('{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}', ContextLengthError, "too long"),
        ('{"message":"no such key","code":"authentication_error"}', AuthenticationError, "no such key"),
        ('{"type":"message_stop","message":"it broke"}', ProviderServerError, "it broke"),
        ('"it broke"', ProviderServerError, "it broke"),
        ("upstream went away", ProviderServerError, "upstream went away"),
        ("[" * 100_000, ProviderServerError, "error"),
        ("", ProviderServerError, "error"),
    ],
)
async def test_an_error_event_is_known_by_its_name(ask: Api, data: str, cls: type[ProviderError], said: str) -> None:
    chunks = [{"type": "message_start", "message": {}}, f"event: error\ndata: {data}\n\n".encode()]
    with pytest.raises(ProviderError, match=said) as caught:
        await ask(Reply(chunks=chunks))
    assert type(caught.value) is cls


@pytest.mark.parametrize("head", ["event: ping\n", ""])
@pytest.mark.parametrize("data", ["null", "7", "keep-alive", '"x"', "[1]", ": alive"])
async def test_pings_and_texts_without_a_name_are_skipped(ask: Api, head: str, data: str) -> None:
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    events = ({"type": "message_start", "message": {}}, text, end, {"type": "message_stop"})
    ping = f"{head}data: {data}\n\n".encode()
    completed = await ask.reply(Reply(chunks=[chunk for event in events for chunk in (ping, event)]))
    assert completed.parts == (TextPart(text="Hello."),)


async def test_a_ping_may_say_anything(ask: Api) -> None:
    ping = b'event: ping\ndata: {"error": {broken\n\n'
    with pytest.raises(OverloadedError, match="it broke"):
        await ask(Reply(chunks=[ping, {"type": "error", "error": {"type": "overloaded_error", "message": "it broke"}}]))


async def test_the_whole_conversation_goes_out(ask: Api, server: AnthropicServer) -> None:
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


async def test_a_reply_goes_back_as_it_came(ask: Api, server: AnthropicServer) -> None:
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


async def test_ids_that_every_reply_counts_from_0_are_told_apart(ask: Api, server: AnthropicServer) -> None:
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
    ask: Api, server: AnthropicServer, messages: list[Message], roles: list[str]
) -> None:
    await ask("fine", ModelRequest(MODEL, messages))
    assert [message["role"] for message in server.requests[0]["messages"]] == roles


async def test_each_call_begins_with_the_bytes_of_the_one_before(ask: Api, server: AnthropicServer) -> None:
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
    ask: Api, server: AnthropicServer, options: dict[str, Any], marks: int
) -> None:
    messages = [Message.user("a"), Message.assistant("b"), Message.user("c")]
    await ask("x", ModelRequest(MODEL, messages, "be brief", [ADD], provider_options=options))
    asked = server.requests[0]
    blocks = [*asked["tools"], *asked["system"], *(block for m in asked["messages"] for block in m["content"])]
    placed = [block["cache_control"] for block in blocks if "cache_control" in block]
    assert len(placed) == marks
    assert all(mark == (options.get("cache_control") or EPHEMERAL["cache_control"]) for mark in placed)


async def test_the_apis_own_tools_stand_before_the_agents(ask: Api, server: AnthropicServer) -> None:
    search = {"type": "web_search_20260318", "name": "web_search"}
    await ask("x", ModelRequest(MODEL, [Message.user("a")], tools=[ADD], provider_options={"tools": [search]}))
    assert [tool["name"] for tool in server.requests[0]["tools"]] == ["web_search", "add"]


async def test_a_paused_reply_goes_on(ask: Api, server: AnthropicServer) -> None:
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


async def test_a_reply_that_pauses_for_ever_ends(ask: Api, server: AnthropicServer) -> None:
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    reply = Reply(content=[{"type": "text", "text": "x"}, searched], finish_reason="pause_turn")
    completed = done(await ask(lambda _: reply))
    assert (completed.finish_reason, len(server.requests)) == ("other", 10)
    assert completed.parts == (TextPart(text="x"),) * 10, "a search without a result would be refused"


async def test_requests_are_authenticated_and_versioned(ask: Api, server: AnthropicServer) -> None:
    await ask()
    sampled = {"temperature": 0.2, "top_p": 0.9, "top_k": 3}
    await ask("x", ModelRequest(MODEL, [Message.user("hi")], settings=sampled))
    first, second = server.headers
    assert first["authorization"] == f"Bearer {KEY}"
    assert first["x-api-key"] == KEY, "for servers that look for it there"
    assert (first["anthropic-version"], second["anthropic-version"]) == ("2026-10-21", "2023-06-01")
    assert server.requests[1].items() >= sampled.items()


PLAIN_ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {}})
CALLED = [
    Message.user("hi"),
    Message.assistant("", ToolCallPart(id="c1", name="add")),
    Message(role="tool", parts=(ToolResultPart(call_id="c1", name="add", content="1"),)),
]
PNG = b"\x89PNG\r\n"
B64 = base64.b64encode(PNG).decode()


def encode(
    model: str, messages: list[Message] | None = None, *, origin: str = "anthropic", **rest: Any
) -> EncodedRequest:
    rest = {"tools": [PLAIN_ADD], **rest}
    return encode_request(ModelRequest(model, messages or [Message.user("hi")], **rest), origin=origin)


def asked(encoded: EncodedRequest) -> dict[str, Any]:
    """The request's JSON; fails where the API would refuse it."""
    version = encoded.headers.get("anthropic-version", "2026-10-21")
    return parse(encoded.body, version=version, beta=encoded.headers.get("anthropic-beta", ""))


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-opus-5-5", 64_000),
        ("claude-sonnet-4-5-20250929", 64_000),
        ("anthropic.claude-opus-4-7", 64_000),
        ("claude-opus-4-20250514", 32_000),
        ("claude-4-opus-20250514", 32_000),
        ("claude-opus-4-1", 32_000),
        ("claude-3-7-sonnet-latest", 64_000),
        ("claude-3-5-haiku-20241022", 8_192),
        ("claude-3-opus-20240229", 4_096),
        ("claude-mythos-preview", 32_000),
        ("glm-5", 8_192),
    ],
)
def test_a_limit_is_always_given(model: str, limit: int) -> None:
    assert asked(encode(model))["max_tokens"] == limit
    assert asked(encode(model, settings={"max_tokens": 77}))["max_tokens"] == 77


ADAPTIVE = {"type": "adaptive", "display": "summarized"}
BOUND = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}


@pytest.mark.parametrize(
    ("model", "effort", "parameters"),
    [
        ("claude-sonnet-4-6", None, {}),
        ("claude-sonnet-4-6", "max", {"thinking": ADAPTIVE, "output_config": {"effort": "max"}}),
        ("claude-opus-5", "minimal", {"thinking": ADAPTIVE, "output_config": {"effort": "low"}}),
        ("claude-opus-5", "none", {"thinking": {"type": "disabled"}}),
        ("glm-5", "low", {"thinking": ADAPTIVE, "output_config": {"effort": "low"}}),
        ("claude-sonnet-4-5", "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("claude-haiku-4-5", "max", {"thinking": {"type": "enabled", "budget_tokens": 31_999}}),
        ("claude-haiku-4-5", "none", {}),
        ("claude-opus-5-5", None, {"thinking": {"type": "adaptive"} | BOUND}),
        ("claude-fable-5-2", "high", {"thinking": ADAPTIVE | BOUND, "output_config": {"effort": "high"}}),
    ],
)
def test_effort(model: str, effort: str | None, parameters: dict[str, Any]) -> None:
    encoded = encode(model, settings={"reasoning_effort": effort})
    assert {key: value for key, value in asked(encoded).items() if key in ("thinking", "output_config")} == parameters
    assert ("anthropic-beta" in encoded.headers) == ("block_binding" in parameters.get("thinking", {}))


def test_what_needs_a_beta_goes_to_anthropic_alone() -> None:
    encoded = encode("claude-opus-5-5", origin="anthropic@gateway")
    assert "thinking" not in asked(encoded)
    assert not encoded.headers


def test_a_small_limit_leaves_no_room_for_a_budget() -> None:
    settings = {"reasoning_effort": "high", "max_tokens": 1000}
    assert "thinking" not in asked(encode("claude-haiku-4-5", settings=settings))
    settings["max_tokens"] = 4000
    assert asked(encode("claude-haiku-4-5", settings=settings))["thinking"]["budget_tokens"] == 2000


def test_a_turn_that_began_without_thinking_goes_on_without() -> None:
    settings = {"reasoning_effort": "low"}
    assert "thinking" not in asked(encode("claude-haiku-4-5", CALLED, settings=settings))
    thought = ThinkingPart(text="hm", provider="anthropic", opaque={"signature": sign("hm")})
    own = Message(role="assistant", parts=(TextPart(text=" "), thought, *CALLED[1].parts))
    assert "thinking" in asked(encode("claude-haiku-4-5", [CALLED[0], own, CALLED[2]], settings=settings))
    assert "thinking" in asked(encode("claude-haiku-4-5", [*CALLED, Message.user("more")], settings=settings))


@pytest.mark.parametrize(
    ("model", "effort", "options", "thinking"),
    [
        ("claude-haiku-4-5", "high", {}, None),
        ("claude-sonnet-4-6", "high", {}, None),
        ("claude-opus-5", None, {}, {"type": "disabled"}),
        ("claude-opus-5", "max", {}, {"type": "disabled"}),
        ("claude-opus-5", None, {"thinking": {"type": "disabled"}}, {"type": "disabled"}),
    ],
)
def test_a_forced_tool_switches_thinking_off(
    model: str, effort: str | None, options: dict[str, Any], thinking: object
) -> None:
    settings = {"reasoning_effort": effort}
    request = asked(encode(model, settings=settings, tool_choice="add", provider_options=options))
    assert request["tool_choice"] == {"type": "tool", "name": "add"}
    assert request.get("thinking") == thinking
    assert request.get("output_config", {}).get("effort") != "max"


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("claude-opus-5-5", {}),
        ("claude-fable-5-2", {}),
        ("claude-sonnet-4-6", {"thinking": {"type": "adaptive"}}),
    ],
)
def test_where_no_tool_can_be_forced_the_model_is_asked(model: str, options: dict[str, Any]) -> None:
    request = asked(encode(model, CALLED, tool_choice="add", provider_options=options))
    assert "tool_choice" not in request
    assert "call the tool add" in request["messages"][-1]["content"][-1]["text"]


def test_calls_of_the_past_need_tools_where_there_are_none_any_more() -> None:
    request = asked(encode("claude-sonnet-4-6", CALLED, tools=()))
    assert [tool["name"] for tool in request["tools"]] == ["add"]
    assert request["tool_choice"] == {"type": "none"}
    options = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert asked(encode("claude-sonnet-4-6", provider_options=options))["tool_choice"] == options["tool_choice"]
    without = asked(encode("claude-sonnet-4-6", tools=(), provider_options=options))
    assert not {"tools", "tool_choice"} & set(without)


def file(media_type: str, **rest: Any) -> FilePart:
    return FilePart(media_type=media_type, **rest)


BLOB = BlobRef(hash="a" * 64, size=len(PNG))


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            file("image/png", blob=BLOB),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}},
        ),
        (
            file("IMAGE/JPG", data=B64),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": B64}},
        ),
        (
            file("image/webp", url="https://x.test/a.webp"),
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.webp"}},
        ),
        (
            file("application/pdf", data=B64, name="a.pdf"),
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": B64},
            },
        ),
        (
            file("text/csv; charset=utf-8", data=base64.b64encode(b"a,b").decode(), name="t.csv"),
            {
                "type": "document",
                "title": "t.csv",
                "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
            },
        ),
    ],
)
def test_files(part: FilePart, block: dict[str, Any]) -> None:
    messages = [Message(role="user", parts=(part, TextPart(text="What is it?")))]
    said, last = asked(encode("m", messages, files={BLOB.hash: PNG}))["messages"][0]["content"]
    assert said == block
    assert last["text"] == "What is it?"


@pytest.mark.parametrize(
    "part",
    [
        file("image/bmp", data=B64),
        file("image/png", url="http://x.test/a.png"),
        file("image/png", data=""),
        file("audio/wav", data=B64),
        file("text/plain", url="https://x.test/a.txt"),
        file("text/plain", data=base64.b64encode(b"\xff").decode()),
        file("text/plain", data=""),
    ],
)
def test_files_that_it_cannot_take_become_text(part: FilePart) -> None:
    (block,) = asked(encode("m", [Message(role="user", parts=(part,))]))["messages"][0]["content"]
    assert part.media_type in block["text"]


def test_a_tool_result_holds_files_but_an_error_tells_of_them() -> None:
    given = (file("image/png", blob=BLOB), file("application/zip", data=B64, name="x.zip"))
    call = Message.assistant("", ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    good = ToolResultPart(call_id="c1", name="add", content="see", files=given)
    bad = ToolResultPart(call_id="c2", name="add", content="", files=given, is_error=True)
    messages = [Message.user("hi"), call, Message(role="tool", parts=(good, bad))]
    request = asked(encode("m", messages, files={BLOB.hash: PNG}))
    first, second = request["messages"][2]["content"]
    assert [block["type"] for block in first["content"]] == ["text", "image", "text"]
    assert "x.zip" in second["content"]
    assert "image/png" in second["content"]


def test_results_stand_before_what_a_user_has_said_meanwhile() -> None:
    """The API refuses a turn whose results come behind a text."""
    question, call, result = CALLED
    said = asked(encode("claude-sonnet-4-5", [question, call, Message.user("Hurry."), result]))["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert [block["type"] for block in said[-1]["content"]] == ["tool_result", "text"]


def test_results_that_say_nothing() -> None:
    call = Message.assistant("", ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    results = (
        ToolResultPart(call_id="c1", name="add", content=" "),
        ToolResultPart(call_id="c2", name="add", content="", is_error=True),
    )
    request = asked(encode("m", [Message.user("hi"), call, Message(role="tool", parts=results)]))
    assert ["content" in block for block in request["messages"][2]["content"]] == [False, True]


def test_a_file_of_the_assistants_is_told_of() -> None:
    messages = [Message.user("hi"), Message(role="assistant", parts=(file("image/png", data=B64),)), Message.user("?")]
    (block,) = asked(encode("m", messages))["messages"][1]["content"]
    assert block["type"] == "text"


def test_bytes_of_files_are_not_kept_on_the_message() -> None:
    message = Message(role="user", parts=(file("image/png", data=B64),))
    encode("m", [message])
    assert message.wire("anthropic:anthropic") is None


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        ({"seed": 1}, {}, "seed"),
        ({"metadata": {"team": "x"}}, {}, "team"),
        ({}, {"messages": []}, "messages"),
        ({}, {"max_tokens": 3}, "max_tokens"),
        ({"temperature": 1}, {"temperature": 0}, "temperature"),
        ({"stop": "x"}, {"stop_sequences": ["y"]}, "stop_sequences"),
        ({"reasoning_effort": "low"}, {"thinking": {"type": "disabled"}}, "reasoning_effort"),
        ({"reasoning_effort": "low"}, {"output_config": {}}, "output_config"),
        ({}, {"tools": {"name": "web_search"}}, "tools"),
        ({}, {"x": object()}, "JSON"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], options: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Anthropic.check_settings(settings, options)


def test_settings_that_fit() -> None:
    Anthropic.check_settings(
        {"temperature": 1, "top_p": 0.5, "top_k": 5, "max_tokens": 5, "stop": ["x"], "metadata": {"user_id": "u"}},
        {"thinking": {"type": "adaptive"}, "tools": [{"type": "web_search_20260318", "name": "web_search"}]},
    )
    Anthropic.check_settings({"reasoning_effort": "high", "seed": None}, {"service_tier": "auto"})
    assert asked(encode("claude-sonnet-4-6", settings={"temperature": 0.5, "top_k": 3}))["top_k"] == 3


# ---
# One call, as servers that speak the format send it.

USE: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "pay", "input": {}}
STOP: dict[str, Any] = {"type": "content_block_stop", "index": 0}
END: list[dict[str, Any]] = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
    {"type": "message_stop"},
]


def start(**changes: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": USE | changes}


def json_delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}


PAY = '{"amount": 5}'
ONE_CALL: dict[str, list[dict[str, Any]]] = {
    "as Anthropic sends it": [start(), json_delta('{"amount"'), json_delta(": 5}"), STOP, *END],
    "the input as text": [start(input=PAY), STOP, *END],
    "the input whole, and again": [start(input={"amount": 5}), json_delta(PAY), STOP, *END],
    "a block begun twice": [start(), start(), json_delta(PAY), STOP, *END],
    "a block begun twice, then with its input": [start(), start(input={"amount": 5}), STOP, *END],
    "an empty block, and then the call": [start(), STOP, start(), json_delta(PAY), STOP, *END],
    "the call, and then an empty block": [start(), json_delta(PAY), STOP, start(), STOP, *END],
    "no index": [
        *({k: v for k, v in event.items() if k != "index"} for event in (start(), json_delta(PAY), STOP)),
        *END,
    ],
    "no stop of the block": [start(), json_delta(PAY), *END],
    "no stop of the message": [start(), json_delta(PAY), STOP, END[0]],
}


@pytest.mark.parametrize("form", ONE_CALL)
def test_one_call_is_one(form: str) -> None:
    reply = AnthropicReply("api.test", HERE)
    for event in ONE_CALL[form]:
        [*reply.feed(event)]
    [call] = reply.complete().parts
    assert isinstance(call, ToolCallPart)
    assert (call.id, call.name, call.arguments, call.malformed) == ("t1", "pay", {"amount": 5}, None)


def test_two_calls_under_one_index_are_two() -> None:
    reply = AnthropicReply("api.test", HERE)
    for event in (start(), STOP, start(id="t2"), json_delta(PAY), STOP, *END):
        [*reply.feed(event)]
    calls = reply.complete().parts
    assert [(call.id, call.arguments) for call in calls if isinstance(call, ToolCallPart)] == [
        ("t1", {}),
        ("t2", {"amount": 5}),
    ]


def test_a_reply_without_a_stop_reason_was_cut() -> None:
    reply = AnthropicReply("api.test", HERE)
    for event in (start(), json_delta(PAY), STOP):
        [*reply.feed(event)]
    with pytest.raises(TruncatedStreamError):
        reply.complete()
