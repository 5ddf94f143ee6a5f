"""The provider against a real HTTP server that enforces the API's rules."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator

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
    PermissionDeniedError,
    ProviderConnectionError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from perdure.ports import Completed, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.providers.google import Google
from perdure.types.messages import OpaquePart, TextPart, ThinkingPart, ToolCallPart, Usage
from tests.servers.google import chunk, error_body, reason, retry_info
from tests.servers.model_server import Call, GoogleServer, Reply, error
from tests.unit.providers.google_ask import HI, KEY, ORIGIN, Asking, asking


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def ask() -> AsyncIterator[Asking]:
    async with asking() as made:
        yield made


async def test_text_and_thoughts_stream_and_complete(ask: Asking) -> None:
    *deltas, completed = await ask(Reply(text="Hello wörld.", thinking="let me see"))
    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["Hello ", "wörld."]
    assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == "let me see"
    assert isinstance(completed, Completed)
    assert completed.parts == (ThinkingPart(text="let me see", provider=ORIGIN), TextPart(text="Hello wörld."))
    assert (completed.finish_reason, completed.model) == ("stop", "gemini-3-pro")


async def test_calls_keep_their_signatures(ask: Asking) -> None:
    calls = [Call("add", {"a": 1}, id="c1", signature="c2lnMQ=="), Call("add", {"text": "é"}, id=None)]
    *deltas, completed = await ask(Reply(text="both", calls=calls))
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    assert completed.parts == (
        TextPart(text="both"),
        ToolCallPart(id="c1", name="add", arguments={"a": 1}, provider=ORIGIN, opaque={"thoughtSignature": "c2lnMQ=="}),
        ToolCallPart(id="", name="add", arguments={"text": "é"}),
    )
    assert [d for d in deltas if isinstance(d, ToolCallDelta)] == [
        ToolCallDelta(0, "c1", "add", '{"a": 1}'),
        ToolCallDelta(1, "", "add", '{"text": "é"}'),
    ]


async def test_no_part_with_a_signature_becomes_one_with_another(ask: Asking) -> None:
    chunks = [
        chunk({"text": "think", "thought": True}),
        chunk({"text": "ing", "thought": True, "thoughtSignature": "dA=="}),
        chunk({"text": "a"}, {"text": "b"}),
        chunk({"text": "c", "thoughtSignature": "Yw=="}),
        chunk({"text": "d"}),
        chunk({"text": "", "thoughtSignature": "ZQ=="}, finish="STOP"),
    ]
    completed = await ask.reply(Reply(chunks=chunks))
    assert completed.parts == (
        ThinkingPart(text="think", provider=ORIGIN),
        ThinkingPart(text="ing", provider=ORIGIN, opaque={"thoughtSignature": "dA=="}),
        TextPart(text="ab"),
        TextPart(text="c", provider=ORIGIN, opaque={"thoughtSignature": "Yw=="}),
        TextPart(text="d"),
        OpaquePart(provider=ORIGIN, data={"text": "", "thoughtSignature": "ZQ=="}),
    )


async def test_what_only_google_understands_is_kept_whole(ask: Asking) -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
    ran = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    picture = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thoughtSignature": "cA=="}
    completed = await ask.reply(Reply(chunks=[chunk(code), chunk(ran), chunk(picture, finish="STOP")]))
    assert completed.parts == tuple(OpaquePart(provider=ORIGIN, data=data) for data in (code, ran, picture))


async def test_usage(ask: Asking) -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 64,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 12,
        "toolUsePromptTokenCount": 5,
        "totalTokenCount": 137,
    }
    completed = await ask.reply(Reply(text="x", usage=usage))
    assert completed.usage == Usage(input_tokens=105, output_tokens=32, cached_tokens=64, reasoning_tokens=12)


async def test_a_long_reply_is_continued(ask: Asking) -> None:
    def rule(request: dict[str, object]) -> Reply:
        if "continuationToken" not in request:
            cut = chunk({"text": "one "}, finish="CONTINUATION", usageMetadata={"promptTokenCount": 5})
            cut["candidates"][0]["continuationToken"] = "bmV4dA=="
            return Reply(chunks=[cut])
        return Reply(chunks=[chunk({"text": "two"}, finish="STOP", usageMetadata={"promptTokenCount": 6})])

    completed = await ask.reply(rule)
    assert completed.parts == (TextPart(text="one two"),)
    assert completed.usage.input_tokens == 11
    assert ask.server.requests[1] == {**ask.server.requests[0], "continuationToken": "bmV4dA=="}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("MAX_TOKENS", "length"),
        ("CONTINUATION", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("SPII", "content_filter"),
        ("OTHER", "other"),
        ("SOMETHING_NEW", "other"),
    ],
)
async def test_finish_reasons(ask: Asking, said: str, expected: str) -> None:
    assert (await ask.reply(Reply(text="x", finish_reason=said))).finish_reason == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [("MALFORMED_FUNCTION_CALL", MalformedReplyError), ("MISSING_THOUGHT_SIGNATURE", BadRequestError)],
)
async def test_a_reason_with_which_there_is_no_reply(ask: Asking, said: str, expected: type[PerdureError]) -> None:
    last = chunk(finish=said)
    last["candidates"][0]["finishMessage"] = "Malformed function call: print(add("
    with pytest.raises(expected, match=r"print\(add\("):
        await ask(Reply(chunks=[last]))


async def test_every_finish_reason_of_the_sdk_has_an_outcome() -> None:
    from google.genai.types import FinishReason

    from perdure.providers.google_reply import _FAILURES, _REASONS

    others = {"FINISH_REASON_UNSPECIFIED", "OTHER", "IMAGE_OTHER", "NO_IMAGE", "TOO_MANY_TOOL_CALLS"}
    assert {reason.value for reason in FinishReason} == others | _FAILURES.keys() | _REASONS.keys()


async def test_a_refused_conversation_is_an_error(ask: Asking) -> None:
    with pytest.raises(ContentFilterError, match="PROHIBITED_CONTENT"):
        await ask(Reply(chunks=[{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}]))


async def test_malformed_calls_of_a_cut_reply_are_dropped(ask: Asking) -> None:
    bad = {"functionCall": {"name": "add", "args": "{a"}}
    assert (await ask.reply(Reply(chunks=[chunk(bad, finish="MAX_TOKENS")]))).parts == ()
    completed = await ask.reply(Reply(chunks=[chunk(bad, finish="STOP")]))
    assert completed.parts == (ToolCallPart(id="", name="add", malformed='"{a"'),)


async def test_lone_surrogates_are_cleaned(ask: Asking) -> None:
    chunks = [chunk({"text": text}) for text in ("a\ud83d", "\ude00b", "\udc00")]
    chunks += [chunk({"functionCall": {"name": "add", "args": {"x": "\ud800"}}}, finish="STOP")]
    completed = await ask.reply(Reply(chunks=chunks))
    assert completed.parts == (TextPart(text="a😀b�"), ToolCallPart(id="", name="add", arguments={"x": "�"}))


async def test_the_environment_names_endpoint_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Google()
    with pytest.raises(AuthenticationError, match="GEMINI_API_KEY"):
        [event async for event in provider.stream(HI)]
    async with GoogleServer() as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.base_url)
        for name, key in (("GOOGLE_API_KEY", "one"), ("GEMINI_API_KEY", "two\n"), ("GEMINI_API_KEY", "three")):
            monkeypatch.setenv(name, key)
            assert [event async for event in provider.stream(HI)]
        await provider.aclose()
        assert [headers["x-goog-api-key"] for headers in server.headers] == ["one", "two", "three"]


@pytest.mark.parametrize(("suffix", "version"), [("", "v1beta"), ("/v1", "v1"), ("/v1beta/", "v1beta")])
async def test_the_version_may_stand_in_the_address(suffix: str, version: str) -> None:
    async with GoogleServer() as server:
        provider = Google(base_url=f"{server.base_url}{suffix}", api_key=KEY, headers={"x-mine": "1"})
        assert [event async for event in provider.stream(HI)]
        await provider.aclose()
        assert server.paths == [f"/{version}/models/gemini-3-pro:streamGenerateContent?alt=sse"]
        assert server.headers[0]["x-mine"] == "1"


async def test_one_connection_serves_all_calls(ask: Asking) -> None:
    for _ in range(3):
        await ask()
    assert ask.server.connections == 1
    assert ask.server.stats.completed == 3


def test_an_instance_works_on_several_event_loops() -> None:
    provider = Google(api_key=KEY)

    async def once() -> int:
        async with GoogleServer() as server:
            provider._base_url = server.base_url
            events = [event async for event in provider.stream(HI)]
            await provider.aclose()
            return len(events)

    assert [asyncio.run(once()) for _ in range(2)] == [2, 2]
    gc.collect()
    assert not provider._clients


async def test_whoever_stops_listening_hangs_up(ask: Asking) -> None:
    ask.server.rule = lambda _: Reply(text="one two three", hang=ask.server.release, hang_after=2)
    stream = ask.provider.stream(HI)
    assert await anext(stream) == TextDelta("one ")
    await stream.aclose()  # type: ignore[attr-defined]  # it is an async generator
    await ask("again")
    assert ask.server.stats.aborted == 1


async def test_cancelling_is_not_translated(ask: Asking) -> None:
    task = asyncio.ensure_future(ask(Reply(text="never", hang=ask.server.release)))
    await ask.server.wait_requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("reply", "expected", "status"),
    [
        (error(400, "API key not valid.", "INVALID_ARGUMENT", reason("API_KEY_INVALID")), AuthenticationError, 400),
        (error(403, "No permission.", "PERMISSION_DENIED"), PermissionDeniedError, 403),
        (error(404, "models/x is not found for API version v1beta", "NOT_FOUND"), ModelNotFoundError, 404),
        (
            error(400, "The input token count (9) exceeds the maximum number of tokens allowed (8).", "INVALID"),
            ContextLengthError,
            400,
        ),
        (error(400, f"Bad thing with {KEY}", "INVALID_ARGUMENT"), BadRequestError, 400),
        (error(429, "Resource exhausted.", "RESOURCE_EXHAUSTED"), RateLimitError, 429),
        (error(500, "Internal", "INTERNAL"), ProviderServerError, 500),
        (error(503, "The model is overloaded.", "UNAVAILABLE"), OverloadedError, 503),
        (error(504, "Deadline", "DEADLINE_EXCEEDED"), ProviderTimeoutError, 504),
        (Reply(status=400, body=b"<html>no</html>", headers={"content-type": "text/html"}), BadRequestError, 400),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
async def test_error_answers(ask: Asking, reply: Reply, expected: type[PerdureError], status: int) -> None:
    with pytest.raises(expected) as caught:
        await ask(reply)
    assert type(caught.value) is expected
    assert caught.value.status == status  # type: ignore[attr-defined]  # a ProviderError
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "html" not in str(caught.value)
    assert ask.server.stats.requests == 1, "the SDK tried again"


async def test_a_wrong_key_names_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "wrong")
    async with GoogleServer(api_key=KEY) as server:
        provider = Google(base_url=server.base_url)
        with pytest.raises(AuthenticationError, match="GOOGLE_API_KEY"):
            [event async for event in provider.stream(HI)]
        await provider.aclose()


async def test_how_long_to_wait(ask: Asking) -> None:
    quota = "You exceeded your current quota, please check your plan. Please retry in 39.5s."
    with pytest.raises(RateLimitError) as caught:
        await ask(error(429, quota, "RESOURCE_EXHAUSTED", retry_info("2s")))
    assert caught.value.retry_after == 2
    with pytest.raises(RateLimitError) as caught:
        await ask(error(429, "Slow down.", "RESOURCE_EXHAUSTED", retry_after="3"))
    assert caught.value.retry_after == 3


@pytest.mark.parametrize("cut", [5, 300])
async def test_a_cut_connection_is_a_truncated_stream(ask: Asking, cut: int) -> None:
    with pytest.raises(TruncatedStreamError):
        await ask(Reply(text="one two three four five", cut_after=cut))


async def test_no_finish_reason_is_a_truncated_stream(ask: Asking) -> None:
    with pytest.raises(TruncatedStreamError):
        await ask(Reply(text="one", done=False))


@pytest.mark.parametrize(
    "piece",
    [
        b"data: {broken\n\n",
        b"data: \xff\xfe\n\n",
        b"data: 7\n\n",
        {"candidates": [{"content": "text"}]},
        chunk({"functionCall": {"args": {}}}),
    ],
)
async def test_garbage_in_the_stream_is_malformed(ask: Asking, piece: object) -> None:
    with pytest.raises(MalformedReplyError):
        await ask(Reply(chunks=[piece]))


async def test_a_web_page_is_malformed_and_names_base_url(ask: Asking) -> None:
    with pytest.raises(MalformedReplyError, match="base_url"):
        await ask(Reply(body=b"<html>", headers={"content-type": "text/html; charset=utf-8"}))


WHOLE = chunk({"text": "whole"}, finish="STOP", modelVersion="m1")


@pytest.mark.parametrize("body", [json.dumps(WHOLE, indent=2), json.dumps(WHOLE), json.dumps([WHOLE])])
async def test_an_answer_that_is_no_event_stream_is_taken_whole(ask: Asking, body: str) -> None:
    assert await ask(Reply(body=body.encode())) == [
        TextDelta("whole"),
        Completed((TextPart(text="whole"),), "stop", Usage(), "m1"),
    ]


async def test_an_error_in_the_stream_is_classified(ask: Asking) -> None:
    with pytest.raises(OverloadedError, match="overloaded"):
        await ask(Reply(chunks=[chunk({"text": "one"}), error_body(503, "It is overloaded", "UNAVAILABLE")]))


@pytest.mark.parametrize("after", [-1, 1])
async def test_silence_is_a_timeout(after: int) -> None:
    async with asking(timeout=0.05) as ask:
        with pytest.raises(ProviderTimeoutError):
            await ask(Reply(text="never", hang=ask.server.release, hang_after=after))


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:1", "http://[::1]:1/v1beta"])
async def test_nobody_listens(base_url: str) -> None:
    provider = Google(base_url=base_url, api_key=KEY)
    with pytest.raises(ProviderConnectionError, match="base_url"):
        [event async for event in provider.stream(HI)]
    await provider.aclose()


@pytest.mark.parametrize(("base_url", "key"), [("127.0.0.1", KEY), ("ftp://x", KEY), ("http://127.0.0.1:1", "AI\nza")])
async def test_a_request_that_cannot_be_sent_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, base_url: str, key: str
) -> None:
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", base_url)
    provider = Google(api_key=key)
    with pytest.raises(PerdureError) as caught:
        [event async for event in provider.stream(HI)]
    assert not caught.value.retryable
    await provider.aclose()


async def test_without_aiohttp_the_sdk_uses_its_own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.genai import _api_client

    monkeypatch.setattr(_api_client, "has_aiohttp", False)
    async with asking() as ask:
        assert (await ask.reply("one two")).parts == (TextPart(text="one two"),)
        with pytest.raises(OverloadedError):
            await ask(error(503, "The model is overloaded.", "UNAVAILABLE"))
        with pytest.raises(TruncatedStreamError):
            await ask(Reply(text="one two three four five", cut_after=300))
        ask.server.rule = lambda _: Reply(text="one two three", hang=ask.server.release, hang_after=2)
        stream = ask.provider.stream(HI)
        assert await anext(stream) == TextDelta("one ")
        await stream.aclose()  # type: ignore[attr-defined]  # it is an async generator
        await ask("again")
        assert ask.server.stats.aborted == 2
