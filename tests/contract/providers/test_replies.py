"""What a reply comes to, whichever format it came in."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    MalformedReplyError,
    OverloadedError,
    ProviderConnectionError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.providers.finish_reasons import ENDINGS
from perdure.types.messages import TextPart, ThinkingPart, ToolCallPart, Usage
from tests.servers.anthropic import error_body, sign
from tests.servers.google import chunk
from tests.servers.google import error_body as google_error
from tests.servers.model_server import Call, Reply
from tests.servers.responses import message, reasoning
from tests.servers.wire import error
from tests.support.adapters import FORMATS, Api

formats = pytest.mark.parametrize("adapter", FORMATS)


def texts(completed: Completed) -> list[str]:
    return [part.text for part in completed.parts if isinstance(part, TextPart)]


def calls(completed: Completed) -> list[ToolCallPart]:
    return [part for part in completed.parts if isinstance(part, ToolCallPart)]


async def test_text_and_thinking_stream_and_complete(api: Api) -> None:
    *deltas, completed = await api.ask(Reply("Hello wörld.", thinking="let me see"))
    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["Hello ", "wörld."]
    assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == "let me see"
    assert isinstance(completed, Completed)
    assert [(part.type, getattr(part, "text", None)) for part in completed.parts] == [
        ("thinking", "let me see"),
        ("text", "Hello wörld."),
    ]
    thought = completed.parts[0]
    assert isinstance(thought, ThinkingPart)
    assert thought.provider == api.adapter.origin
    match api.adapter.name:
        case "openai":
            assert thought.opaque == {"field": "reasoning_content"}
        case "openai-responses":
            assert thought.opaque is not None
            assert (thought.opaque["model"], thought.opaque["item"]["type"]) == ("gpt-test", "reasoning")
            assert thought.opaque["item"]["encrypted_content"].startswith("gAAAA")
        case "anthropic":
            assert thought.opaque == {"signature": sign("let me see"), "model": "claude"}
        case "google":
            assert thought.opaque is None
    assert (completed.finish_reason, completed.model) == ("stop", api.adapter.model)


async def test_parallel_calls_stream_and_complete(api: Api) -> None:
    asked = [Call("add", {"a": 1}, id="c1"), Call("note", {"text": "é" * 40}, id="c2")]
    *deltas, completed = await api.ask(Reply("both", asked))
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    assert texts(completed) == ["both"]
    assert [part.type for part in completed.parts] == ["text", "tool_call", "tool_call"]
    assert [(call.id, call.name, call.arguments) for call in calls(completed)] == [
        ("c1", "add", {"a": 1}),
        ("c2", "note", {"text": "é" * 40}),
    ]
    told = [d for d in deltas if isinstance(d, ToolCallDelta)]
    assert {(d.index, d.id, d.name) for d in told} == {(0, "c1", "add"), (1, "c2", "note")}
    assert json.loads("".join(d.arguments for d in told if d.index == 1)) == {"text": "é" * 40}


@pytest.mark.parametrize("adapter", FORMATS[:3])  # the arguments of Google are an object, never text
async def test_malformed_arguments_are_kept_as_they_came(api: Api) -> None:
    for raw in ("{broken", "[1]", '"text"', '{"a": NaN}'):
        completed = await api.reply(Reply(calls=[Call("add", raw, id="c1")]))
        [call] = calls(completed)
        assert (call.id, call.name, call.arguments, call.malformed) == ("c1", "add", {}, raw)


ENDS: dict[str, dict[str, str]] = {
    "openai": {"stop": "stop", "length": "length", "content_filter": "content_filter"},
    "openai-responses": {
        "": "stop",
        "max_output_tokens": "length",
        "content_filter": "content_filter",
    },
    "anthropic": {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "refusal": "refusal",
        "model_context_window_exceeded": "length",
    },
    "google": {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "CONTINUATION": "length",
        "SAFETY": "content_filter",
        "RECITATION": "content_filter",
        "SPII": "content_filter",
    },
    "pydantic-ai": {"stop": "stop", "length": "length", "content_filter": "content_filter"},
}


async def test_why_a_reply_ends(api: Api) -> None:
    for reason, expected in ENDS[api.adapter.name].items():
        completed = await api.reply(Reply("x", finish_reason=reason))
        assert (reason, completed.finish_reason, texts(completed)) == (reason, expected, ["x"])


@formats
@pytest.mark.parametrize("asked", [[], [Call("add", {"a": 1}, id="c1")]])
async def test_a_reply_with_an_unknown_reason_broke(api: Api, asked: list[Call]) -> None:
    for reason in ("error", "network_error", "something_new"):
        with pytest.raises(ProviderServerError, match=rf"broke off the reply \({reason}\)"):
            await api.ask(Reply("The capital of Fra", asked, finish_reason=reason))


async def test_every_reason_of_the_sdks_has_an_outcome() -> None:
    from anthropic.types import StopReason
    from anthropic.types.beta import BetaStopReason
    from openai.types.chat.chat_completion import Choice
    from openai.types.responses.response import IncompleteDetails
    from openai.types.responses.response_status import ResponseStatus
    from pydantic_ai.messages import FinishReason

    fields = (Choice.model_fields["finish_reason"], IncompleteDetails.model_fields["reason"])
    literals = [get_args(StopReason), get_args(BetaStopReason), get_args(ResponseStatus), get_args(FinishReason)]
    literals += [
        get_args(each) or (each,) for field in fields for each in (field.annotation, *get_args(field.annotation))
    ]
    words = {word for literal in literals for word in literal if isinstance(word, str)}
    assert {"stop", "end_turn", "completed", "tool_call", "max_messages"} <= words <= ENDINGS.keys()


@pytest.mark.parametrize("adapter", FORMATS[:3])  # a call of Google comes whole or not at all
@pytest.mark.parametrize("ends", ["length", "filtered"])
async def test_a_half_call_is_marked_if_the_output_limit_cut_it_and_else_left_out(api: Api, ends: str) -> None:
    for half in ('{"a": 1, "b": [', ""):
        asked = [Call("add", {"a": 1}, id="whole"), Call("add", half, id="half")]
        completed = await api.reply(Reply("so", asked, ends=ends))
        marked = [("half", half)] if ends == "length" else []
        assert [(call.id, call.malformed) for call in calls(completed)] == [("whole", None), *marked]
        assert texts(completed) == ["so"]


REFUSALS: dict[str, tuple[Any, str]] = {
    "openai": (
        Reply(
            chunks=[
                {"choices": [{"delta": {"refusal": "No. "}}]},
                {"choices": [{"delta": {"refusal": "Never."}, "finish_reason": "stop"}]},
            ]
        ),
        "refusal",
    ),
    "openai-responses": (Reply(refusal="No. Never."), "refusal"),
    "anthropic": (Reply("No. Never.", ends="filtered"), "refusal"),
    "google": (Reply("No. Never.", ends="filtered"), "content_filter"),
}


@formats
async def test_a_refusal_is_text_and_says_so(api: Api) -> None:
    reply, reason = REFUSALS[api.adapter.name]
    *deltas, completed = await api.ask(reply)
    assert isinstance(completed, Completed)
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "No. Never."
    assert (completed.finish_reason, texts(completed)) == (reason, ["No. Never."])


USAGES: dict[str, dict[str, Any]] = {
    "openai": {
        "prompt_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 26},
        "completion_tokens": 20,
        "completion_tokens_details": {"reasoning_tokens": 12},
    },
    "openai-responses": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 26},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 12},
        "total_tokens": 120,
    },
    "anthropic": {
        "input_tokens": 10,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 26,
        "output_tokens": 20,
        "output_tokens_details": {"thinking_tokens": 12},
    },
    "google": {
        "promptTokenCount": 95,
        "toolUsePromptTokenCount": 5,
        "cachedContentTokenCount": 64,
        "candidatesTokenCount": 8,
        "thoughtsTokenCount": 12,
        "totalTokenCount": 120,
    },
}


@formats
async def test_usage(api: Api) -> None:
    used = (await api.reply(Reply("x", usage=USAGES[api.adapter.name]))).usage
    wrote = 0 if api.adapter.name == "google" else 26
    assert used == Usage(
        input_tokens=100, output_tokens=20, cached_tokens=64, cache_write_tokens=wrote, reasoning_tokens=12
    )


def claude(*deltas: Any, kind: str = "text_delta") -> list[Any]:
    """A message of text, as Anthropic streams it."""
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":%b}\n\n'
    return [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(head % json.dumps({"type": kind, "text": text}).encode() for text in deltas),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ]


BROKEN = ("a\ud83d", "\ude00b", "\udc00", "\ud800.")
SURROGATES: dict[str, list[Any]] = {
    "openai": [
        *({"choices": [{"delta": {"content": text}}]} for text in BROKEN),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ],
    "openai-responses": [
        *({"type": "response.output_text.delta", "delta": text} for text in BROKEN),
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": [message("a😀b\udc00\ud800.")]},
        },
    ],
    "anthropic": claude(*BROKEN),
    "google": [*(chunk({"text": text}) for text in BROKEN), chunk({"text": ""}, finish="STOP")],
}


@formats
async def test_an_emoji_cut_in_two_arrives_whole_and_half_ones_are_replaced(api: Api) -> None:
    *deltas, completed = await api.ask(Reply(chunks=SURROGATES[api.adapter.name]))
    assert isinstance(completed, Completed)
    assert texts(completed) == ["a😀b\ufffd\ufffd."]
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "a😀b\ufffd\ufffd."
    for delta in deltas:
        assert isinstance(delta, TextDelta)
        delta.text.encode()


WHOLE: dict[str, list[Any]] = {
    "openai": [
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3},
            "model": "m1",
        }
    ],
    "openai-responses": [
        {
            "object": "response",
            "status": "completed",
            "model": "m1",
            "output": [message("whole")],
            "usage": {"input_tokens": 3},
        }
    ],
    "anthropic": [
        {
            "type": "message",
            "model": "m1",
            "content": [{"type": "text", "text": "whole"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 0},
        }
    ],
    "google": [
        chunk({"text": "whole"}, finish="STOP", modelVersion="m1", usageMetadata={"promptTokenCount": 3}),
        [chunk({"text": "whole"}, finish="STOP", modelVersion="m1", usageMetadata={"promptTokenCount": 3})],
    ],
}


@formats
async def test_an_answer_that_is_no_stream_is_taken_whole(api: Api) -> None:
    for body in WHOLE[api.adapter.name]:
        for indent in (None, 2) if isinstance(body, dict) else (None,):
            *deltas, completed = await api.ask(Reply(body=json.dumps(body, indent=indent).encode()))
            assert deltas == ([] if api.adapter.name == "openai-responses" else [TextDelta("whole")])
            assert isinstance(completed, Completed)
            assert (texts(completed), completed.finish_reason, completed.model) == (["whole"], "stop", "m1")
            assert completed.usage == Usage(input_tokens=3)


@pytest.mark.parametrize("cut", [5, 300])
async def test_a_connection_that_is_cut_is_a_truncated_stream(api: Api, cut: int) -> None:
    expected = TruncatedStreamError if api.adapter.name in FORMATS or cut > 5 else ProviderConnectionError
    with pytest.raises(expected):
        await api.ask(Reply("one two three four five", cut_after=cut))


async def test_a_stream_without_its_end_is_a_truncated_stream(api: Api) -> None:
    """As a proxy ends it that lost its own connection."""
    reply = Reply("so far", done=False)
    if api.adapter.server.format.name == "openai":
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        delta = {"role": "assistant", "content": "so far"}
        reply.chunks = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}]
    with pytest.raises(TruncatedStreamError):
        await api.ask(reply)
    if api.adapter.name == "openai":
        with pytest.raises(TruncatedStreamError):
            await api.ask(Reply(chunks=reply.chunks))


GARBAGE: dict[str, list[Any]] = {
    "openai": [b"data: [1]\n\n", b"data: \xff\xfe\n\n", {"choices": [{"delta": "text"}]}],
    "openai-responses": [
        *(b"data: [1]\n\n", {"type": "response.completed"}),
        {"type": "response.completed", "response": {"status": "completed", "output": ["text"]}},
    ],
    "anthropic": [
        b'event: x\ndata: "no object"\n\n',
        b"event: message_start\ndata: {broken\n\n",
        {"type": "content_block_start", "index": 0, "content_block": "none"},
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}},
    ],
    "google": [
        *(b"data: \xff\xfe\n\n", b"data: 7\n\n", {"candidates": [{"content": "text"}]}),
        chunk({"functionCall": {"args": {}}}),
    ],
}


@formats
async def test_garbage_in_the_stream_is_malformed(api: Api) -> None:
    for garbage in [b"data: {broken\n\n", *GARBAGE[api.adapter.name]]:
        with pytest.raises(MalformedReplyError):
            await api.ask(Reply(chunks=[garbage]))


@formats
async def test_a_web_page_is_malformed_and_names_base_url(api: Api) -> None:
    with pytest.raises(MalformedReplyError, match="base_url") as caught:
        await api.ask(Reply(body=b"<html>", headers={"content-type": "text/html; charset=utf-8"}))
    assert "web page" in str(caught.value)


def failed(code: str, said: str = "it broke") -> dict[str, Any]:
    return {"code": code, "message": said}


POLICY = "Your prompt was flagged as potentially violating our usage policy."
IN_STREAM: dict[str, list[tuple[Any, type[Exception]]]] = {
    "openai": [
        ([{"choices": [{"delta": {"content": "one"}}]}, {"error": failed("rate_limit_exceeded")}], RateLimitError)
    ],
    "openai-responses": [
        *(
            (failed(code, said), expected)
            for code, said, expected in (
                ("server_error", "it broke", ProviderServerError),
                ("rate_limit_exceeded", "it broke", RateLimitError),
                ("vector_store_timeout", "it broke", ProviderServerError),
                ("invalid_prompt", f"{POLICY} it broke", ContentFilterError),
                ("bio_policy", "it broke", ContentFilterError),
                ("image_too_large", "it broke", BadRequestError),
                ("unsupported_image_media_type", "it broke", BadRequestError),
                ("context_length_exceeded", "it broke", ContextLengthError),
            )
        )
    ],
    "anthropic": [
        ([{"type": "message_start", "message": {}}, error_body("it broke", kind)], expected)
        for kind, expected in (
            ("overloaded_error", OverloadedError),
            ("api_error", ProviderServerError),
            ("rate_limit_error", RateLimitError),
            ("timeout_error", ProviderTimeoutError),
            ("invalid_request_error", BadRequestError),
        )
    ],
    "google": [([chunk({"text": "one"}), google_error(503, "it broke", "UNAVAILABLE")], OverloadedError)],
}


@formats
async def test_an_error_in_the_stream_is_classified(api: Api) -> None:
    for said, expected in IN_STREAM[api.adapter.name]:
        if isinstance(said, dict):
            event = {"type": "error", "param": None, "sequence_number": 3, **said}
            replies = [
                *(Reply("Half", failed=said), Reply(chunks=[event])),
                Reply(chunks=[{"type": "error", "error": said}]),
            ]
        else:
            replies = [Reply(chunks=said)]
        for reply in replies:
            with pytest.raises(expected, match="it broke") as caught:
                await api.ask(reply)
            assert type(caught.value) is expected


REFUSED_KEY: dict[str, dict[str, Any]] = {
    "openai": {"error": failed("invalid_api_key")},
    "openai-responses": {"type": "error", "error": failed("invalid_api_key")},
    "anthropic": error_body("it broke", "authentication_error"),
    "google": google_error(401, "it broke", "UNAUTHENTICATED"),
}


@formats
async def test_a_refused_key_in_the_stream_says_where_the_key_is_from(api: Api) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await api.ask(Reply(chunks=[REFUSED_KEY[api.adapter.name]]))
    assert "Check api_key and base_url" in str(caught.value.hint)


async def test_an_empty_reply_is_a_reply(api: Api) -> None:
    completed = await api.reply(Reply(""))
    assert completed.finish_reason == "stop"
    assert "".join(texts(completed)) == ""


@formats
async def test_a_reply_that_only_thinks_is_a_reply(api: Api) -> None:
    thinks = Reply(thinking="hm", content=[reasoning("hm")] if api.adapter.name == "openai-responses" else None)
    completed = await api.reply(thinks)
    assert [part.text for part in completed.parts if isinstance(part, ThinkingPart)] == ["hm"]


# ---
# The headers of responses.


@formats
async def test_headers_that_tell_of_the_request_and_of_limits_are_kept(api: Api) -> None:
    told = {"x-request-id": "req_1", "x-ratelimit-remaining-tokens": "7000", "anthropic-ratelimit-requests-limit": "50"}
    others = {"set-cookie": "session=secret", "server": "x", "x-api-key": "secret"}
    completed = await api.reply(Reply("Hello.", headers={"X-Ratelimit-Reset": "1" * 5_000, **told, **others}))
    assert completed.request_id == "req_1"
    assert completed.headers == {"x-ratelimit-reset": "1" * 200, **told}
    flooded = {f"x-ratelimit-{index}": "1" for index in range(90)}
    assert len((await api.reply(Reply("Hello.", headers=flooded))).headers) == 64
    assert (await api.reply("Hello.")).request_id is None


@formats
async def test_an_error_names_the_request(api: Api) -> None:
    with pytest.raises(BadRequestError, match=r"\(request req_2\)$"):
        await api.ask(error(400, "no", request_id="req_2"))
