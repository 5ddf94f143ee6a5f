"""Chat completions by the official SDK: whole and streamed, with tools, sessions, approvals, and requests that fail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from perdure import Agent, Client, ToolContext, register_provider, tool
from perdure.providers import Anthropic
from perdure.testing import ScriptedProvider, call
from perdure.web.auth import Caller
from tests.support.engine import Engine
from tests.support.web import Service, make_caller, serve


class Access:
    """Official clients of a replica."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._clients: list[AsyncOpenAI] = []

    def sdk(self, name: str = "ada", **options: Any) -> AsyncOpenAI:
        """A client of that caller."""
        settings = {"api_key": name, "max_retries": 0, "timeout": 60, **options}
        self._clients.append(AsyncOpenAI(base_url=f"{self.service.url}/openai/v1", **settings))
        return self._clients[-1]

    def http(self, name: str = "ada") -> httpx.AsyncClient:
        """A plain client of that caller."""
        headers = {"Authorization": f"Bearer {name}"}
        return httpx.AsyncClient(base_url=f"{self.service.url}/openai/v1", headers=headers, timeout=60)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def connected(client: Client, *callers: Caller) -> AsyncIterator[Access]:
    """A replica, which knows ada and ``callers``."""
    async with serve(client, *callers) as service:
        access = Access(service)
        try:
            yield access
        finally:
            await access.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Look up the weather.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def choose(ctx: ToolContext) -> str:
    """Ask for a colour."""
    return f"chose {await ctx.ask('Which colour?', str)}"


async def test_models_are_the_agents_that_the_caller_may_see(engine: Engine) -> None:
    agents = [Agent(name, ScriptedProvider(["."]), description="Helps.") for name in ("helper", "other")]
    bob = make_caller("bob", agents=("other",))
    async with engine.served(*agents) as client, connected(client, bob) as access:
        ai = access.sdk()
        assert [model.id async for model in await ai.models.list()] == ["helper", "other"]
        assert [model.id async for model in await access.sdk("bob").models.list()] == ["other"]
        model = await ai.models.retrieve("helper")
        assert (model.id, model.object, model.created > 0) == ("helper", "model", True)
        for name in ("no/such", "helper"):
            with pytest.raises(openai.NotFoundError) as missing:
                await access.sdk("bob").models.retrieve(name)
            assert missing.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            await access.sdk("nobody").models.list()


async def test_a_completion_is_a_run_of_its_own_with_the_messages_before_as_history(engine: Engine) -> None:
    async with engine.served(Agent("helper", ScriptedProvider(["Hello Ada."]))) as client, connected(client) as access:
        before: Any = [
            {"role": "system", "content": "Be kind."}, user("I am Ada."), {"role": "assistant", "content": "Hi."}
        ]  # fmt: skip
        answer = await access.sdk().chat.completions.create(model="helper", messages=[*before, user("Who am I?")])
        assert answer.choices[0].message.content == "Hello Ada."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        transcript = await client.run(session_of(answer)).transcript()
        texts = [(message.role, message.text) for message in transcript if message.role != "system"]
        said = "<system>\nBe kind.\n</system>\n\nWho am I?"
        assert texts == [("user", "I am Ada."), ("assistant", "Hi."), ("user", said), ("assistant", "Hello Ada.")]


def session_of(answer: Any) -> str:
    return str(answer.model_extra["perdure"]["session"])


async def test_a_stream_ends_with_the_text_of_the_transcript(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["One two three.", "Four."]))
    async with engine.served(agent) as client, connected(client) as access:
        ai, options = access.sdk(), {"stream_options": {"include_usage": True}}
        stream: Any = await ai.chat.completions.create(
            model="helper", messages=[user("count")], stream=True, **options
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "One two three."
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage.total_tokens > 0
        async with ai.chat.completions.stream(model="helper", messages=[user("go on")], **options) as helper:
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "Four."
        assert final.usage is not None


async def test_a_session_takes_the_last_message_and_a_key_makes_a_repeat_the_same_turn(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["One.", "Two.", "Three?"]))
    async with engine.served(agent) as client, connected(client) as access:
        ai = access.sdk()

        async def ask(text: str, key: str, **fields: Any) -> str:
            headers = {"X-Perdure-Session": "chat-1", "Idempotency-Key": key}
            messages: Any = [{"role": "developer", "content": "Be brief."}, user("before"), user(text)]
            answer = await ai.chat.completions.with_raw_response.create(
                model="helper", messages=messages, extra_headers=headers, **fields
            )
            assert answer.headers["x-perdure-session"] == "chat-1"
            return str(answer.parse().choices[0].message.content)

        assert [await ask("a", "k1"), await ask("b", "k2"), await ask("a", "k1")] == ["One.", "Two.", "One."]
        with pytest.raises(openai.ConflictError) as conflict:
            await ask("other", "k1")
        assert conflict.value.code == "idempotency_key_conflict"
        said = [message.text for message in await client.run("chat-1").transcript() if message.role == "user"]
        assert said == ["<system>\nBe brief.\n</system>\n\na", "b"]


