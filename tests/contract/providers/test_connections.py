"""How an adapter finds its server, and how the connection may fail."""

from __future__ import annotations

import asyncio
import gc

import pytest

from perdure.errors import AuthenticationError, PerdureError, ProviderConnectionError, ProviderTimeoutError
from perdure.ports.model import ModelRequest, TextDelta
from perdure.types.messages import Message, TextPart
from tests.servers.model_server import Reply
from tests.support.adapters import ADAPTERS, FORMATS, KEY, Adapter, Api
from tests.support.wait import eventually

formats = pytest.mark.parametrize("adapter", FORMATS)


async def test_one_connection_serves_all_calls_and_is_given_back(api: Api) -> None:
    async with api.another() as mine:
        before = api.server.connections
        for _ in range(3):
            await mine.ask()
        assert api.server.connections == before + 1
        await mine.provider.aclose()
        await mine.provider.aclose()
        await eventually(lambda: api.server.connections == before, deadline=10, what="a connection that is given back")
        if api.adapter.name in FORMATS:
            await mine.ask()  # opens it again
    assert api.server.stats.completed == (4 if api.adapter.name in FORMATS else 3)


def _without_length(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "content-length"}


@pytest.mark.parametrize("adapter", ["openai", "openai-responses", "anthropic"])
async def test_a_later_request_has_the_head_of_the_first(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body, and what the server gave the client to remember, are its own."""
    if api.adapter.name != "anthropic":
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-team: blue")
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    async with api.another(headers={"x-mine": "1"}) as mine:
        await mine.ask()
        await mine.ask(Reply("Hello.", headers={"set-cookie": "node=7; Path=/"}), api.request(Message.user("longer")))
        await mine.ask()
    first, second, third = api.server.headers
    assert first["x-mine"] == "1"
    if api.adapter.name != "anthropic":
        assert (first["x-team"], first["openai-organization"]) == ("blue", "org-1")
    assert _without_length(second) == _without_length(first)
    assert int(second["content-length"]) == int(first["content-length"]) + len("longer") - len("hi")
    assert _without_length(third) == _without_length(first) | {"cookie": "node=7"}
    assert len(set(api.server.paths)) == 1


@formats
async def test_a_redirect_is_followed(api: Api) -> None:
    async with api.another() as mine:
        for _ in range(2):
            api.server.replies = [Reply("", status=307, headers={"location": "?"})]
            assert len(await mine.ask()) == 2
    assert api.server.stats.requests == 4
    assert len({str(body) for body in api.server.bodies}) == 1


def _once(provider: object, adapter: Adapter) -> int:
    async def run() -> int:
        async with adapter.server() as server:
            provider._base_url = server.base_url  # type: ignore[attr-defined]
            request = ModelRequest(adapter.model, [Message.user("hi")])
            events = [event async for event in provider.stream(request)]  # type: ignore[attr-defined]
            await provider.aclose()  # type: ignore[attr-defined]
            return len(events)

    return asyncio.run(run())


@formats
async def test_an_instance_works_on_several_event_loops(adapter: str) -> None:
    found = ADAPTERS[adapter]
    provider = found.make(api_key=KEY)
    assert [await asyncio.to_thread(_once, provider, found) for _ in range(2)] == [2, 2]
    gc.collect()
    assert not provider._clients


async def test_whoever_stops_listening_hangs_up(api: Api) -> None:
    after = {"anthropic": 4, "openai-responses": 5}.get(api.adapter.name, 2)
    api.server.rule = lambda _: Reply("one two three", hang=api.server.release, hang_after=after)
    stream = api.provider.stream(api.hi)
    assert await anext(stream) == TextDelta("one ")
    await stream.aclose()
    await eventually(lambda: api.server.stats.aborted == 1, deadline=10, what="a reply that was given up")
    await api.ask("again")
    assert api.server.stats.aborted == 1


async def test_cancelling_is_not_translated(api: Api) -> None:
    task = asyncio.ensure_future(api.ask(Reply("never", hang=api.server.release)))
    await api.server.wait_requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@formats
async def test_silence_is_a_timeout(api: Api) -> None:
    async with api.another(timeout=0.05) as mine:
        for after in (-1, 1):
            with pytest.raises(ProviderTimeoutError):
                await mine.ask(Reply("never", hang=api.server.release, hang_after=after))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_nobody_listens(api: Api, host: str) -> None:
    async with api.another(base_url=f"http://{host}:1/v1") as mine:
        with pytest.raises(ProviderConnectionError) as caught:
            await mine.ask()
    assert "base_url" in str(caught.value) or api.adapter.name not in FORMATS


@formats
@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        ("127.0.0.1/v1", KEY),
        ("ftp://x/v1", KEY),
        ("http://127.0.0.1:1/v1", "sk-abc\ndefghijk"),
        ("http://127.0.0.1:1/v1", "schlüssel"),
    ],
)
async def test_a_request_that_cannot_be_sent_is_not_retried_and_shows_no_key(
    api: Api, monkeypatch: pytest.MonkeyPatch, base_url: str, key: str
) -> None:
    monkeypatch.setenv(api.adapter.url_variable, base_url)
    async with api.another(base_url=None, api_key=key) as mine:
        with pytest.raises(PerdureError) as caught:
            await mine.ask()
    if (api.adapter.name, key) != ("google", "schlüssel"):  # which a header of Google's client can have
        assert not caught.value.retryable
    assert not [part for part in ("defghijk", "schl") if part in str(caught.value)]


@formats
async def test_the_environment_names_endpoint_and_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are read with each call."""
    monkeypatch.setenv(api.adapter.url_variable, api.url)
    async with api.another(base_url=None, api_key=None) as mine:
        with pytest.raises(AuthenticationError, match=api.adapter.key_variable):
            await mine.ask()
        assert api.server.stats.requests == 0, "without a key nothing is asked"
        for key in ("one", "two\n"):
            monkeypatch.setenv(api.adapter.key_variable, key)
            await mine.ask()
    header = {"google": "x-goog-api-key"}.get(api.adapter.name, "authorization")
    assert [headers[header].removeprefix("Bearer ") for headers in api.server.headers] == ["one", "two"]


@formats
async def test_a_key_that_is_refused_names_its_variable_and_is_not_shown(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.server._api_key = KEY
    try:
        async with api.another(api_key=None, api_key_env="MY_KEY") as mine:
            with pytest.raises(AuthenticationError, match="MY_KEY"):
                await mine.ask()
            monkeypatch.setenv("MY_KEY", "sk-wrong-0123456789")
            with pytest.raises(AuthenticationError, match="Check MY_KEY") as caught:
                await mine.ask()
    finally:
        api.server._api_key = None
    assert api.server.stats.refused == 1
    assert not caught.value.retryable
    assert "0123456789" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize("adapter", ["anthropic", "google"])
async def test_a_version_may_stand_in_the_address(api: Api) -> None:
    """It stands in the address of OpenAI anyway."""
    for suffix in ("/v1", "/v1/", "/v1beta/")[: 3 if api.adapter.name == "google" else 2]:
        async with api.another(base_url=f"{api.url}{suffix}", headers={"x-mine": "1"}) as mine:
            assert (await mine.reply()).parts == (TextPart(text="Hello."),)
        assert api.server.paths[-1].startswith(f"/{suffix.strip('/')}/m")
        assert api.server.headers[-1]["x-mine"] == "1"
