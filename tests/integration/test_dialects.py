"""Servers that differ from others, through an agent: a refusal is read before it is final, and what was learned stays.

After public reports of what users of other libraries met: openai-agents-python#442, pydantic-ai#2759, langchain#24668,
hermes-agent#16748, ragflow#5632, pi#8460.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Agent, Limits, tool
from perdure.errors import (
    BadRequestError,
    ContextLengthError,
    DefinitionError,
    ModelSlipError,
    ProviderServerError,
    SettingsError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, ModelRequest, ToolSpec
from perdure.providers import Anthropic, OpenAIChat, OpenAIResponses
from perdure.types.messages import Message, ThinkingPart, ToolCallPart
from tests.servers.http import Answer, HttpServer, Request
from tests.support.engine import Engine

Body = dict[str, Any]
Rule = Callable[[Body], Any]
"""A request → the chunks of a reply, or a status and the body of a refusal."""


class Server:
    """What came, and the rule for what goes back."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.bodies: list[Body] = []
        self.done = True
        self.port = 0
        self.providers: list[Any] = []

    def chat(self, **options: Any) -> OpenAIChat:
        self.providers.append(provider := OpenAIChat(self.url, "k", **options))
        return provider

    def claude(self, path: str = "", **options: Any) -> Anthropic:
        self.providers.append(provider := Anthropic(self.url + path, "k", **options))
        return provider

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: Request, answer: Answer) -> None:
        body = json.loads(request.body)
        self.bodies.append(body)
        reply = self.rule(body)
        if isinstance(reply, tuple):
            await answer.json(*reply)
            return
        answer.start(200, {"content-type": "text/event-stream"})
        for chunk in reply:
            name = f"event: {chunk['type']}\n" if "type" in chunk else ""
            await answer.write(f"{name}data: {json.dumps(chunk)}\n\n".encode())
        if self.done and not request.path.endswith("/messages"):
            await answer.write(b"data: [DONE]\n\n")
        await answer.finish()


@asynccontextmanager
async def serve(rule: Rule) -> AsyncIterator[Server]:
    server = Server(rule)
    async with HttpServer(server.handle) as http:
        server.port = http.port
        try:
            yield server
        finally:
            for provider in server.providers:
                await provider.aclose()


