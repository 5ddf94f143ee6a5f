"""What a model call may take, and whom it falls through to: through the official SDK."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from perdure import Agent, Limits, RateLimit, register_provider
from perdure.errors import (
    AuthenticationError,
    DefinitionError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
)
from perdure.providers import OpenAIChat, registry
from perdure.testing import ScriptedProvider
from perdure.worker import Worker
from tests.servers.model_server import OpenAIServer, Reply, error
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

BUSY = error(500, "The server had an error.", type="server_error")
SLOW_DOWN = error(429, "Slow down.", code="rate_limit_exceeded", retry_after="2")


def saying(*replies: Any) -> Callable[[Any], Any]:
    """A rule that gives them in order."""
    left = iter(replies)
    return lambda _: next(left)


@pytest.fixture
async def api() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


Made = Callable[..., OpenAIChat]


@pytest.fixture
async def model(api: OpenAIServer) -> AsyncIterator[Made]:
    """Makes a provider of that server, closed at the end of the test."""
    async with AsyncExitStack() as stack:

        def made(base_url: str = api.base_url, *, api_key: str | None = "test", **options: Any) -> OpenAIChat:
            provider = OpenAIChat(base_url, api_key, **options)
            stack.push_async_callback(provider.aclose)
            return provider

        yield made


@pytest.mark.server
async def test_a_429_waits_as_it_is_told_and_costs_no_attempt(engine: Engine, api: OpenAIServer, model: Made) -> None:
    asked: list[float] = []
    replies = saying(SLOW_DOWN, "Hello.")

    def rule(request: Any) -> Any:
        asked.append(time.monotonic())
        return replies(request)

    api.rule = rule
    agent = Agent("a", model(), limits=Limits(attempts=1))
    async with engine.served(agent) as client:
        response = await (await client.start(agent, "Hi.")).result()
    assert response.content == "Hello."
    assert api.stats.requests == 2
    assert asked[1] - asked[0] >= 1.9  # Temporal's own delay would be 1 s


async def test_a_key_that_is_not_set_fails_at_once(engine: Engine, api: OpenAIServer, model: Made) -> None:
    agent = Agent("a", model(api_key=None, api_key_env="SOME_UNSET_KEY"))
    async with engine.served(agent) as client:
        with pytest.raises(AuthenticationError, match="SOME_UNSET_KEY is not set"):
            await (await client.start(agent, "Hi.")).result()
    assert api.stats.requests == 0


async def test_a_key_that_is_refused_fails_at_once_and_names_the_variable(
    engine: Engine, api: OpenAIServer, model: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "wrong-key")
    api._api_key = "right-key"
    agent = Agent("a", model(api_key=None, api_key_env="SOME_API_KEY"))
    async with engine.served(agent) as client:
        with pytest.raises(AuthenticationError) as caught:
            await (await client.start(agent, "Hi.")).result()
    assert api.stats.requests == 1
    assert "SOME_API_KEY" in str(caught.value)
    assert "wrong-key" not in str(caught.value)


async def test_a_dead_primary_falls_through_to_the_second_model(engine: Engine, api: OpenAIServer, model: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    register_provider("dead", model(f"http://127.0.0.1:{port}/v1"))
    register_provider("alive", model())
    api.rule = saying("Hello.")
    agent = Agent("a", ["dead:gpt-5", "alive:gpt-5-mini"], limits=Limits(attempts=1))
    try:
        async with engine.served(agent) as client:
            run = await client.start(agent, "Hi.")
            response = await run.result()
            events = [event async for event in run.events()]
    finally:
        registry._providers.pop("dead")
        registry._providers.pop("alive")
    assert response.content == "Hello."
    assert response.messages[-1].model == "gpt-5-mini"
    assert [request["model"] for request in api.requests] == ["gpt-5-mini"]
    assert [event.model for event in events if event.type == "model.started"] == ["dead:gpt-5", "alive:gpt-5-mini"]


@pytest.mark.server
async def test_failed_attempts_are_counted_over_workers(engine: Engine, api: OpenAIServer, model: Made) -> None:
    """The second worker knows of the first one's attempt; a 429 in between that said when to come back is free."""
    replies = saying(BUSY, error(429, "Slow down.", retry_after="1"), BUSY)
    answered = asyncio.Event()

    def rule(request: Any) -> Any:
        answered.set()
        return replies(request)

    api.rule = rule
    agent = Agent("a", model(), limits=Limits(attempts=2))
    async with engine.served(agent) as client:
        run = await client.start(agent, "Hi.")
        await eventually(lambda: failure_of(run), what="the first attempt to have failed")
    async with engine.served(agent):
        with pytest.raises(ProviderServerError) as caught:
            await run.result()
    assert str(caught.value).startswith("gave up after 2 attempts (attempts): 127.0.0.1 answered 500")
    assert api.stats.requests == 3