@pytest.mark.parametrize("streams", [False, True])
async def test_functions_of_the_request_are_run_by_the_client(engine: Engine, streams: bool) -> None:
    calls = [call("weather", place="Rome"), call("weather", place="Oslo")]
    agent = Agent("helper", ScriptedProvider([calls, "Sun, and snow.", "Welcome."]), client_tools=True)
    async with engine.served(agent) as client, connected(client) as access:
        ai = access.sdk()
        messages: list[Any] = [user("weather?")]

        async def ask() -> Any:
            if not streams:
                return (await ai.chat.completions.create(model="helper", messages=messages, tools=[WEATHER])).choices[0]
            async with ai.chat.completions.stream(model="helper", messages=messages, tools=[WEATHER]) as stream:
                return (await stream.get_final_completion()).choices[0]

        asked = await ask()
        assert asked.finish_reason == "tool_calls"
        assert [made.function.arguments for made in asked.message.tool_calls] == [
            '{"place":"Rome"}', '{"place":"Oslo"}'
        ]  # fmt: skip
        messages.append(asked.message.model_dump(include={"role", "content", "tool_calls"}))
        one, two = [{"role": "tool", "tool_call_id": made.id, "content": "dry"} for made in asked.message.tool_calls]
        messages.append(one)
        rest = await ask()
        assert [made.id for made in rest.message.tool_calls] == [two["tool_call_id"]]
        messages.append(two)
        done = await ask()
        assert (done.message.content, done.finish_reason) == ("Sun, and snow.", "stop")
        repeated = await ask()
        assert repeated.message.content == "Sun, and snow."
        messages += [{"role": "assistant", "content": "Sun, and snow."}, user("Thanks!")]
        assert (await ask()).message.content == "Welcome."


