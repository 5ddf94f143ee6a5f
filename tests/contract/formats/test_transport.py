"""Exceptions of the layers below, of every SDK's: none is left without a class."""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
from types import ModuleType, SimpleNamespace
from typing import Any

import aiohttp
import aiohttp.http_exceptions
import anyio
import httpcore
import httpcore2
import httpx
import httpx2
import pytest

from perdure import errors
from perdure.providers.errors import build_connection_error, build_timeout_error, translate_transport_error


def exceptions_of(module: ModuleType) -> list[type[Exception]]:
    found = [value for name, value in sorted(vars(module).items()) if inspect.isclass(value) and name[0] != "_"]
    return [cls for cls in found if issubclass(cls, Exception) and not issubclass(cls, Warning)]


def make(cls: type[Exception]) -> Exception:
    """One of them, however it wants to be made; all that we look at is its class, text and status."""
    error = cls.__new__(cls)
    error.args = ("x",)
    # What some need before they can be shown.
    named = SimpleNamespace(host="api.test", port=443, ssl=None, real_url="http://api.test", is_ssl=True)
    known: dict[str, Any] = {"request_info": named, "status": 502, "message": "x", "headers": None, "history": ()}
    known |= {"_conn_key": named, "_os_error": OSError("x"), "_certificate_error": OSError("x"), "_path": "x"}
    known |= {
        "expected": b"",
        "got": b"",
        "host": "api.test",
        "port": 443,
        "_url": "x",
        "_description": "x",
    }
    known |= {"response": SimpleNamespace(status_code=502, headers={})}
    if not isinstance(error, aiohttp.ClientResponseError):
        known["code"] = 400
    for name, value in known.items():
        try:
            setattr(error, name, value)
        except AttributeError:
            continue
    return error


ALL = [
    cls
    for module in (httpx, httpx2, httpcore, httpcore2, aiohttp, aiohttp.http_exceptions, anyio)
    for cls in exceptions_of(module)
    if not cls.__name__.startswith(("WS", "WebSocket"))
]


def test_the_mapping_is_total() -> None:
    assert len(ALL) > 100
    for cls in ALL:
        for reply_started in (False, True):
            translated = translate_transport_error(make(cls), reply_started, "api.test")
            assert translated is not None, cls
            assert type(translated) is not errors.ProviderError, cls


@pytest.mark.parametrize("layer", [httpx, httpx2], ids=lambda layer: layer.__name__)
@pytest.mark.parametrize(
    ("name", "reply_started", "expected"),
    [
        ("ConnectError", False, errors.ProviderConnectionError),
        ("ReadError", True, errors.TruncatedStreamError),
        ("ReadTimeout", True, errors.ProviderTimeoutError),
        ("ConnectTimeout", False, errors.ProviderTimeoutError),
        ("UnsupportedProtocol", False, errors.BadRequestError),
        ("InvalidURL", False, errors.BadRequestError),
        ("DecodingError", True, errors.MalformedReplyError),
        ("TooManyRedirects", False, errors.BadRequestError),
    ],
)
def test_httpx(layer: ModuleType, name: str, reply_started: bool, expected: type[errors.ProviderError]) -> None:
    assert type(translate_transport_error(make(getattr(layer, name)), reply_started, "api.test")) is expected


@pytest.mark.parametrize(
    ("cls", "reply_started", "expected"),
    [
        (aiohttp.ClientConnectionError, False, errors.ProviderConnectionError),
        (aiohttp.ServerDisconnectedError, True, errors.TruncatedStreamError),
        (aiohttp.ClientPayloadError, True, errors.TruncatedStreamError),
        (aiohttp.SocketTimeoutError, True, errors.ProviderTimeoutError),
        (aiohttp.InvalidURL, False, errors.BadRequestError),
        (aiohttp.ClientResponseError, False, errors.ProviderServerError),
        (aiohttp.ContentTypeError, True, errors.MalformedReplyError),
        (aiohttp.TooManyRedirects, False, errors.BadRequestError),
    ],
)
def test_aiohttp(cls: type[Exception], reply_started: bool, expected: type[errors.ProviderError]) -> None:
    assert type(translate_transport_error(make(cls), reply_started, "api.test")) is expected


@pytest.mark.parametrize(
    ("error", "reply_started", "expected"),
    [
        (ssl.SSLError("x"), False, errors.ProviderConnectionError),
        (ConnectionResetError("x"), True, errors.TruncatedStreamError),
        (asyncio.IncompleteReadError(b"", 3), True, errors.TruncatedStreamError),
        (TimeoutError(), False, errors.ProviderTimeoutError),
        (json.JSONDecodeError("x", "{", 1), True, errors.MalformedReplyError),
        (UnicodeError("x"), True, errors.MalformedReplyError),
    ],
)
def test_pythons_own(error: Exception, reply_started: bool, expected: type[errors.ProviderError]) -> None:
    assert type(translate_transport_error(error, reply_started, "api.test")) is expected


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyError("x"), ValueError("x")])
def test_strangers_are_left_to_the_adapter(error: Exception) -> None:
    assert translate_transport_error(error, False, "api.test") is None


def test_a_lost_connection_is_not_a_timeout() -> None:
    """The SDKs' aiohttp transport says timeout of everything."""
    error = httpx2.ReadTimeout("x")
    error.__cause__ = make(aiohttp.ServerDisconnectedError)
    assert type(build_timeout_error(error, True, "api.test")) is errors.TruncatedStreamError
    error.__cause__ = make(aiohttp.SocketTimeoutError)
    assert type(build_timeout_error(error, True, "api.test")) is errors.ProviderTimeoutError


def test_certificates_get_their_own_hint() -> None:
    assert "SSL_CERT_FILE" in (build_connection_error(ssl.SSLError("x"), False, "api.test").hint or "")