@pytest.mark.server
async def test_no_failed_attempt_is_forgotten(engine: Engine, api: OpenAIServer, model: Made) -> None:
    """Also one that fails just behind a heartbeat, when Temporal's client holds the next one back."""

    async def rule(request: Any) -> Any:
        if "slow" in str(request["messages"]):
            await asyncio.sleep(0.6)
        return BUSY

    api.rule = rule
    agent = Agent("a", model(), limits=Limits(attempts=3))
    async with engine.served(agent) as client:
        runs = [await client.start(agent, said) for said in ("Hi.", "Be slow.")]
        for run in runs:
            with pytest.raises(ProviderServerError, match="gave up after 3 attempts"):
                await run.result()
    assert api.stats.requests == 6


async def failure_of(run: Any) -> bool:
    return "attempt " in ((await run.status()).reason or "")


async def test_a_wait_past_the_time_of_the_call_is_not_begun(engine: Engine, api: OpenAIServer, model: Made) -> None:
    api.rule = saying(error(429, "Slow down.", retry_after="600"))
    agent = Agent("a", model(), limits=Limits(call_timeout="5m"))
    async with engine.served(agent) as client:
        with pytest.raises(RateLimitError, match=r"as it is to wait 10 minutes more of 5 minutes \(call_timeout\)"):
            await (await client.start(agent, "Hi.")).result()
    assert api.stats.requests == 1


async def test_a_call_that_takes_too_long_is_broken_off(engine: Engine, api: OpenAIServer, model: Made) -> None:
    api.rule = saying("Hello.", Reply("Never.", hang=asyncio.Event()))
    provider = model()
    first, agent = Agent("first", provider), Agent("a", provider, limits=Limits(call_timeout=1))
    async with engine.served(first, agent) as client:
        # The SDK is imported with the first request that a process makes: that is longer than 1 s on a busy machine.
        await (await client.start(first, "Hi.")).result()
        with pytest.raises(ProviderTimeoutError, match=r"gave up after 1 s \(call_timeout\)"):
            await (await client.start(agent, "Hi.")).result()
    assert api.stats.requests <= 2, "it is not asked again"


@pytest.mark.server
async def test_calls_of_a_provider_wait_for_their_turn(engine: Engine) -> None:
    gate = Gate()

    async def reply(_: Any) -> str:
        await gate()
        return "Hello."

    agent = Agent("a", ScriptedProvider(reply))
    async with engine.served(agent, provider_limits={"ScriptedProvider": RateLimit(concurrent=1)}) as client:
        first = await client.start(agent, "Hi.")
        await eventually(lambda: gate.entered, what="the first call")
        second = await client.start(agent, "Hi.")

        async def waits() -> bool:
            return "(provider_limits): 1 at once" in ((await second.status()).reason or "")

        await eventually(waits, what="the second call to wait for its turn")
        gate.open()
        assert (await first.result()).content == (await second.result()).content


@pytest.mark.server
async def test_limits_that_are_none_are_refused_when_the_worker_is_made(engine: Engine) -> None:
    client, agent = await engine.client(), Agent("a", ScriptedProvider([]))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"provider_limits": {"antropic": RateLimit(concurrent=1)}}, "Did you mean 'anthropic'?"),
        ({"provider_limits": {"openai": 3}}, "must be a RateLimit"),
        ({"provider_limits": [3]}, "must be a dictionary"),
        ({"calls_per_second": 0}, "must be a number above zero"),
    ]
    for given, said in wrong:
        with pytest.raises(DefinitionError) as caught:
            Worker(client, [agent], **given)
        assert said in str(caught.value)


@pytest.mark.server
async def test_a_rate_of_the_task_queue_is_kept(engine: Engine) -> None:
    """Temporal gives the queue a burst of about a second's worth; the rest waits."""
    agent = Agent("a", ScriptedProvider(lambda _: "Hello."))
    async with engine.served(agent, calls_per_second=2.0) as client:
        began = time.monotonic()
        runs = [await client.start(agent, "Hi.") for _ in range(8)]
        await asyncio.gather(*(run.result() for run in runs))
    assert time.monotonic() - began >= 1.5