def chat(content: str = "", calls: Sequence[Body] = (), reason: str | None = None, **delta: Any) -> list[Body]:
    whole = {"role": "assistant", "content": content or None, "tool_calls": list(calls), **delta}
    end = reason or ("tool_calls" if calls else "stop")
    return [
        {"choices": [{"index": 0, "delta": whole, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": end}]},
    ]


def call(id: str, name: str = "weather", arguments: str = '{"city": "Rome"}') -> Body:
    return {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def messages(*blocks: Body, stop: str = "end_turn") -> list[Body]:
    events: list[Body] = [{"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {}}}]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": stop}}, {"type": "message_stop"}]


def refusal(message: str, status: int = 400, **more: Any) -> tuple[int, Body]:
    return status, {"error": {"message": message, "type": "invalid_request_error", "code": None, **more}}


@tool
def weather(city: str) -> str:
    """Weather."""
    return f"clear in {city}"


async def answer(engine: Engine, agent: Agent[Any, Any], times: int = 1) -> str:
    async with engine.served(agent) as client:
        for _ in range(times):
            result = await (await client.start(agent, "Rome?")).result()
    return str(result.content)


async def complete(provider: Any, *said: Message, **more: Any) -> Completed:
    request = ModelRequest(**{"model": "m", "messages": [*said] or [Message.user("hi")], **more})
    *_, last = [event async for event in provider.stream(request)]
    assert isinstance(last, Completed)
    return last


# ---
# Refusals that mean another dialect.


def refuse_stream_options(body: Body) -> Any:
    return (
        refusal("Extra inputs are not permitted, field: 'stream_options'") if "stream_options" in body else chat("ok")
    )


async def test_a_refused_parameter_is_left_out_and_that_is_remembered(engine: Engine) -> None:
    async with serve(refuse_stream_options) as server:
        agent = Agent("a", server.chat())
        assert await answer(engine, agent, times=2) == "ok"
        assert ["stream_options" in body for body in server.bodies] == [True, False, False]


async def test_an_author_can_leave_it_out(engine: Engine) -> None:
    async with serve(refuse_stream_options) as server:
        agent = Agent("a", server.chat(), provider_options={"stream_options": None})
        assert await answer(engine, agent) == "ok"
        assert await answer(engine, Agent("b", server.chat(stream_usage=False))) == "ok"
        assert ["stream_options" in body for body in server.bodies] == [False, False]
    with pytest.raises(SettingsError, match="None leaves it out"):
        OpenAIChat.check_settings({}, {"stream_options": {"include_usage": False}})


CHAT_REFUSALS: list[tuple[str, str, Mapping[str, Any], Callable[[Body], bool]]] = [
    ("Mistral", "{'detail': [{'type': 'extra_forbidden', 'loc': ['body', 'stream_options', 'include_usage']}]}", {},
     lambda body: "stream_options" in body),
    ("Azure", "Validation error at #/stream_options: Extra inputs are not permitted", {},
     lambda body: "stream_options" in body),
    ("DeepSeek", "Thinking mode does not support this tool_choice", {"tool_choice": "weather"},
     lambda body: "tool_choice" in body),
    ("DashScope", "The tool_choice parameter does not support being set to required or object in thinking mode",
     {"tool_choice": "weather"}, lambda body: "tool_choice" in body),
    ("LM Studio", "Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
     {"tool_choice": "weather"}, lambda body: isinstance(body.get("tool_choice"), dict)),
    ("OpenAI's newer models", "Unsupported parameter: 'max_tokens' is not supported with this model. "
     "Use 'max_completion_tokens' instead.", {"settings": {"max_tokens": 5}}, lambda body: "max_tokens" in body),
    ("vLLM's templates", "Conversation roles must alternate user/assistant/user/assistant/...", {},
     lambda body: [m["role"] for m in body["messages"]].count("user") > 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "more", "is_refused"), CHAT_REFUSALS, ids=[row[0] for row in CHAT_REFUSALS])
async def test_refusals_of_chat_completions(
    name: str, words: str, more: Mapping[str, Any], is_refused: Callable[[Body], bool]
) -> None:
    async with serve(lambda body: refusal(words) if is_refused(body) else chat("ok")) as server:
        provider = server.chat()
        said = [Message.user("Rome?"), Message.user("Now.")]
        completed = await complete(provider, *said, tools=[weather.spec], **more)
        assert (completed.requests, [is_refused(body) for body in server.bodies]) == (2, [True, False])
        assert json.dumps(server.bodies[-1]).count("Rome?") == 1
        if "tool_choice" in more:
            assert "Now call the tool weather" in json.dumps(server.bodies[-1]["messages"])
        await complete(provider, *said, tools=[weather.spec], **more)
        assert len(server.bodies) == 3


async def test_a_refusal_that_stays_is_the_error_and_nothing_is_learned() -> None:
    async with serve(lambda _: refusal("stream_options: extra fields not permitted")) as server:
        provider = server.chat()
        with pytest.raises(BadRequestError, match="stream_options"):
            await complete(provider)
        with pytest.raises(BadRequestError):
            await complete(provider)
        assert ["stream_options" in body for body in server.bodies] == [True, False, True, False]


async def test_a_refusal_of_what_was_not_sent_is_final() -> None:
    async with serve(lambda _: refusal("tool_choice is not supported")) as server:
        with pytest.raises(BadRequestError):
            await complete(server.chat())
        assert len(server.bodies) == 1


async def test_every_request_counts_towards_the_limits(engine: Engine) -> None:
    """Each attempt here is two requests: a refusal, and one without what was refused."""

    def rule(body: Body) -> Any:
        return refuse_stream_options(body) if "stream_options" in body else refusal("busy", 500)

    async with serve(rule) as server:
        agent = Agent("a", server.chat(), limits=Limits(attempts=3))
        with pytest.raises(ProviderServerError, match="gave up after 4 attempts"):
            await answer(engine, agent)
        assert len(server.bodies) == 4


# ---
# The model's slip.


@pytest.mark.parametrize("in_stream", [False, True])
async def test_a_broken_call_of_the_model_is_another_attempt(engine: Engine, in_stream: bool) -> None:
    error = {
        "message": "Failed to call a function.",
        "code": "tool_use_failed",
        "failed_generation": "<function=weather",
    }

    def rule(body: Body) -> Any:
        if body["messages"][-1]["content"] != "Rome?":
            return chat("Clear.")
        return [{"error": {**error, "status_code": 400}}] if in_stream else (400, {"error": error})

    async with serve(rule) as server:
        assert await answer(engine, Agent("a", server.chat(), tools=[weather])) == "Clear."
        first, second = server.bodies
        assert second["messages"][:-1] == first["messages"]
        told = second["messages"][-1]
        assert told["role"] == "user"
        assert "thrown away" in told["content"]
        assert "<function=weather" in told["content"]


async def test_a_model_that_slips_each_time_fails_the_run(engine: Engine) -> None:
    error = {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<" * 10_000}
    async with serve(lambda _: (400, {"error": error})) as server:
        with pytest.raises(ModelSlipError, match="Failed to call a function"):
            await answer(engine, Agent("a", server.chat(), tools=[weather]))
        assert len(server.bodies) == 5
        assert [len(body["messages"]) for body in server.bodies] == [1, 2, 2, 2, 2]
        assert max(len(body["messages"][-1]["content"]) for body in server.bodies) < 1_000


# ---
# Ids, thinking, ends.


async def test_a_chain_goes_on_at_a_server_with_ids_of_its_own(engine: Engine) -> None:
    """At Mistral an id has nine letters or digits."""

    def first(body: Body) -> Any:
        return (
            refusal("overloaded", 503)
            if body["messages"][-1]["role"] == "tool"
            else chat(calls=[call("call_PTLP8xhu3")])
        )

    def mistral(body: Body) -> Any:
        ids = re.findall(r'"(?:id|tool_call_id)": "([^"]*)"', json.dumps(body))
        if any(not re.fullmatch(r"[a-zA-Z0-9]{9}", each) for each in ids):
            return refusal(f"Tool call id was {ids[0]} but must be a-z, A-Z, 0-9, with a length of 9.")
        assert len(ids) == 2
        assert len(set(ids)) == 1
        return chat("Clear in Rome.")

    for options in ({}, {"dialect": "mistral"}, {"short_call_ids": True}):
        async with serve(first) as one, serve(mistral) as two:
            models = [one.chat(), two.chat(**options)]
            assert await answer(engine, Agent("a", models, tools=[weather])) == "Clear in Rome."
            assert len(two.bodies) == (1 if options else 2)


@pytest.mark.parametrize("signature", [{}, {"signature": ""}], ids=["none", "empty"])
async def test_unsigned_thinking_goes_back_to_who_gave_it(engine: Engine, signature: Body) -> None:
    thought = {"type": "thinking", "thinking": "I need the weather.", **signature}

    def rule(body: Body) -> Any:
        blocks = [
            block for message in body["messages"] if message["role"] == "assistant" for block in message["content"]
        ]
        if not blocks:
            use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
            return messages(thought, use, stop="tool_use")
        if blocks[0] != thought:
            return refusal("The `content[].thinking` in the thinking mode must be passed back to the API.")
        return messages({"type": "text", "text": "Clear."})

    async with serve(rule) as server:
        agent = Agent("a", server.claude("/anthropic"), tools=[weather])
        assert await answer(engine, agent) == "Clear."
        assert len(server.bodies) == 2


async def test_a_claude_that_was_cut_in_its_thinking_gets_none_back() -> None:
    thought = ThinkingPart(text="half", provider="anthropic@127.0.0.1", opaque={"signature": ""})
    async with serve(lambda _: messages({"type": "text", "text": "ok"})) as server:
        provider = server.claude()
        said = [Message.user("a"), Message(role="assistant", parts=(thought,)), Message.user("b")]
        for model, count in (("claude-opus-4-6", 0), ("deepseek-v4", 1)):
            async for _ in provider.stream(ModelRequest(model, said)):
                pass
            assert json.dumps(server.bodies[-1]).count('"half"') == count


async def test_cache_marks_are_left_out_where_they_are_refused() -> None:
    def rule(body: Body) -> Any:
        marked = "cache_control" in json.dumps(body)
        return (
            refusal("cache_control: Extra inputs are not permitted")
            if marked
            else messages({"type": "text", "text": "ok"})
        )

    async with serve(rule) as server:
        assert (await complete(server.claude(), system="Be brief.")).requests == 2
        assert (await complete(server.claude(cache_marks=False))).requests == 1


PIECES = ("<thi", "nk>\nThe user greets me", ". I greet back.\n</th", "ink>\n\n", "Hello!", " <think>")


def think_aloud(_: Body) -> Any:
    pieces = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in PIECES]
    return [*pieces, *chat()]


async def test_thinking_in_tags_is_apart_from_the_answer(engine: Engine) -> None:
    async with serve(think_aloud) as server:
        agent = Agent("a", server.chat())
        async with engine.served(agent) as client:
            first = await (await client.send(agent, "Hi.", id="tags")).result()
            await (await client.send(agent, "Again.", id="tags")).result()
        assert first.content == "Hello! <think>"
        assert server.bodies[-1]["messages"][1:2] == [{"role": "assistant", "content": "Hello! <think>"}]
        assert await answer(engine, Agent("b", server.chat(think_tags=False))) == "".join(PIECES)


async def test_done_ends_a_reply_where_the_dialect_says_so() -> None:
    piece = {"choices": [{"index": 0, "delta": {"content": "Hello there."}, "finish_reason": None}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    cut = {"choices": [{"index": 0, "delta": {"tool_calls": [call("c1", arguments='{"city": "Ro')]}}]}
    whole = {"choices": [{"index": 0, "delta": {"tool_calls": [call("c1")]}}]}

    async def is_complete(chunks: list[Body], *, done: bool = True, **options: Any) -> bool:
        async with serve(lambda _: chunks) as server:
            server.done = done
            try:
                await complete(server.chat(**options))
            except TruncatedStreamError:
                return False
            return True

    assert await is_complete([piece, usage])
    assert not await is_complete([piece]), "as a proxy ends it that lost the model"
    assert await is_complete([piece], done_ends_reply=True)
    assert await is_complete([whole], done_ends_reply=True)
    assert not await is_complete([piece, cut, usage], done_ends_reply=True)
    assert not await is_complete([usage], done_ends_reply=True)
    assert not await is_complete([piece, usage], done=False, done_ends_reply=True)
    assert not await is_complete([piece, usage], dialect="openai")


# ---
# Too long; what an aggregator's upstream says.


async def test_too_long_in_a_429_is_shortened_and_asked_again(engine: Engine) -> None:
    def rule(body: Body) -> Any:
        if len(json.dumps(body["messages"])) > 20_000:
            raw = refusal("This model's maximum prompt length is 131072 but the request contains 537812 tokens.")[1]
            return 429, {
                "error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": json.dumps(raw)}}
            }
        return chat("ok")

    async with serve(rule) as server:
        provider = server.chat()
        with pytest.raises(ContextLengthError, match="maximum prompt length is 131072"):
            await complete(provider, Message.user("x" * 30_000))
        assert len(server.bodies) == 1


# ---
# What an author may say.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dialect": "vlm"}, "'vlm' is unknown"),
        ({"dialect": 7}, "a name or a Dialect"),
        ({"think_tags": "yes"}, "think_tags must be one of True, False"),
        ({"forced_tool": True}, "forced_tool must be one of 'named'"),
        ({"done_ends_reply": 1}, "done_ends_reply must be one of True"),
        ({"max_tokens_name": "max"}, "max_tokens_name must be one of"),
    ],
)
def test_what_no_dialect_has_is_refused(options: Body, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        OpenAIChat("http://x", "k", **options)


def test_the_host_says_the_dialect() -> None:
    names = {
        "https://api.openai.com/v1": "openai",
        "https://x.openai.azure.com/openai/v1": "azure",
        "https://api.mistral.ai/v1": "mistral",
        "https://api.groq.com/openai/v1": "groq",
        "https://openrouter.ai/api/v1": "openrouter",
        "https://notopenai.com": "compatible",
        "http://127.0.0.1:11434/v1": "compatible",
    }
    assert {url: OpenAIChat(url, "k").dialect.name for url in names} == names
    assert Anthropic("https://api.deepseek.com/anthropic", "k").dialect.thinking == "demanded"
    assert Anthropic("https://api.moonshot.cn/anthropic", "k", thinking="signed").dialect.thinking == "signed"
    assert Anthropic(api_key="k").dialect.thinking == "signed"


async def test_a_forced_tool_that_responses_refuse_is_asked_for_in_words() -> None:
    whole = {"id": "r", "object": "response", "status": "completed", "output": []}

    def rule(body: Body) -> Any:
        if "tool_choice" in body:
            return refusal("tool_choice: only 'auto' is supported")
        return [{"type": "response.completed", "response": whole}]

    async with serve(rule) as server:
        provider = OpenAIResponses(server.url, "k")
        server.providers.append(provider)
        for count in (2, 3):
            await complete(provider, tools=[weather.spec], tool_choice="weather")
            assert len(server.bodies) == count
        assert server.bodies[-1]["input"][-1]["content"] == "Now call the tool weather, and write nothing else."


@pytest.mark.parametrize(
    "words",
    [
        "max_completion_tokens is too large: 99. This model supports at most 9 completion tokens",
        "Unsupported value: 'reasoning_effort' does not support 'max' with this model.",
        "Unsupported value: 'temperature' does not support 0 with this model.",
        "messages.3: the image is invalid",
    ],
)
async def test_what_an_author_has_set_is_not_dropped(words: str) -> None:
    settings = {"max_tokens": 99, "temperature": 0, "reasoning_effort": "max"}
    said = [Message.user("a"), Message(role="assistant", parts=(ThinkingPart(text="b"),)), Message.user("c")]
    async with serve(lambda _: refusal(words)) as server:
        with pytest.raises(BadRequestError):
            await complete(server.chat(), *said, settings=settings)
        assert len(server.bodies) == 1


async def test_thinking_that_a_model_cannot_read_is_dropped_for_this_conversation_alone() -> None:
    signed = ThinkingPart(text="b", provider="anthropic@127.0.0.1", opaque={"signature": "old"})
    said = [Message.user("a"), Message(role="assistant", parts=(signed,)), Message.user("c")]

    def rule(body: Body) -> Any:
        if "old" in json.dumps(body):
            return refusal("messages.1.content.0: Invalid `signature` in `thinking` block")
        return messages({"type": "text", "text": "ok"})

    async with serve(rule) as server:
        provider = server.claude()
        assert (await complete(provider, *said)).requests == 2
        assert (await complete(provider, *said)).requests == 2
        new = signed.model_copy(update={"opaque": {"signature": "new"}})
        assert (await complete(provider, said[0], Message(role="assistant", parts=(new,)), said[2])).requests == 1
        assert "new" in json.dumps(server.bodies[-1])


# ---
# Tools that are translated, at servers that differ.

FIND = ToolSpec("find", "Find.", {"properties": {"filter[id]": {"type": "string"}}})
WANTED = [("find", {"filter[id]": "1"}, None)]


def list_calls(completed: Completed) -> list[tuple[str, dict[str, Any], str | None]]:
    calls = (part for part in completed.parts if isinstance(part, ToolCallPart))
    return [(part.name, part.arguments, part.malformed) for part in calls]


async def test_translated_arguments_come_back_by_their_own_names_past_refusals_and_odd_streams() -> None:
    """``stream_options`` is refused, the name is in every piece, and nothing but ``[DONE]`` ends the reply."""

    def rule(body: Body) -> Any:
        if "stream_options" in body:
            return refusal("Extra inputs are not permitted, field: 'stream_options'")
        (wire_name,) = body["tools"][0]["function"]["parameters"]["properties"]
        assert wire_name != "filter[id]"
        pieces = [call("c1", "find", text) for text in ("{}", f'{{"{wire_name}"', ': "1"}', "")]
        return [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]

    async with serve(rule) as server:
        provider = server.chat(done_ends_reply=True)
        completed = await complete(provider, model="anthropic/claude-sonnet-4.6", tools=[FIND])
    assert list_calls(completed) == WANTED
    assert completed.requests == 2
    assert completed.finish_reason == "tool_calls"


async def test_a_cut_call_of_a_translated_tool_stays_cut() -> None:
    def rule(body: Body) -> Any:
        (wire_name,) = body["tools"][0]["function"]["parameters"]["properties"]
        return chat(calls=[call("c1", "find", f'{{"{wire_name}": "lo')], reason="length")

    async with serve(rule) as server:
        completed = await complete(server.chat(), model="anthropic/claude-sonnet-4.6", tools=[FIND])
    ((name, arguments, malformed),) = list_calls(completed)
    assert (name, arguments) == ("find", {})
    assert malformed is not None
    assert malformed.endswith('"lo')


async def test_translated_arguments_come_back_from_a_claude_that_refused_cache_marks() -> None:
    def rule(body: Body) -> Any:
        if "cache_control" in json.dumps(body):
            return refusal("cache_control: Extra inputs are not permitted")
        (wire_name,) = body["tools"][0]["input_schema"]["properties"]
        return messages({"type": "tool_use", "id": "t1", "name": "find", "input": {wire_name: "1"}}, stop="tool_use")

    async with serve(rule) as server:
        completed = await complete(server.claude(), system="Be brief.", tools=[FIND])
    assert list_calls(completed) == WANTED
    assert completed.requests == 2


async def test_the_id_of_a_request_stays_with_its_reply(engine: Engine) -> None:
    whole = {"choices": [{"message": {"role": "assistant", "content": "Clear."}, "finish_reason": "stop"}]}
    async with serve(lambda _: (200, whole, {"x-request-id": "req_9"})) as server:
        agent = Agent("a", server.chat())
        async with engine.served(agent) as client:
            run = await client.start(agent, "Rome?")
            await run.result()
            assert [message.request_id for message in await run.transcript()] == [None, "req_9"]


async def test_a_server_that_does_not_stream_is_asked_for_the_whole_reply(engine: Engine) -> None:
    def rule(body: Body) -> Any:
        if body.get("stream"):
            return refusal("Unsupported value: 'stream' does not support true with this model.")
        assert "stream_options" not in body
        called = any(message["role"] == "tool" for message in body["messages"])
        asked = {"tool_calls": [call("c1")], "content": None}
        message = {"role": "assistant", **({"content": "Clear."} if called else asked)}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}]}

    async with serve(rule) as server:
        assert await answer(engine, Agent("a", server.chat(), tools=[weather])) == "Clear."
        assert [body.get("stream") for body in server.bodies] == [True, None, None]
        assert await answer(engine, Agent("b", server.chat(streaming=False), tools=[weather])) == "Clear."
