"""Replies of the Responses API: what is streamed, what they come to, and how they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    MalformedReplyError,
    ModelNotFoundError,
    OverloadedError,
    PerdureError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from perdure.ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.providers.openai_responses import OpenAIResponses
from perdure.types.messages import Message, OpaquePart, TextPart, ThinkingPart, ToolCallPart, Usage
from tests.servers.model_server import Call, Reply, ResponsesServer, error
from tests.servers.responses import function_call, message, reasoning
from tests.unit.providers.conftest import KEY

ORIGIN = "openai-responses@127.0.0.1"
HI = ModelRequest("gpt-test", [Message.user("hi")])
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}

Ask = Callable[[Any], Awaitable[list[StreamEvent]]]


@pytest.fixture
async def server() -> AsyncIterator[ResponsesServer]:
    async with ResponsesServer() as running:
        yield running


@pytest.fixture
async def provider(server: ResponsesServer) -> AsyncIterator[OpenAIResponses]:
    made = OpenAIResponses(base_url=server.base_url, api_key=KEY)
    yield made
    await made.aclose()


@pytest.fixture
def ask(server: ResponsesServer, provider: OpenAIResponses) -> Ask:
    async def run(reply: Any) -> list[StreamEvent]:
        server.rule = lambda _: reply
        return [event async for event in provider.stream(HI)]

    return run


def whole(events: list[StreamEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


async def test_text_streams_and_completes(ask: Ask) -> None:
    events = await ask(Reply("Hello wörld.", phase="final_answer"))
    assert [d.text for d in events if isinstance(d, TextDelta)] == ["Hello ", "wörld."]
    completed = whole(events)
    (part,) = completed.parts
    assert isinstance(part, TextPart)
    assert (part.text, part.provider) == ("Hello wörld.", ORIGIN)
    assert part.opaque is not None
    assert part.opaque.pop("id").startswith("msg_")
    assert part.opaque == {"model": "gpt-test", "status": "completed", "phase": "final_answer"}
    assert (completed.finish_reason, completed.model) == ("stop", "gpt-test")


async def test_reasoning_is_kept_whole_and_its_summary_is_shown(ask: Ask) -> None:
    events = await ask(Reply("42", thinking=["First this.", "Then that."]))
    assert "".join(d.text for d in events if isinstance(d, ThinkingDelta)) == "First this.\n\nThen that."
    thought, text = whole(events).parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.text, thought.provider) == ("First this.\n\nThen that.", ORIGIN)
    assert thought.opaque is not None
    assert thought.opaque["model"] == "gpt-test"
    assert thought.opaque["item"]["encrypted_content"].startswith("gAAAA")
    assert [part["text"] for part in thought.opaque["item"]["summary"]] == ["First this.", "Then that."]
    assert isinstance(text, TextPart)


async def test_open_reasoning_is_shown_too(ask: Ask) -> None:
    events = await ask(Reply(content=[reasoning(content=["Let ", "me see."]), message("42")]))
    assert "".join(d.text for d in events if isinstance(d, ThinkingDelta)) == "Let me see."
    assert whole(events).parts[0].text == "Let me see."  # type: ignore[union-attr]  # it is a ThinkingPart


async def test_parallel_calls_stream_and_complete(ask: Ask) -> None:
    calls = [Call("add", {"a": 1}, id="call_1"), Call("note", '{"text": "é\\n"}', id="call_2")]
    events = await ask(Reply("both", calls=calls, reasons=True))
    completed = whole(events)
    assert completed.finish_reason == "tool_calls"
    assert [part.type for part in completed.parts] == ["thinking", "text", "tool_call", "tool_call"]
    first, second = (part for part in completed.parts if isinstance(part, ToolCallPart))
    assert (first.id, first.name, first.arguments) == ("call_1", "add", {"a": 1})
    assert (second.id, second.arguments) == ("call_2", {"text": "é\n"})
    assert first.opaque is not None
    assert second.opaque is not None
    assert "arguments" not in first.opaque
    assert second.opaque["arguments"] == '{"text": "é\\n"}'  # blanks as the model wrote them
    deltas = [d for d in events if isinstance(d, ToolCallDelta)]
    assert {(d.index, d.id, d.name) for d in deltas} == {(0, "call_1", "add"), (1, "call_2", "note")}
    assert "".join(d.arguments for d in deltas if d.index == 1) == '{"text": "é\\n"}'


async def test_arguments_that_come_at_once_are_streamed_once(ask: Ask) -> None:
    item = function_call(Call("add", {"a": 1}, id="call_1"))
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    done = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"a":1}'}
    end = {"type": "response.completed", "response": {"status": "completed", "output": [item]}}
    events = await ask(Reply(chunks=[added, done, end]))
    assert "".join(d.arguments for d in events if isinstance(d, ToolCallDelta)) == '{"a":1}'


@pytest.mark.parametrize("raw", ["{broken", "[1]", '"text"'])
async def test_malformed_arguments_are_told(ask: Ask, raw: str) -> None:
    (part,) = whole(await ask(Call("add", raw))).parts
    assert isinstance(part, ToolCallPart)
    assert (part.arguments, part.malformed) == ({}, raw)


async def test_a_refusal(ask: Ask) -> None:
    events = await ask(Reply(refusal="I will not."))
    assert "".join(d.text for d in events if isinstance(d, TextDelta)) == "I will not."
    completed = whole(events)
    assert completed.finish_reason == "refusal"
    assert completed.parts[0].text == "I will not."  # type: ignore[union-attr]  # it is a TextPart


async def test_items_of_built_in_tools_and_unknown_ones_are_kept(ask: Ask) -> None:
    novel = {"id": "nv_1", "type": "novelty", "data": {"deep": [1, None, "\ud800"]}}
    cited = message("See there.", annotations=[{"type": "url_citation", "url": "https://x", "title": "X"}])
    completed = whole(await ask(Reply(content=[SEARCH, novel, cited])))
    search, unknown, text = completed.parts
    assert search == OpaquePart(provider=ORIGIN, data={"model": "gpt-test", "item": SEARCH})
    assert isinstance(unknown, OpaquePart)
    assert unknown.data["item"]["data"] == {"deep": [1, None, "�"]}
    assert isinstance(text, TextPart)
    assert text.opaque is not None
    assert text.opaque["annotations"][0]["url"] == "https://x"


@pytest.mark.parametrize(
    ("why", "expected"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "other")]
)
async def test_an_incomplete_reply_drops_what_was_not_finished(ask: Ask, why: str, expected: str) -> None:
    calls = [Call("add", {"a": 1}, id="call_1"), Call("add", '{"a": 1', id="call_2")]
    completed = whole(await ask(Reply("Well", calls=calls, finish_reason=why)))
    assert completed.finish_reason == expected
    assert [part.id for part in completed.parts if isinstance(part, ToolCallPart)] == ["call_1"]


async def test_a_search_that_was_broken_off_is_dropped(ask: Ask) -> None:
    completed = whole(await ask(Reply(content=[reasoning("hm"), SEARCH], finish_reason="max_output_tokens")))
    assert [part.type for part in completed.parts] == ["thinking"]


async def test_the_items_count_where_the_end_has_no_output(ask: Ask) -> None:
    completed = whole(await ask(Reply("both", calls=[Call("add")], reasons=True, final_output=False)))
    assert [part.type for part in completed.parts] == ["thinking", "text", "tool_call"]


async def test_usage(ask: Ask) -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 12},
        "total_tokens": 120,
    }
    assert whole(await ask(Reply("x", usage=usage))).usage == Usage(
        input_tokens=100, output_tokens=20, cached_tokens=64, reasoning_tokens=12, cache_write_tokens=30
    )


async def test_lone_surrogates_are_cleaned(ask: Ask) -> None:
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in ("a\ud83d", "\ude00b", "\udc00")]
    item = message("a😀b\udc00")
    end = {"type": "response.completed", "response": {"status": "completed", "output": [item]}}
    events = await ask(Reply(chunks=[*deltas, end]))
    assert "".join(d.text for d in events if isinstance(d, TextDelta)) == "a😀b�"
    assert whole(events).parts[0].text == "a😀b�"  # type: ignore[union-attr]  # it is a TextPart


async def test_an_answer_that_is_no_stream_is_taken_whole(ask: Ask) -> None:
    body = {"object": "response", "status": "completed", "model": "m1", "output": [message("whole")]}
    completed = whole(await ask(Reply(body=body)))
    assert (completed.parts[0].text, completed.model) == ("whole", "m1")  # type: ignore[union-attr]  # it is a TextPart


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        ("server_error", "Something went wrong.", ProviderServerError),
        ("rate_limit_exceeded", "Slow down.", RateLimitError),
        ("vector_store_timeout", "Too slow.", ProviderServerError),
        ("invalid_prompt", "Your prompt was flagged as potentially violating our usage policy.", ContentFilterError),
        ("bio_policy", "No.", ContentFilterError),
        ("image_too_large", "It is.", BadRequestError),
        ("unsupported_image_media_type", "No.", BadRequestError),
        ("context_length_exceeded", "Your input exceeds the context window of this model.", ContextLengthError),
    ],
)
async def test_a_failed_response_is_classified(ask: Ask, code: str, said: str, expected: type[PerdureError]) -> None:
    failed = {"code": code, "message": said}
    stream = Reply(chunks=[{"type": "error", "param": None, "sequence_number": 3, **failed}])
    nested = Reply(chunks=[{"type": "error", "error": failed}])
    for reply in (Reply("Half", failed=failed), stream, nested):
        with pytest.raises(expected, match=said) as caught:
            await ask(reply)
        assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(401, "Incorrect API key provided: " + KEY, code="invalid_api_key"), AuthenticationError),
        (error(400, "The requested model 'x' does not exist.", code="model_not_found"), ModelNotFoundError),
        (error(429, "Slow down.", code="rate_limit_exceeded", retry_after="2"), RateLimitError),
        (error(500, "Oh."), ProviderServerError),
        (error(503, "Later."), OverloadedError),
        (error(529, "Later."), OverloadedError),
    ],
)
async def test_error_answers(ask: Ask, reply: Any, expected: type[PerdureError]) -> None:
    with pytest.raises(expected) as caught:
        await ask(reply)
    assert type(caught.value) is expected
    assert KEY not in str(caught.value)
    if isinstance(caught.value, RateLimitError):
        assert caught.value.retry_after == 2


@pytest.mark.parametrize(
    "reply", [Reply("one two", done=False), Reply("one two three", cut_after=900), Reply(chunks=[])]
)
async def test_a_stream_without_an_end_is_truncated(ask: Ask, reply: Reply) -> None:
    with pytest.raises(TruncatedStreamError):
        await ask(reply)


@pytest.mark.parametrize(
    "event",
    [
        b"data: {broken\n\n",
        b"data: [1]\n\n",
        {"type": "response.completed"},
        {"type": "response.completed", "response": {"status": "completed", "output": ["text"]}},
    ],
)
async def test_garbage_is_malformed(ask: Ask, event: object) -> None:
    with pytest.raises(MalformedReplyError):
        await ask(Reply(chunks=[event]))


async def test_a_connection_that_breaks_behind_the_end_does_not_matter(server: ResponsesServer) -> None:
    end = {"type": "response.completed", "response": {"status": "completed", "output": [message("x")]}}
    provider = OpenAIResponses(base_url=server.base_url, api_key=KEY)
    server.rule = lambda _: Reply(chunks=[end, b": comment\n\n"], hang=server.release, hang_after=1)
    events = [event async for event in provider.stream(HI)]
    assert whole(events).finish_reason == "stop"
    await provider.aclose()


async def test_one_connection_serves_all_calls(ask: Ask, server: ResponsesServer) -> None:
    for _ in range(3):
        await ask("x")
    assert server.connections == 1


async def test_silence_is_a_timeout(server: ResponsesServer) -> None:
    server.rule = lambda _: Reply("never", hang=server.release, hang_after=1)
    provider = OpenAIResponses(base_url=server.base_url, api_key=KEY, timeout=0.05)
    with pytest.raises(ProviderTimeoutError):
        [event async for event in provider.stream(HI)]
    await provider.aclose()


async def test_a_missing_key_names_the_variable() -> None:
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        [event async for event in OpenAIResponses().stream(HI)]