async def test_an_approval_ends_the_answer_and_a_repeat_has_the_rest(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Refunded."]), tools=[refund])
    async with engine.served(agent) as client, connected(client) as access:
        ai = access.sdk()
        options: Any = {"model": "helper", "messages": [user("x")], "extra_headers": {"Idempotency-Key": "k"}}
        raw = await ai.chat.completions.with_raw_response.create(**options)
        asked: Any = raw.parse()
        (wait,) = asked.model_extra["perdure"]["waits"]
        told = f'[refund {{"order":"7"}} waits for approval (session {session_of(asked)}, call {wait["call_id"]})]'
        assert (asked.choices[0].finish_reason, asked.choices[0].message.content) == ("stop", told)
        assert (wait["kind"], wait["tool"], wait["arguments"]) == ("approval", "refund", {"order": "7"})
        assert raw.headers["x-perdure-waits"] == wait["id"]
        chunks: Any = [chunk async for chunk in await ai.chat.completions.create(**options, stream=True)]
        assert chunks[-1].model_extra["perdure"]["waits"] == [wait]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == told
        await client.run(wait["run_id"]).approve(wait["call_id"], hash=wait["hash"])
        done = await ai.chat.completions.create(**options)
        assert done.choices[0].message.content == "Refunded."
        assert session_of(done) == session_of(asked)


async def test_a_message_while_an_approval_waits_joins_the_turn(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Refunded, quickly."]), tools=[refund])
    async with engine.served(agent) as client, connected(client) as access:
        ai = access.sdk()

        async def say(text: str) -> Any:
            headers = {"X-Perdure-Session": "chat-1"}
            answer = await ai.chat.completions.create(model="helper", messages=[user(text)], extra_headers=headers)
            return answer.model_extra["perdure"]["waits"]

        (wait,) = await say("refund 7")
        assert await say("hurry") == [wait]
        approval: Any = {"type": "mcp_approval_response", "approval_request_id": wait["id"], "approve": True}
        done = await ai.responses.create(model="helper", input=[approval], conversation="chat-1")
        assert done.output_text == "Refunded, quickly."


async def test_long_arguments_are_those_of_the_call(engine: Engine) -> None:
    place = "x" * 100_000
    replies: Any = [[call("weather", place=place), call("refund", order=place)], "Sun."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[refund], client_tools=True)
    async with engine.served(agent) as client, connected(client) as access:
        answer: Any = await access.sdk().chat.completions.create(
            model="helper", messages=[user("weather?")], tools=[WEATHER]
        )
        (made,) = answer.choices[0].message.tool_calls
        assert json.loads(made.function.arguments) == {"place": place}
        assert [wait["arguments"] for wait in answer.model_extra["perdure"]["waits"]] == [{"order": place}]
        result: Any = {"type": "function_call_output", "call_id": made.id, "output": "sun"}
        rest = await access.sdk().responses.create(model="helper", input=[result])
        (request,) = [item for item in rest.output if item.type == "mcp_approval_request"]
        assert json.loads(request.arguments) == {"order": place}


async def test_a_typed_answer_is_the_content_alone(engine: Engine) -> None:
    class Sum(BaseModel):
        total: int

    agent = Agent("adder", ScriptedProvider([call("__finish__", total=5)]), output=Sum)
    async with engine.served(agent) as client, connected(client) as access:
        parsed = await access.sdk().chat.completions.parse(
            model="adder", messages=[user("2+3")], response_format=Sum
        )  # fmt: skip
        assert parsed.choices[0].message.parsed == Sum(total=5)


async def test_wrong_requests_raise_the_errors_of_the_sdk(engine: Engine) -> None:
    agents = [Agent("helper", ScriptedProvider(lambda _: "Hello.")), Agent("hidden", ScriptedProvider(["."]))]
    bob = make_caller("bob", agents=("helper",), tenants=("bob",))
    eve = make_caller("eve", "viewer")
    async with engine.served(*agents) as client, connected(client, bob, eve) as access:
        hello: Any = {"model": "helper", "messages": [user("hi")]}
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"temprature": 1}, "temprature"),
            ({"n": 2}, "n"),
            ({"logprobs": True}, "logprobs"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"stop": []}, "stop"),
            ({"stop": [""], "stream": True}, "stop"),
            ({"max_completion_tokens": 0, "stream": True}, "max_completion_tokens"),
            ({"reasoning_effort": "enormous", "stream": True}, "reasoning_effort"),
            ({"messages": [{"role": "tool", "tool_call_id": "call_x", "content": "x"}]}, "input"),
            ({"stream": "yes"}, "stream"),
        ]
        ai = access.sdk()
        for fields, param in wrong:
            with pytest.raises(openai.BadRequestError) as refused:
                await ai.chat.completions.create(**hello, extra_body=fields)
            assert refused.value.param == param, fields
        with pytest.raises(openai.BadRequestError, match="takes no tools"):
            await ai.chat.completions.create(**hello, tools=[WEATHER])
        with pytest.raises(openai.NotFoundError) as missing:
            await access.sdk("bob").chat.completions.create(**hello | {"model": "hidden"})
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.PermissionDeniedError):
            await access.sdk("eve").chat.completions.create(**hello)
        named: Any = {"extra_headers": {"X-Perdure-Session": "s-1"}}
        await ai.chat.completions.create(**hello, **named)
        own: Any = await access.sdk("bob").chat.completions.create(**hello, **named)
        assert own.model_extra["perdure"]["session"] == "s-1"
        assert len(await client.run("s-1").transcript()) == len(await client.run("s-1", tenant="bob").transcript()) == 2
        named["extra_headers"]["X-Perdure-Session"] = "@acme/s-1"
        with pytest.raises(openai.ConflictError):
            await access.sdk("bob").chat.completions.create(**hello, **named)
        refusals = [row for row in await read_audit(client) if row.verb == "openai"]
        assert {row.by for row in refusals} == {"bob", "eve"}
        ignored = {"user": "u", "metadata": {"a": "b"}, "store": True, "temperature": 0.2, "n": 1}
        assert (await ai.chat.completions.create(**hello, extra_body=ignored)).choices[0].message.content == "Hello."


