"""Models of pydantic-ai as a provider: against the strict servers through the vendors' SDKs, and its own fakes."""

from __future__ import annotations

import base64
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from pydantic_ai import exceptions
from pydantic_ai import messages as theirs
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from perdure import Agent, errors, register_provider
from perdure.ports.model import (
    Completed,
    ModelRequest,
    Restarted,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolSpec,
)
from perdure.providers import registry
from perdure.providers.pydantic_ai import PydanticAIModel
from perdure.providers.pydantic_ai_conversion import is_cut_short, translate_error
from perdure.types.messages import (
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from tests.servers.model_server import AnthropicServer, Call, OpenAIServer, Reply, ResponsesServer

TestModel.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it

ADD = ToolSpec(
    "add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
REQUEST = ModelRequest("some-model", [Message.user("Add.")], system="Be exact.", tools=[ADD])

Made = Callable[[Any], Model]


async def ask(provider: PydanticAIModel, request: ModelRequest = REQUEST) -> list[StreamEvent]:
    return [event async for event in provider.stream(request)]


async def reply(provider: PydanticAIModel, request: ModelRequest = REQUEST) -> Completed:
    last = (await ask(provider, request))[-1]
    assert isinstance(last, Completed)
    return last


def chat(server: Any) -> Model:
    return OpenAIChatModel("some-model", provider=OpenAIProvider(base_url=server.base_url, api_key="test"))


def responses(server: Any) -> Model:
    return OpenAIResponsesModel("some-model", provider=OpenAIProvider(base_url=server.base_url, api_key="test"))


def anthropic(server: Any) -> Model:
    return AnthropicModel("some-model", provider=AnthropicProvider(base_url=server.base_url, api_key="test"))


@asynccontextmanager
async def served(server: Any, made: Made) -> AsyncIterator[tuple[Any, PydanticAIModel]]:
    """The server, and a provider whose connections are given back."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(server)
        provider = PydanticAIModel(made(running))
        stack.push_async_callback(provider.aclose)
        yield running, provider


def answered(request: ModelRequest, completed: Completed, results: list[ToolResultPart]) -> ModelRequest:
    """The next request: the reply, and what its calls came to."""
    said = [Message(role="assistant", parts=completed.parts), *(Message(role="tool", parts=(one,)) for one in results)]
    return replace(request, messages=[*request.messages, *said])


def result(call: ToolCallPart, content: str = "3", **more: Any) -> ToolResultPart:
    return ToolResultPart(call_id=call.id, name=call.name, content=content, **more)


# --- three formats, each against its strict server


@pytest.mark.parametrize(
    ("server", "made", "replies"),
    [
        (OpenAIServer, chat, lambda: [Call("add", {"a": 1}), Call("add", {"a": 2})]),
        (
            ResponsesServer,
            responses,
            lambda: [Call("add", {"a": 1}), Call("add", {"a": 2})],
        ),
        (
            AnthropicServer,
            anthropic,
            lambda: Reply(thinking="Hm.", calls=[Call("add", {"a": 1}), Call("add", {"a": 2})]),
        ),
    ],
    ids=["chat", "responses", "anthropic"],
)
async def test_a_run_with_parallel_calls(server: Any, made: Made, replies: Any) -> None:
    """The servers refuse a request that the real APIs would refuse: a call without its result, a foreign signature."""
    said = iter([replies(), "It is 3."])
    async with served(server(lambda _: next(said)), made) as (api, provider):
        events = await ask(provider)
        first = events[-1]
        assert isinstance(first, Completed)
        assert first.finish_reason == "tool_calls"
        calls = [part for part in first.parts if isinstance(part, ToolCallPart)]
        assert [call.arguments for call in calls] == [{"a": 1}, {"a": 2}]
        deltas = [event for event in events if isinstance(event, ToolCallDelta)]
        assert {(one.index, one.id) for one in deltas} == {(0, calls[0].id), (1, calls[1].id)}
        assert "".join(one.arguments for one in deltas if one.index == 1).replace(" ", "") == '{"a":2}'
        again = await reply(provider, answered(REQUEST, first, [result(call) for call in calls]))
        assert "".join(part.text for part in again.parts if isinstance(part, TextPart)) == "It is 3."
        assert again.finish_reason == "stop"
        assert again.usage.input_tokens > 0
        assert api.stats.completed == 2
        assert (again.provider, again.model) == (made(api).system, "some-model")


async def test_thinking_goes_back_to_where_it_came_from_alone() -> None:
    said = iter([Reply(thinking="Hm.", text="Three.")] + ["Yes."] * 2)
    async with (
        served(AnthropicServer(lambda _: next(said)), anthropic) as (api, provider),
        served(OpenAIServer("Yes."), chat) as (other, stranger),
    ):
        events = await ask(provider)
        assert ThinkingDelta("Hm.") in events
        first = events[-1]
        assert isinstance(first, Completed)
        thought = first.parts[0]
        assert isinstance(thought, ThinkingPart)
        assert (thought.text, thought.provider) == ("Hm.", "pydantic-ai-anthropic@127.0.0.1")
        assert thought.opaque is not None
        assert thought.opaque["signature"]
        request = answered(REQUEST, first, [])
        request = replace(request, messages=[*request.messages, Message.user("Sure?")])
        await ask(provider, request)
        blocks = api.requests[-1]["messages"][1]["content"]
        assert [block["type"] for block in blocks] == ["thinking", "text"]
        await ask(stranger, request)
        assert "Hm." not in str(other.requests[-1])
        foreign = [
            thought.model_copy(update={"provider": "anthropic"}),
            OpaquePart(provider="anthropic", data={"a": 1}),
        ]
        mixed = Message(
            role="assistant", parts=(*foreign, TextPart(text="Three.", provider="anthropic", opaque={"b": 1}))
        )
        await ask(provider, replace(request, messages=[request.messages[0], mixed, Message.user("Sure?")]))
        blocks = api.requests[-1]["messages"][1]["content"]
        assert [block["type"] for block in blocks] == ["text"]


async def test_files_and_what_a_model_cannot_read() -> None:
    async with served(OpenAIServer("Seen."), chat) as (api, provider):
        image = FilePart(media_type="image/png", data=base64.b64encode(PNG).decode())
        odd = FilePart(media_type="application/x-odd", name="a.odd", data=base64.b64encode(b"123").decode())
        asked = Message(role="user", parts=(TextPart(text="Look."), image, odd))
        call = ToolCallPart(id="c#1", name="add", arguments={"a": 1})
        shown = result(call, "Drawn.", files=(image,))
        messages = [asked, Message.assistant("", call), Message(role="tool", parts=(shown,))]
        await ask(provider, replace(REQUEST, messages=messages))
    sent = api.requests[0]["messages"]
    look = sent[1]["content"]
    assert [part["type"] for part in look] == ["text", "image_url", "text"]
    assert "[file a.odd (application/x-odd, 3 bytes): this model cannot read it]" in look[2]["text"]
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"] != "c#1"
    assert "image_url" in str(sent[3:])


async def test_settings_are_called_as_pydantic_ai_calls_them() -> None:
    async with served(OpenAIServer("Yes."), chat) as (api, provider):
        settings = {"temperature": 0.5, "max_tokens": 9, "stop": "END", "seed": 3, "top_p": None}
        options = {"parallel_tool_calls": False}
        await ask(provider, replace(REQUEST, settings=settings, provider_options=options, tool_choice="add"))
    sent = api.requests[0]
    assert (sent["temperature"], sent["max_completion_tokens"], sent["stop"], sent["seed"]) == (0.5, 9, ["END"], 3)
    assert sent["parallel_tool_calls"] is False
    assert sent["tool_choice"] == "required"  # there is one tool
    assert sent["tools"][0]["function"]["parameters"] == ADD.parameters


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"metadata": {"a": "b"}}, {}, "'metadata'"),
        ({"reasoning_effort": "huge"}, {}, "minimal, low"),
        ({"stop": "x"}, {"stop_sequences": ["y"]}, "collides"),
        ({}, {"max_retries": 3}, "collides"),
    ],
)
def test_settings_are_checked_where_the_agent_is_defined(settings: Any, options: Any, said: str) -> None:
    with pytest.raises(errors.SettingsError, match=said):
        Agent("a", PydanticAIModel(TestModel()), settings=settings, provider_options=options)


# --- errors


HALF = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "some-model"} | {
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Half a reply."}, "finish_reason": None}]
}
HALF_A_MESSAGE = [
    {
        "type": "message_start",
        "message": {"id": "m", "type": "message", "role": "assistant", "model": "some-model", "content": []}
        | {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Half a reply."}},
]


@pytest.mark.parametrize(
    ("server", "made"),
    [
        (OpenAIServer(lambda _: Reply(chunks=[HALF], done=False)), chat),
        (AnthropicServer(lambda _: Reply(chunks=HALF_A_MESSAGE, done=False)), anthropic),
    ],
    ids=["chat", "anthropic"],
)
async def test_a_stream_that_ends_early_without_an_error_is_no_reply(server: Any, made: Made) -> None:
    """As a proxy ends it that lost its own connection. pydantic-ai takes it for the whole reply."""
    async with served(server, made) as (_, provider):
        with pytest.raises(errors.TruncatedStreamError):
            await ask(provider)


@pytest.mark.parametrize(
    ("kinds", "reason", "cut"),
    [
        (("OpenAIStreamedResponse",), None, True),
        (("SnowflakeStreamedResponse", "OpenAIStreamedResponse"), None, False),
        (("GroqStreamedResponse",), None, False),
        (("MistralStreamedResponse",), None, True),
        (("MistralStreamedResponse",), "stop", False),
        (("OpenAIStreamedResponse",), "length", False),
    ],
)
def test_which_streams_have_to_say_why_they_end(kinds: tuple[str, ...], reason: Any, cut: bool) -> None:
    kind: type = object
    for name in reversed(kinds):
        kind = type(name, (kind,), {})
    assert is_cut_short(kind(), theirs.ModelResponse(parts=[], finish_reason=reason), {}) is cut
    kind._has_finish_reason = True  # type: ignore[attr-defined]  # it came with a chunk that had nothing else
    assert not is_cut_short(kind(), theirs.ModelResponse(parts=[], finish_reason=reason), {})


async def test_a_profile_may_say_that_no_reason_is_given_at_the_end() -> None:
    def lenient(server: Any) -> Model:
        source = OpenAIProvider(base_url=server.base_url, api_key="test")
        return OpenAIChatModel(
            "m", provider=source, profile=OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=False)
        )

    async with served(OpenAIServer(lambda _: Reply(chunks=[HALF], done=False)), lenient) as (_, provider):
        found = await reply(provider)
    assert found.parts == (TextPart(text="Half a reply."),)


def made(kind: type[Any]) -> Exception:
    """An exception of that class, whatever it takes."""
    known = {"status_code": 500, "model_name": "m", "message": "oh", "timeout": 1.0, "body": None}
    if issubclass(kind, exceptions.FallbackExceptionGroup):
        return kind("all failed", [exceptions.ModelRateLimitError("m", "slow", retry_after=3.0)])
    wanted = inspect.signature(kind.__init__).parameters
    error: Exception = kind(**{name: value for name, value in known.items() if name in wanted})
    return error


def classes() -> list[type[Exception]]:
    roots = (exceptions.AgentRunError, exceptions.UserError, exceptions.FallbackExceptionGroup)
    skipped = (exceptions.RunCancelled, exceptions.UndrainedPendingMessagesError, exceptions.SuspendedResponseExpired)
    public = [kind for kind in vars(exceptions).values() if inspect.isclass(kind) and issubclass(kind, roots)]
    return [kind for kind in public if not issubclass(kind, skipped) and kind.__module__ == exceptions.__name__]


def test_every_exception_of_a_model_has_a_meaning() -> None:
    """A class that pydantic-ai adds is found here."""
    for kind in classes():
        for reply_started in (False, True):
            found = translate_error(made(kind), reply_started=reply_started, endpoint="api")
            assert isinstance(found, errors.ProviderError)
            assert type(found) is not errors.ProviderError, f"{kind} is a stranger"


@pytest.mark.parametrize(
    ("theirs_", "ours"),
    [
        (httpx2.ReadTimeout("slow"), errors.ProviderTimeoutError),
        (ConnectionResetError("gone"), errors.ProviderConnectionError),
        (NotImplementedError("no images"), errors.BadRequestError),
        (ImportError("boto3"), errors.BadRequestError),
        (RuntimeError("?"), errors.ProviderError),
    ],
)
def test_what_comes_from_elsewhere(theirs_: Exception, ours: type[Exception]) -> None:
    assert type(translate_error(theirs_, reply_started=False, endpoint="api")) is ours


# --- its fakes, and how it is made


async def test_pieces_of_a_reply_that_only_its_provider_understands() -> None:
    """They are kept as they came, and are given back so."""
    search = theirs.NativeToolCallPart("web_search", {"q": "x"}, tool_call_id="s1", provider_name="function")
    text = theirs.TextPart("Found.", id="msg_1", provider_name="function", provider_details={"sealed": "yes"})
    call = theirs.ToolCallPart("add", '{"a": 1', tool_call_id="c1")
    picture = theirs.FilePart(theirs.BinaryContent(PNG, media_type="image/png"))
    seen: list[Any] = []

    def function(messages: Any, info: Any) -> theirs.ModelResponse:
        seen.append(messages)
        return theirs.ModelResponse([search, text, call, picture])

    class Whole(FunctionModel):
        """It cannot stream."""

        request_stream = Model.request_stream

    provider = PydanticAIModel(Whole(function))
    first = await reply(provider)
    assert [part.type for part in first.parts] == ["opaque", "text", "tool_call", "file"]
    assert first.parts[1].opaque == {"id": "msg_1", "provider_name": "function", "provider_details": {"sealed": "yes"}}  # type: ignore[union-attr]
    assert first.parts[2].malformed == '{"a": 1'  # type: ignore[union-attr]
    await reply(provider, answered(REQUEST, first, [result(first.parts[2])]))  # type: ignore[arg-type]
    system, user = seen[0][0].parts
    assert (system.content, user.content) == ("Be exact.", "Add.")
    sent = seen[1][1].parts
    assert sent[:2] == [search, text]
    assert (sent[2].args, sent[2].tool_call_id) == ({}, "c1")
    assert sent[3].content.data == PNG
    assert seen[1][2].parts[0].content == "3"


async def test_a_function_makes_a_model_of_each_name_once() -> None:
    names: list[str] = []

    def make(name: str) -> Model:
        names.append(name)
        return TestModel(custom_output_text=f"I am {name}.", model_name=name)

    provider = PydanticAIModel(make)
    register_provider("fakes", provider)
    try:
        assert Agent("a", "fakes:one").model == "fakes:one"
        for name in ("one", "two", "one"):
            first, *_ = await ask(provider, replace(REQUEST, model=name, tools=()))
            assert isinstance(first, TextDelta)
        assert names == ["one", "two"]
        await provider.aclose()
    finally:
        registry._providers.pop("fakes")


@pytest.mark.parametrize("wrong", [None, "openai:gpt-5", 3])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.DefinitionError, match="PydanticAIModel takes"):
        PydanticAIModel(wrong)


def test_usage_has_its_parts() -> None:
    from pydantic_ai.usage import RequestUsage

    from perdure.providers.pydantic_ai_conversion import build_completed

    usage = RequestUsage(
        input_tokens=9, output_tokens=5, cache_read_tokens=2, cache_write_tokens=1, details={"reasoning_tokens": 3}
    )
    found = build_completed(theirs.ModelResponse([], usage=usage, finish_reason="length"), "o", "api.test")
    assert found.usage == Usage(
        input_tokens=9, output_tokens=5, cached_tokens=2, cache_write_tokens=1, reasoning_tokens=3
    )
    assert found.finish_reason == "length"
    assert not isinstance(found, Restarted)


@pytest.mark.parametrize(
    ("reason", "native", "expected"),
    [
        ("stop", "stop", "stop"),
        (None, None, "stop"),
        (None, "COMPLETE", "stop"),
        ("length", "MAX_TOKENS", "length"),
        ("error", "network_error", errors.ProviderServerError),
        ("error", None, errors.ProviderServerError),
        (None, "network_error", errors.ProviderServerError),
        ("stop", "MALFORMED_FUNCTION_CALL", errors.ModelSlipError),
    ],
)
def test_the_end_of_a_reply(reason: Any, native: str | None, expected: Any) -> None:
    from perdure.providers.pydantic_ai_conversion import build_completed

    details = {"finish_reason": native} if native else None
    response = theirs.ModelResponse([theirs.TextPart("Fra")], finish_reason=reason, provider_details=details)
    if isinstance(expected, str):
        assert build_completed(response, "o", "api.test").finish_reason == expected
    else:
        with pytest.raises(expected, match=native or "error"):
            build_completed(response, "o", "api.test")


@pytest.mark.parametrize("args", [None, "", '{"a": '])
def test_a_call_that_the_output_limit_cut_is_marked(args: Any) -> None:
    from perdure.providers.pydantic_ai_conversion import build_completed

    response = theirs.ModelResponse([theirs.ToolCallPart("add", args, "c1")], finish_reason="length")
    [part] = build_completed(response, "o", "api.test").parts
    assert isinstance(part, ToolCallPart)
    assert part.malformed == (args or "")
