"""Which server is meant, and what is said of one that does not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from perdure.embedded.address import ServerTarget, connect, resolve_target
from perdure.embedded.home import Home
from perdure.errors import RuntimeSetupError, ServerUnreachableError


@pytest.fixture
def profiles(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(
        '[profile.default]\naddress = "default.example:1"\n'
        '[profile.prod]\naddress = "prod.example:2"\nnamespace = "sales"\napi_key = "secret"\n'
        "[profile.bare]\n"
    )
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))


async def test_arguments_come_first(profiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "env.example:3")
    target = await resolve_target(address="flag.example:4", namespace="n", profile="prod")
    assert (target.address, target.namespace) == ("flag.example:4", "n")
    assert target.config["api_key"] == "secret"
    assert target.origin == "the given address"


async def test_the_environment_comes_before_the_profile(profiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "env.example:3")
    target = await resolve_target(profile="prod")
    assert (target.address, target.namespace, target.origin) == ("env.example:3", "sales", "TEMPORAL_ADDRESS")


async def test_a_profile_is_used(profiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = await resolve_target()
    assert (target.address, target.namespace) == ("default.example:1", "default")
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")
    target = await resolve_target()
    assert (target.address, target.origin) == ("prod.example:2", "the profile 'prod'")
    assert target.config["tls"] is True
    assert (await resolve_target(profile="bare")).address == "localhost:7233"  # as the temporal CLI does it


async def test_an_api_key_turns_tls_on(home: Home) -> None:
    assert (await resolve_target(address="a:1", api_key="k")).config["tls"] is True
    assert (await resolve_target(address="a:1", api_key="k", tls=False)).config["tls"] is False
    assert "tls" not in (await resolve_target(address="a:1")).config


async def test_an_unknown_profile_is_told(profiles: None) -> None:
    with pytest.raises(RuntimeSetupError, match="nosuch"):
        await resolve_target(profile="nosuch")


async def test_no_server_at_all_is_told(home: Home) -> None:
    with pytest.raises(ServerUnreachableError, match="no embedded server runs") as caught:
        await resolve_target()
    assert "perdure server start" in (caught.value.hint or "")
    assert not home.root.exists()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def http_port() -> Iterator[int]:
    """A server of another kind."""
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (BaseHTTPRequestHandler,), {"log_message": print}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def _target(address: str) -> ServerTarget:
    return ServerTarget({"target_host": address, "namespace": "default"}, "TEMPORAL_ADDRESS")


async def test_a_closed_port_is_unreachable(home: Home) -> None:
    with pytest.raises(ServerUnreachableError) as caught:
        await connect(_target("127.0.0.1:1"))
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.message == "no Temporal server at 127.0.0.1:1 (from TEMPORAL_ADDRESS): connection refused"
    assert caught.value.hint


async def test_an_unknown_host_is_unreachable(home: Home) -> None:
    with pytest.raises(ServerUnreachableError, match=r"nosuch\.invalid:7233 .*host name is not known"):
        await connect(_target("nosuch.invalid:7233"))


async def test_silence_is_unreachable(silent_port: int) -> None:
    with pytest.raises(ServerUnreachableError, match=r"no answer within 0\.1 s"):
        await connect(_target(f"127.0.0.1:{silent_port}"), seconds=0.1)


async def test_another_kind_of_server_is_unreachable(http_port: int) -> None:
    with pytest.raises(ServerUnreachableError, match="is not a Temporal server"):
        await connect(_target(f"127.0.0.1:{http_port}"))