async def test_a_setting_that_the_agents_provider_does_not_have_is_refused_before_a_stream_begins(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    agent = Agent("helper", "anthropic:claude-sonnet-4-5", caller_overrides=["settings.seed"])
    async with engine.served(agent) as client, connected(client) as access:
        for streams in (False, True):
            with pytest.raises(openai.BadRequestError, match="has no setting 'seed'"):
                await access.sdk().chat.completions.create(
                    model="helper", messages=[{"role": "user", "content": "hi"}], seed=1, stream=streams
                )


async def test_what_fails_before_the_first_step_has_a_status_also_with_a_stream(engine: Engine) -> None:
    """Only the workers know what this provider takes."""
    register_provider("house", Anthropic(base_url="http://127.0.0.1:1", api_key="k"))
    agent = Agent("helper", "house:m", caller_overrides=["settings.seed"])
    async with engine.served(agent) as client, connected(client) as access:
        for streams in (False, True):
            with pytest.raises(openai.BadRequestError, match="has no setting 'seed'"):
                await access.sdk().chat.completions.create(
                    model="helper", messages=[{"role": "user", "content": "hi"}], seed=1, stream=streams
                )


async def read_audit(client: Client) -> list[Any]:
    return list(await (await client.store()).list_audit(limit=100))


async def test_a_failed_turn_is_an_error_of_the_stream_and_of_the_answer(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(lambda _: call("none")), max_iterations=2, on_limit="error")
    async with engine.served(agent) as client, connected(client) as access:
        hello: Any = {"model": "helper", "messages": [user("hi")]}
        with pytest.raises(openai.APIStatusError) as failed:
            await access.sdk().chat.completions.create(**hello)
        assert failed.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.APIError) as broken:
            async for _ in await access.sdk().chat.completions.create(**hello, stream=True):
                pass
        assert broken.value.code == "max_iterations"


async def test_hostile_requests_are_errors_in_openais_envelope(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(lambda _: "Hello \ud83d."), client_tools=True)
    async with engine.served(agent) as client, connected(client) as access, access.http() as http:
        deep: Any = "x"
        for _ in range(200):
            deep = [deep]
        many = [WEATHER | {"function": WEATHER["function"] | {"name": f"t{n}"}} for n in range(500)]
        hello = {"model": "helper", "messages": [user("hi")]}
        bodies: list[Any] = [
            {}, [], None, "x", hello | {"messages": deep}, hello | {"metadata": deep}, hello | {"tools": many},
            hello | {"tools": [WEATHER | {"function": {"name": "x", "parameters": deep}}]},
            hello | {"tools": [{"type": "function", "function": {"name": "a b"}}]}, hello | {"model": "x" * 100_000},
            hello | {"messages": [user("x")] * 20_000}, hello | {"messages": [{"role": "user", "content": [None]}]},
            hello | {"messages": [{"role": "user", "content": {"a": 1}}]}, hello | {"messages": [{"role": []}]},
            hello | {"messages": [{"role": "user"}]}, hello | {"temperature": "hot"}, hello | {"seed": deep},
            hello | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            hello | {"messages": [{"role": "tool", "tool_call_id": "call_" + "A" * 9000, "content": "x"}]},
        ]  # fmt: skip
        for body in bodies:
            answer = await http.post("/chat/completions", json=body)
            assert 400 <= answer.status_code < 500, (str(body)[:100], answer.text[:300])
            assert answer.json()["error"]["message"], answer.text[:300]
        raw = b'{"model": "helper", "messages": [{"role": "user", "content": "\\ud800"}]}'
        answer = await http.post("/chat/completions", content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400), answer.text
        for session in (b"a/b", b"..", b"x" * 10_000, b"\xff", "caf\u00e9".encode()):
            headers = [(b"X-Perdure-Session", session)]
            answer = await http.post("/chat/completions", json=hello, headers=headers)
            assert answer.status_code in (200, 400, 404, 409), answer.text
        assert (await http.post("/chat/completions", content=b"x")).status_code == 415
