"""The one translation of what the openai SDK and the layers under it raise into ``perdure.errors``.

Never chains the original: it holds the request, and with it the API key.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from typing import Any

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    MalformedReplyError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderConnectionError,
    ProviderError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from .retry_after import retry_after

_CONTEXT = re.compile(
    r"context[ _](length|window|size)|maximum context|(prompt|input) is too long|too many (input )?tokens"
    r"|reduce the length of the (messages|input|prompt)"
    r"|exceeds? the (model's |maximum |available )*(context|input)",
    re.IGNORECASE,
)
_FILTER = re.compile(r"content_filter|content_policy|responsible_?ai|moderation", re.IGNORECASE)
_BAD_KEY = re.compile(r"invalid_api_key|(api|authentication)[ _]key.{0,40}(invalid|not valid|incorrect)", re.IGNORECASE)
_QUOTA = re.compile(r"insufficient_quota|billing_hard_limit|exceeded your current quota", re.IGNORECASE)
_NO_MODEL = re.compile(r"model_not_found|model .{0,80}(does not exist|not found)", re.IGNORECASE)
_KEY_LIKE = re.compile(r"\b(sk|rk|pk|gsk|xai)-[\w*.-]{6,}|(?<=Bearer )[^\s'\"]+", re.IGNORECASE)
_TRANSPORTS = ("anyio", "httpcore2", "h11")
"""What lies under httpx2, which does not wrap all that it raises."""
_LONGEST = 600
"""Characters of an API's own message that we pass on."""

_BY_STATUS: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    402: PermissionDeniedError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    408: ProviderTimeoutError,
    409: ProviderServerError,  # a lock that timed out on their side: the SDK retries it too
    413: ContextLengthError,
    425: OverloadedError,
    429: RateLimitError,
    503: OverloadedError,
    504: ProviderTimeoutError,
    529: OverloadedError,
}
_BY_TYPE: dict[str, int] = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "tokens": 429,
    "requests": 429,
    "overloaded_error": 503,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "badrequesterror": 400,
}
"""Status of an error that came inside the stream, by its code or type."""


def redact(text: str, secret: str | None) -> str:
    """``text`` without ``secret`` and without anything else that looks like a key."""
    if secret:
        text = text.replace(secret, "…")
    return _KEY_LIKE.sub("…", text)


