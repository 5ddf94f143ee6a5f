"""Address, key and clients, which all adapters have in common."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from perdure.errors import AuthenticationError, DefinitionError, MissingExtraError, ProviderError
from perdure.ports.model import ModelRequest
from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses, get_provider, registry
from perdure.providers.endpoint import Endpoint, SilenceTimer, build_missing_sdk_error, build_origin, is_host_of


class Client:
    def __init__(self, key: str) -> None:
        self.api_key = key
        self.thread = threading.get_ident()
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Vendor(Endpoint[Client]):
    format, extra = "vendor", "vendor"
    key_envs = ("VENDOR_KEY", "VENDOR_OTHER_KEY")
    base_url_env = "VENDOR_URL"
    official_url = "https://api.vendor.test/v1"
    official_hosts = ("vendor.test",)

    def _create_client(self, key: str) -> Client:
        return Client(key)

    def _translate_error(self, error: Exception, *, reply_started: bool, endpoint: str, key_name: str) -> ProviderError:
        return ProviderError(f"{endpoint}: {error}")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*Vendor.key_envs, Vendor.base_url_env):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "host", "expected"),
    [
        (None, "api.vendor.test", "vendor"),
        ("https://eu.vendor.test:8443/x", "eu.vendor.test", "vendor"),
        ("https://notvendor.test", "notvendor.test", "vendor@notvendor.test"),
        ("http://127.0.0.1:8000/v1", "127.0.0.1", "vendor@127.0.0.1"),
        ("http://[::1]:8000/v1", "::1", "vendor@::1"),
        ("no address", "no address", "vendor@no address"),
        ("http://[::1", "http://[::1", "vendor@http://[::1"),
    ],
)
def test_where_it_is(monkeypatch: pytest.MonkeyPatch, url: str | None, host: str, expected: str) -> None:
    monkeypatch.setenv("VENDOR_URL", url or "")
    vendor = Vendor()
    assert (vendor.host, vendor.origin) == (host, expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"base_url": "sk-secret-0123456789"}, "begins with http"),
        ({"base_url": "localhost:1234/v1"}, "begins with http"),
        ({"base_url": "http:///v1"}, "begins with http"),
        ({"api_key_env": "sk-secret-0123456789"}, "the name of an environment variable"),
        ({"api_key_env": ["MINE"]}, "the name of an environment variable"),
        ({"timeout": 0}, "above 0"),
        ({"timeout": "5"}, "above 0"),
        ({"timeout": float("nan")}, "above 0"),
        ({"headers": {"X-Key": 7}}, "value of header 'X-Key' is of int"),
        ({"headers": {"X-Key": ["secret"]}}, "value of header 'X-Key' is of list"),
        ({"headers": {"X-Key": None}}, "value of header 'X-Key' is of NoneType"),
        ({"headers": {b"X-Key": "secret"}}, "names of headers must be str"),
    ],
)
def test_mistakes_are_said_where_it_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said) as caught:
        Vendor(**given)
    assert "Vendor: " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_origin_has_no_port_and_names_other_servers() -> None:
    assert build_origin("openai", "api.openai.com", ["openai.com"]) == "openai"
    assert build_origin("openai", "proxy", ["openai.com"]) == "openai@proxy"
    assert is_host_of("openai.com", ["openai.com"])
    assert not is_host_of("myopenai.com", ["openai.com"])


def test_the_variable_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_URL", " http://proxy:1/v1\n")
    assert Vendor().base_url == "http://proxy:1/v1"
    assert Vendor("http://mine").base_url == "http://mine"


def left(vendor: Vendor, error: Exception, key: str) -> ProviderError:
    return vendor._build_provider_error(error, ModelRequest(model="m", messages=()), key, False)


def test_a_header_in_bytes_is_a_secret() -> None:
    error = left(Vendor(headers={"X-Key": b"supersecret123"}), ValueError("bad key supersecret123"), "k" * 20)  # type: ignore[dict-item]
    assert error.message == "api.vendor.test: bad key [redacted]"


@pytest.mark.parametrize(
    ("adapter", "name"),
    [
        (OpenAIChat, "OPENAI_CUSTOM_HEADERS"),
        (OpenAIResponses, "OPENAI_CUSTOM_HEADERS"),
        (Anthropic, "ANTHROPIC_CUSTOM_HEADERS"),
    ],
)
def test_headers_that_the_sdk_takes_from_a_variable_are_secrets(
    adapter: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "X-Team: docs\nX-Key: supersecret123")
    request = ModelRequest(model="m", messages=())
    error = adapter()._build_provider_error(ValueError("bad key supersecret123"), request, "k" * 20, False)
    assert "supersecret123" not in error.message
    assert "[redacted]" in error.message


@pytest.mark.parametrize("key", ["ollama", "lm-studio", "EMPTY", "none", "dummy", "test"])
def test_a_placeholder_for_a_key_is_no_secret(key: str) -> None:
    error = left(Vendor("http://127.0.0.1:1/v1", api_key=key), ValueError(f"the {key} server is not here"), key)
    assert error.message == f"127.0.0.1: the {key} server is not here"


def test_the_hosts_name_and_our_hints_are_shown_whatever_the_key_is() -> None:
    vendor = Vendor("http://gateway.corp.test/v1", api_key="gateway", headers={"X-Title": "Check base_url"})
    error = left(vendor, ProviderError("gateway.corp.test: Check base_url", hint="Check base_url."), "gateway")
    assert (error.message, error.hint) == ("gateway.corp.test: [redacted]", "Check base_url.")


def test_whose_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AuthenticationError, match=r"(?s)VENDOR_KEY is not set.*Vendor\(api_key"):
        Vendor()._read_key()
    monkeypatch.setenv("VENDOR_OTHER_KEY", "b\n")
    assert (Vendor()._read_key(), Vendor().key_name) == ("b", "VENDOR_OTHER_KEY")
    monkeypatch.setenv("VENDOR_KEY", "a")
    assert (Vendor()._read_key(), Vendor().key_name) == ("a", "VENDOR_KEY")
    assert (Vendor(api_key="c")._read_key(), Vendor(api_key="c").key_name) == ("c", "api_key")
    with pytest.raises(AuthenticationError, match="MINE"):
        Vendor(api_key_env="MINE")._read_key()
    monkeypatch.setenv("VENDOR_KEY", "“typographic”")
    with pytest.raises(AuthenticationError, match=r"VENDOR_KEY.*characters") as caught:
        Vendor()._read_key()
    assert "typographic" not in caught.value.message


async def test_a_loop_has_one_client_made_in_a_thread() -> None:
    vendor = Vendor()
    client = await vendor._get_client("a")
    assert client.thread != threading.get_ident()
    assert await vendor._get_client("b") is client
    assert client.api_key == "b"
    other = await asyncio.to_thread(lambda: asyncio.run(vendor._get_client("c")))
    assert other is not client
    await vendor.aclose()
    await vendor.aclose()
    assert (client.closed, other.closed) == (True, False)
    assert await vendor._get_client("a") is not client


async def test_an_sdk_that_is_not_installed_says_how_to_install_it() -> None:
    class Missing(Vendor):
        def _create_client(self, key: str) -> Client:
            raise ModuleNotFoundError(name="vendor_sdk")

    with pytest.raises(MissingExtraError, match=r"needs the extra 'vendor' .*missing: vendor_sdk"):
        await Missing()._get_client("a")
    assert "'openai'" in str(build_missing_sdk_error("openai"))


@pytest.mark.parametrize(
    ("adapter", "package"),
    [(OpenAIChat, "openai"), (OpenAIResponses, "openai"), (Anthropic, "anthropic"), (Google, "google.genai")],
)
async def test_a_call_without_the_sdk_says_how_to_install_it(
    adapter: type[Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="needs the extra"):
        await anext(adapter(api_key="k" * 20).stream(ModelRequest("m", [])))


@pytest.mark.parametrize(
    ("name", "extra"),
    [("openai", "openai"), ("openai-responses", "openai"), ("anthropic", "anthropic"), ("google", "google")],
)
def test_every_built_in_is_one(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_providers", {})
    provider = get_provider(name)
    assert isinstance(provider, Endpoint)
    assert (provider.format, provider.extra) == (name, extra)
    monkeypatch.delenv(provider.base_url_env, raising=False)
    assert provider.origin == name
    monkeypatch.setattr(registry, "_providers", {})
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=f"needs the extra '{extra}'"):
        get_provider(name)


async def test_a_silence_ends_the_wait_in_which_it_comes_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pieces = 1000.0, asyncio.Queue[int]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def feed() -> None:
        nonlocal now
        for number in range(4):
            now += 40.0
            pieces.put_nowait(number)
            await asyncio.sleep(0)
        now += 61.0

    timer, waits = SilenceTimer(60.0), 0

    async def listen() -> None:
        nonlocal waits
        while True:
            with timer:
                await pieces.get()
            waits += 1

    feeding = asyncio.create_task(feed())
    with pytest.raises(TimeoutError, match="nothing came for 60 s"):
        await listen()
    timer.close()
    await feeding
    assert waits == 4, "together they took longer than each may"
    assert timer.has_expired
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_wait_that_is_cancelled_is_no_silence() -> None:
    timer, begun = SilenceTimer(60.0), asyncio.Event()

    async def wait() -> None:
        with timer:
            begun.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    timer.close()
    assert not timer.has_expired
