"""What the layers under the SDKs raise (httpx, httpx2, aiohttp, ssl, sockets), as ``perdure.errors``.

The classes are known by name and package, so nothing is imported: an SDK brings its own layers, and another SDK others.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

from ..errors import (
    BadRequestError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    TruncatedStreamError,
)
from .classify import by_status, shortened

_LAYERS = ("httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp")
"""httpx does not wrap all that the others raise below it."""
_TIMEOUTS = {"TimeoutException", "ServerTimeoutError", "PoolTimeout"}
_UNSENDABLE = {"UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "CookieConflict", "NonHttpUrlClientError"}
_UNREADABLE = {"DecodingError", "ContentTypeError", "ContentEncodingError", "DecompressSizeError"}
_TOO_MANY_DIGITS = "for integer string conversion"
"""In what the JSON parser raises for a number of more digits than Python reads: a plain ValueError."""


def what(error: BaseException) -> str:
    """The error's class and text, for people."""
    text = shortened(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def transport_error(error: Exception, begun: bool, endpoint: str) -> ProviderError | None:
    """What an exception means that no SDK has wrapped; None for one that does not come from the layers below.

    ``begun``: the reply had started; ``endpoint`` names the API for people.
    """
    kinds = _kinds(error)
    response: Any = getattr(error, "response", None)
    if "HTTPStatusError" in kinds and response is not None:
        return by_status(response.status_code, None, response.headers, endpoint)
    if "ClientResponseError" in kinds and not kinds & {"ContentTypeError", "TooManyRedirects"}:
        status, headers = getattr(error, "status", 0), getattr(error, "headers", None)
        return by_status(status, None, headers if isinstance(headers, Mapping) else {}, endpoint)
    if isinstance(error, TimeoutError) or kinds & _TIMEOUTS:
        return timed_out(error, begun, endpoint)
    if isinstance(error, json.JSONDecodeError | UnicodeError | RecursionError) or _TOO_MANY_DIGITS in str(error):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({what(error)})")
    return connection(error, begun, endpoint) if kinds or isinstance(error, OSError | EOFError) else None


def timed_out(error: Exception, begun: bool, endpoint: str) -> ProviderError:
    """What an exception means that its SDK calls a timeout."""
    if (lost := _lost_connection(error)) is not None:
        return connection(lost, begun, endpoint)
    return ProviderTimeoutError(f"{endpoint} did not answer in time ({what(error)})")


def connection(cause: BaseException, begun: bool, endpoint: str) -> ProviderError:
    """What became of the connection, by the exception that lies at the bottom of it."""
    kinds = _kinds(cause)
    if kinds & _UNSENDABLE:
        # The request cannot be sent as it stands: a bad base_url, or a key with a line break in it.
        return BadRequestError(
            f"The request to {endpoint} cannot be sent ({what(cause)})",
            hint="Check base_url and the API key.",
        )
    if kinds & _UNREADABLE:
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be decoded ({what(cause)})")
    if "TooManyRedirects" in kinds:
        return BadRequestError(f"{endpoint} redirects without end", hint="Check base_url.")
    if begun:
        return TruncatedStreamError(f"{endpoint} broke the connection in the middle of the reply ({what(cause)})")
    hint = "Check base_url, the network and the proxy variables."
    if isinstance(cause, ssl.SSLError) or "CERTIFICATE" in str(cause).upper():
        hint = "The TLS certificate is not trusted here: SSL_CERT_FILE names a bundle with the right authority."
    return ProviderConnectionError(f"{endpoint} cannot be reached ({what(cause)})", hint=hint)


def _kinds(error: BaseException) -> set[str]:
    """Names of its classes that belong to the layers below."""
    return {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in _LAYERS}


def _lost_connection(error: BaseException | None) -> BaseException | None:
    """The aiohttp error behind one that is called a timeout.

    The SDKs' aiohttp transport takes all that happens to a connection for one, also a refusal; the difference is
    whether the call may have been paid for.
    """
    while error is not None:
        if type(error).__module__.startswith("aiohttp.") and not isinstance(error, TimeoutError):
            return error
        error = error.__cause__
    return None
