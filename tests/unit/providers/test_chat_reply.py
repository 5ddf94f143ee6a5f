"""Chunks to events, for what compatible servers send besides what OpenAI does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import (
    ContextLengthError,
    MalformedReplyError,
    PerdureError,
    ProviderServerError,
    RateLimitError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, TextDelta, ThinkingDelta
from perdure.providers.dialects import Dialect
from perdure.providers.openai_chat import ChatReply
from perdure.types.messages import TextPart, ThinkingPart, ToolCallPart, Usage

ORIGIN = "openai@api.test"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def complete(*chunks: Any) -> Completed:
    reply = ChatReply("api.test", ORIGIN)
    for chunk in chunks:
        list(reply.feed(chunk))
    return reply.complete()


CALL = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([delta("stop", content="x")], "stop"),
        ([delta("length", content="x")], "length"),
        ([delta("tool_calls", tool_calls=CALL)], "tool_calls"),
        ([delta("function_call", tool_calls=CALL)], "tool_calls"),
        ([delta("stop", tool_calls=CALL)], "tool_calls"),
        ([delta("length", tool_calls=CALL)], "length"),
        ([delta("content_filter")], "content_filter"),
        ([delta(None, refusal="I can"), delta("stop", refusal="not")], "refusal"),
        ([delta("stop", content="x"), delta(None)], "stop"),
    ],
)
def test_finish_reasons(chunks: list[Any], reason: str) -> None:
    assert complete(*chunks).finish_reason == reason


def test_a_refusal_is_text_that_says_so() -> None:
    completed = complete(delta(None, refusal="I can"), delta("stop", refusal="not"))
    assert completed.parts == (TextPart(text="I cannot", provider=ORIGIN, opaque={"refusal": True}),)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thinking_says_where_it_stood(key: str) -> None:
    reply = ChatReply("api.test", ORIGIN)
    events = [*reply.feed(delta(None, **{key: "hm"})), *reply.feed(delta("stop", content="x"))]
    assert events == [ThinkingDelta("hm"), TextDelta("x")]
    thinking = ThinkingPart(text="hm", provider=ORIGIN, opaque={"field": key})
    assert reply.complete().parts == (thinking, TextPart(text="x"))


def test_thinking_in_blocks_is_kept_whole() -> None:
    def block(**fields: Any) -> dict[str, Any]:
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, "format": "v1", **fields}]}

    encrypted = {"type": "reasoning.encrypted", "index": 1, "data": "xyz"}
    completed = complete(
        delta(None, reasoning="let ", **block(text="let ")),
        delta(None, reasoning="me", **block(text="me", signature=None)),
        delta(None, **block(signature="sig")),
        delta("stop", content="x", reasoning_details=[encrypted]),
    )
    whole = {"type": "reasoning.text", "index": 0, "format": "v1", "text": "let me", "signature": "sig"}
    details = {"reasoning_details": [whole, encrypted]}
    assert completed.parts[0] == ThinkingPart(text="let me", provider=ORIGIN, opaque=details)


def test_thinking_among_the_content() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}, 3]}
    completed = complete(delta(None, content=[thought]), delta("stop", content=[{"type": "text", "text": "x"}]))
    assert completed.parts == (ThinkingPart(text="hm"), TextPart(text="x"))


def test_citations_are_kept() -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "https://x", "title": "a\ud800"}}
    completed = complete(delta(None, content="x", annotations=[cited]), delta("stop"))
    (part,) = completed.parts
    assert isinstance(part, TextPart)
    assert part.provider == ORIGIN
    assert part.opaque == {
        "annotations": [{"type": "url_citation", "url_citation": {"url": "https://x", "title": "a�"}}]
    }


def test_a_signature_stays_with_its_call() -> None:
    extra = {"google": {"thought_signature": "sig"}}
    completed = complete(delta("tool_calls", tool_calls=[CALL[0] | {"extra_content": extra}]))
    part = ToolCallPart(id="a", name="f", provider=ORIGIN, opaque={"extra_content": extra})
    assert completed.parts == (part,)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("arguments", ["", '{"a": "b', "  "])
def test_a_call_that_was_cut_is_marked_and_one_that_was_filtered_left_out(reason: str, arguments: str) -> None:
    second = {"index": 1, "id": "b", "function": {"name": "g", "arguments": arguments}}
    completed = complete(delta(None, content="x", tool_calls=CALL), delta(reason, tool_calls=[second]))
    assert completed.finish_reason == reason
    cut = (ToolCallPart(id="b", name="g", malformed=arguments),) if reason == "length" else ()
    assert completed.parts == (TextPart(text="x"), ToolCallPart(id="a", name="f"), *cut)


@pytest.mark.parametrize("reason", ["error", "network_error", "something_new", "abort"])
def test_a_reply_that_broke_is_none(reason: str) -> None:
    with pytest.raises(ProviderServerError, match=rf"broke off the reply \({reason}\)"):
        complete(delta(None, content="The capital of Fra", tool_calls=CALL), delta(reason))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"error": {"code": 502, "message": "Upstream provider disconnected"}}, ProviderServerError),
        ({"error": {"code": 429, "message": "Slow down"}}, RateLimitError),
        ({"error": "boom"}, ProviderServerError),
        ({"native_finish_reason": "error"}, ProviderServerError),
        ({"native_finish_reason": "MALFORMED_FUNCTION_CALL"}, MalformedReplyError),
    ],
)
def test_an_error_within_a_choice(more: Any, expected: type[PerdureError]) -> None:
    last = delta("stop", content="Fra")
    last["choices"][0] |= more
    with pytest.raises(expected):
        complete(delta(None, content="The capital of "), last)


def test_an_upstreams_own_word_counts_if_it_is_known_and_worse() -> None:
    last = delta("stop", content="x")
    for native, expected in (("end_turn", "stop"), ("anything", "stop"), ("MAX_TOKENS", "length")):
        last["choices"][0]["native_finish_reason"] = native
        assert complete(last).finish_reason == expected


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("arguments", ["{}", '{"a": '])
def test_done_without_a_reason(required: bool, done: bool, arguments: str) -> None:
    reply = ChatReply("api.test", ORIGIN, dialect=Dialect(done_ends_reply=not required))
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}
    list(reply.feed(delta(None, content="Hello", tool_calls=[call])))
    if done:
        reply.mark_done()
    if required or not done or arguments != "{}":
        with pytest.raises(TruncatedStreamError):
            reply.complete()
    else:
        assert reply.complete().parts == (TextPart(text="Hello"), ToolCallPart(id="a", name="f"))


def test_a_call_without_arguments_that_was_not_cut_stays() -> None:
    only = {"index": 0, "id": "b", "function": {"name": "g", "arguments": ""}}
    assert complete(delta("tool_calls", tool_calls=[only])).parts == (ToolCallPart(id="b", name="g"),)


def test_content_as_a_list_of_pieces() -> None:
    pieces = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}, 3]
    assert complete(delta("stop", content=pieces)).parts == (TextPart(text="ab"),)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}, Usage(input_tokens=5, output_tokens=7)),
        ({"prompt_tokens": None, "prompt_tokens_details": None}, Usage()),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, Usage(input_tokens=9, cached_tokens=4)),
        ({"prompt_tokens": "many", "completion_tokens": -1}, Usage()),
        (
            {"completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 6}},
            Usage(output_tokens=7, reasoning_tokens=6),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}},
            Usage(input_tokens=9, cached_tokens=4, cache_write_tokens=3),
        ),
    ],
)
def test_usage(usage: dict[str, Any], expected: Usage) -> None:
    assert complete(delta("stop"), {"choices": [], "usage": usage}).usage == expected


def test_running_usage_counts_once() -> None:
    chunks = [delta("stop", content="x") | {"usage": {"completion_tokens": n}} for n in (1, 2, 3)]
    assert complete(*chunks).usage.output_tokens == 3


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None, "refusal": None}}]},
        {"usage": None, "model": None},
    ],
)
def test_chunks_that_say_nothing(chunk: dict[str, Any]) -> None:
    assert complete(chunk, delta("stop", content="x")).parts == (TextPart(text="x"),)


@pytest.mark.parametrize("chunk", [None, [], "text", 3, {"choices": [{"delta": [1]}]}, delta(tool_calls=["f"])])
def test_chunks_that_are_malformed(chunk: Any) -> None:
    with pytest.raises(MalformedReplyError):
        complete(chunk)


@pytest.mark.parametrize("chunks", [[], [delta(None, content="x")], [{"choices": [], "usage": {"prompt_tokens": 3}}]])
def test_an_end_without_a_reason(chunks: list[Any]) -> None:
    with pytest.raises(TruncatedStreamError):
        complete(*chunks)


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ({"object": "error", "message": "maximum context length is 8 tokens", "code": 400}, ContextLengthError),
        ({"error": "boom"}, ProviderServerError),
        ({"error": {"message": "boom"}}, ProviderServerError),
    ],
)
def test_errors_in_the_stream(chunk: Any, expected: type[PerdureError]) -> None:
    with pytest.raises(expected):
        complete(chunk)


@given(st.text(alphabet=st.characters(exclude_categories=[]) | st.sampled_from("\ud83d\ude00")), st.integers(1, 3))
def test_shown_and_kept_text_agree_and_can_be_encoded(text: str, size: int) -> None:
    reply = ChatReply("api.test", ORIGIN)
    shown = ""
    for at in range(0, len(text), size):
        for event in reply.feed(delta(None, content=text[at : at + size])):
            assert isinstance(event, TextDelta)
            shown += event.text
    list(reply.feed(delta("stop")))
    kept = "".join(part.text for part in reply.complete().parts if isinstance(part, TextPart))
    kept.encode()
    assert kept.startswith(shown)
    assert len(kept) - len(shown) <= 1


# ---
# Calls where other servers have them.


@pytest.mark.parametrize(
    "delta",
    [
        {"function_call": {"name": "pay", "arguments": '{"n": 5}'}},
        {"tool_calls": {"index": 0, "id": "c", "function": {"name": "pay", "arguments": '{"n": 5}'}}},
        {
            "tool_calls": [{"index": 0, "id": "c", "function": {"name": "pay", "arguments": '{"n": 5}'}}],
            "function_call": {"name": "pay", "arguments": '{"n": 5}'},
        },
    ],
    ids=["the former field", "no list", "both fields"],
)
def test_a_call_in_another_place(delta: dict[str, Any]) -> None:
    reply = ChatReply("api.test", "openai", "the key")
    [*reply.feed({"choices": [{"index": 0, "delta": delta}]})]
    [*reply.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]})]
    [call] = reply.complete().parts
    assert isinstance(call, ToolCallPart)
    assert (call.name, call.arguments) == ("pay", {"n": 5})
