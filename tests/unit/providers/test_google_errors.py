"""Every exception of the SDK and of the layers under it becomes one of ours, and which."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any

import aiohttp
import google.auth.exceptions
import httpx2
import pytest
from google.genai import _api_client
from google.genai import errors as sdk

from perdure import errors
from perdure.providers.google_errors import translate
from perdure.types.redaction import Redaction
from tests.servers.google import error_body

KEY = "AIzaSyabcdefghij"
REQUEST = httpx2.Request("POST", "https://api.test/v1beta/models/m", headers={"x-goog-api-key": KEY})


def exceptions_of(module: Any) -> Iterator[type[Exception]]:
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_"):
            yield value


def make(cls: type[Exception]) -> Exception:
    """An instance of any of them, with the key wherever it can get."""
    body = error_body(400, f"bad {KEY}", "INVALID_ARGUMENT")
    info: Any = type(
        "Info", (), {"real_url": f"https://api.test/?key={KEY}", "ssl": None, "host": "h", "port": 1, "is_ssl": True}
    )()
    attempts: list[Any] = [
        lambda: cls(400, body, httpx2.Response(400, request=REQUEST)),
        lambda: cls(f"x {KEY}", request=REQUEST, response=httpx2.Response(400, request=REQUEST)),  # type: ignore[call-arg]
        lambda: cls(info, OSError(1, f"x {KEY}")),
        lambda: cls(info, OSError(1, f"x {KEY}"), ssl.SSLError()),
        lambda: cls(info, ()),
        lambda: cls(f"x {KEY}"),
        lambda: cls(1000, f"x {KEY}"),
        lambda: cls(b"expected", b"got", "host", 1),
        lambda: cls(),
    ]
    for attempt in attempts:
        try:
            made: Exception = attempt()
            str(made)
        except (TypeError, AttributeError, ValueError):
            continue
        return made
    raise AssertionError(f"cannot make a {cls.__name__}")


def ours(error: Exception, begun: bool = False) -> errors.ProviderError:
    return Redaction([KEY]).redact_error(translate(error, begun=begun, endpoint="api.test", key_name="GEMINI_API_KEY"))


SDK = [*exceptions_of(sdk), _api_client.EphemeralTokenAPIKeyError, *exceptions_of(google.auth.exceptions)]
STRANGERS = [RuntimeError, KeyError]
LAYERS = [*exceptions_of(httpx2), *exceptions_of(aiohttp)]
BELOW = [*LAYERS, ssl.SSLError, OSError, TimeoutError, UnicodeError, json.JSONDecodeError, *STRANGERS]


def test_the_walk_finds_them() -> None:
    assert {"APIError", "ClientError", "ServerError", "UnknownApiResponseError"} <= {cls.__name__ for cls in SDK}
    assert len(SDK) >= 15
    assert len(BELOW) >= 40


@pytest.mark.parametrize("cls", [*SDK, *BELOW], ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
@pytest.mark.parametrize("begun", [False, True])
def test_the_mapping_is_total(cls: type[Exception], begun: bool) -> None:
    made = json.JSONDecodeError("x", KEY, 0) if cls is json.JSONDecodeError else make(cls)
    translated = ours(made, begun)
    assert isinstance(translated, errors.ProviderError)
    if cls not in STRANGERS:
        assert type(translated) is not errors.ProviderError, "no class of its own"
    assert KEY not in repr(translated)
    assert KEY not in str(translated)


def test_what_a_connection_came_to() -> None:
    assert type(ours(aiohttp.ClientPayloadError("cut"), begun=True)) is errors.TruncatedStreamError
    assert type(ours(aiohttp.ServerDisconnectedError())) is errors.ProviderConnectionError
    assert type(ours(TimeoutError())) is errors.ProviderTimeoutError


def test_a_status_that_is_none() -> None:
    assert type(ours(sdk.APIError(None, {"error": {"message": "?"}}))) is errors.ProviderServerError  # type: ignore[arg-type]  # as over a socket