def translate(error: Exception, *, secret: str | None, begun: bool, endpoint: str) -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` names the API for people."""
    if isinstance(error, ProviderError):
        return error
    translated = _translate(error, begun, endpoint)
    translated.message = redact(translated.message, secret)
    translated.args = (translated.message,)
    return translated


def _lost_connection(error: BaseException | None) -> BaseException | None:
    """The aiohttp error behind one that is called a timeout. The SDK's aiohttp transport takes all that happens to a
    connection for one, also a refusal; the difference is whether the call may have been paid for."""
    while error is not None:
        if type(error).__module__.startswith("aiohttp.") and not isinstance(error, TimeoutError):
            return error
        error = error.__cause__
    return None


def _translate(error: Exception, begun: bool, endpoint: str) -> ProviderError:
    import httpx2  # comes with the SDK
    import openai  # imported with the first call, not with perdure

    if isinstance(error, openai.APIResponseValidationError):
        return MalformedReplyError(f"{endpoint} sent a reply of the wrong shape: {error.message}")
    if isinstance(error, openai.APIStatusError):
        return by_status(error.status_code, error.body, error.response.headers, endpoint)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException | TimeoutError):
        if (lost := _lost_connection(error)) is not None:
            return _connection(lost, begun, endpoint)
        return ProviderTimeoutError(f"{endpoint} did not answer in time ({_what(error)})")
    if isinstance(error, openai.APIConnectionError):
        return _connection(error.__cause__ or error, begun, endpoint)
    if isinstance(error, openai.APIError):
        return in_stream(error.body, error.message, endpoint)
    if isinstance(error, openai.ContentFilterFinishReasonError):
        return ContentFilterError(f"{endpoint}: the content filter refused the reply")
    if isinstance(error, openai.LengthFinishReasonError | json.JSONDecodeError | UnicodeError | httpx2.DecodingError):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({_what(error)})")
    if isinstance(error, httpx2.HTTPStatusError):
        return by_status(error.response.status_code, None, error.response.headers, endpoint)
    if isinstance(error, httpx2.HTTPError | httpx2.StreamError | OSError | httpx2.InvalidURL | httpx2.CookieConflict):
        return _connection(error, begun, endpoint)
    if type(error).__module__.partition(".")[0] in _TRANSPORTS:
        return _connection(error, begun, endpoint)
    return _rest(error, endpoint)


def _rest(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of the SDK that no chat completion raises today, and strangers."""
    import openai  # see above

    if isinstance(error, openai.WebSocketConnectionClosedError | openai.WebSocketQueueFullError):
        return ProviderConnectionError(f"{endpoint}: {_what(error)}")
    if type(error).__name__ == "SubjectTokenProviderError":
        return AuthenticationError(f"{endpoint}: {_what(error)}")
    if isinstance(error, openai.OpenAIError | openai.InvalidWebhookSignatureError):
        return BadRequestError(f"{endpoint}: {_what(error)}")
    return ProviderError(f"{endpoint}: unexpected {_what(error)}")


def _what(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__


def _connection(cause: BaseException, begun: bool, endpoint: str) -> ProviderError:
    import httpx2  # comes with the SDK

    if isinstance(
        cause, httpx2.UnsupportedProtocol | httpx2.InvalidURL | httpx2.LocalProtocolError | httpx2.CookieConflict
    ):
        # The request cannot be sent as it stands: a bad base_url, or a key with a line break in it.
        return BadRequestError(
            f"The request to {endpoint} cannot be sent ({_what(cause)})",
            hint="Check base_url and the API key.",
        )
    if isinstance(cause, httpx2.DecodingError):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be decoded ({_what(cause)})")
    if isinstance(cause, httpx2.TooManyRedirects):
        return BadRequestError(f"{endpoint} redirects without end", hint="Check base_url.")
    if begun:
        return TruncatedStreamError(f"{endpoint} broke the connection in the middle of the reply ({_what(cause)})")
    hint = "Check base_url, the network and the proxy variables."
    if isinstance(cause, ssl.SSLError) or "CERTIFICATE" in str(cause).upper():
        hint = "The TLS certificate is not trusted here: SSL_CERT_FILE names a bundle with the right authority."
    return ProviderConnectionError(f"{endpoint} cannot be reached ({_what(cause)})", hint=hint)


def _details(body: object) -> tuple[str, str]:
    """Message, and code and type as one text, of an error body in any of the usual shapes."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]  # Google's compatible endpoint wraps its error in a list
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping | str):
        body = body["error"]
    if not isinstance(body, Mapping):
        text = body if isinstance(body, str) else ""
        return ("" if text.lstrip().startswith("<") else text[:_LONGEST]), ""
    message = body.get("message") or body.get("detail") or ""
    labels = " ".join(str(body[key]) for key in ("code", "type", "status") if body.get(key) not in (None, ""))
    return (message if isinstance(message, str) else json.dumps(message, default=str))[:_LONGEST], labels


def by_status(status: int, body: object, headers: Mapping[str, str], endpoint: str) -> ProviderError:
    """The error of an HTTP answer of ``status`` (or of an error in the stream that amounts to it)."""
    message, labels = _details(body)
    said = f"{labels} {message}"
    cls, hint = _classify(status, said)
    text = f"{endpoint} answered {status}" + (f" ({labels})" if labels else "") + (f": {message}" if message else "")
    wait = retry_after(headers, message) if cls.retryable else None
    return cls(text, hint=hint, retry_after=wait, status=status)


def _classify(status: int, said: str) -> tuple[type[ProviderError], str | None]:
    if status == 429 and _QUOTA.search(said):
        # A wait does not help: somebody has to pay.
        return (
            PermissionDeniedError,
            "The account has no quota left: check its plan and billing, then resume the run.",
        )
    if status in (400, 413, 422):
        for pattern, cls in ((_CONTEXT, ContextLengthError), (_FILTER, ContentFilterError)):
            if pattern.search(said):
                return cls, None
    if status in (400, 401) and (status == 401 or _BAD_KEY.search(said)):
        return (
            AuthenticationError,
            "The API key is wrong, or not for this endpoint. Check the key and base_url.",
        )
    if status == 404 or (status == 400 and _NO_MODEL.search(said)):
        return ModelNotFoundError, "Check the model's name and base_url."
    if status in _BY_STATUS:
        return _BY_STATUS[status], None
    if status >= 500:
        return ProviderServerError, None
    return BadRequestError, ("Check base_url." if status < 400 or status == 405 else None)


def in_stream(body: Any, message: str, endpoint: str) -> ProviderError:
    """The error of an error object in the stream, whose HTTP status was 200."""
    inner = body if isinstance(body, Mapping) else {"message": body if isinstance(body, str) else message}
    status = 500
    for key in ("code", "status", "status_code", "type"):
        value = str(inner.get(key)).lower()
        known = int(value) if value.isdecimal() else _BY_TYPE.get(value, 0)
        if 400 <= known < 600:
            status = known
            break
    said = f"{_details(inner)[1]} {_details(inner)[0]}"
    if status == 500 and _QUOTA.search(said):
        status = 429
    elif status == 500 and (_CONTEXT.search(said) or _FILTER.search(said)):
        status = 400
    error = by_status(status, inner, {}, endpoint)
    error.message = error.message.replace(f"answered {status}", "broke off the reply with an error", 1)
    error.args = (error.message,)
    return error
