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
    TruncatedStreamError,
)
from perdure.ports import Completed, TextDelta, ThinkingDelta
from perdure.providers.chat_reply import ChatReply
from perdure.types.messages import TextPart, ThinkingPart, Usage


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def complete(*chunks: Any) -> Completed:
    reply = ChatReply("api.test")
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
        ([delta("something_new", content="x")], "other"),
        ([delta("stop", content="x"), delta(None)], "stop"),
    ],
)
def test_finish_reasons(chunks: list[Any], reason: str) -> None:
    assert complete(*chunks).finish_reason == reason


def test_a_refusal_is_text() -> None:
    assert complete(delta(None, refusal="I can"), delta("stop", refusal="not")).parts == (TextPart(text="I cannot"),)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thinking(key: str) -> None:
    reply = ChatReply("api.test")
    events = [*reply.feed(delta(None, **{key: "hm"})), *reply.feed(delta("stop", content="x"))]
    assert events == [ThinkingDelta("hm"), TextDelta("x")]
    assert reply.complete().parts == (ThinkingPart(text="hm"), TextPart(text="x"))


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
    reply = ChatReply("api.test")
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
