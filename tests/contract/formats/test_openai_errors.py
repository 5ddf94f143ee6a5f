"""Which of our errors the SDK's become; that none is left out is in the contract."""

from __future__ import annotations

import ssl
from typing import Any

import httpx2
import openai
import pytest

from perdure import errors
from perdure.providers.sdk import translate_error
from perdure.providers.settings import SETTING_PROVIDERS
from perdure.types.redaction import Redaction
from tests.support.adapters import KEY
from tests.support.exceptions import REQUEST, make


def ours(error: Exception, reply_started: bool = False) -> errors.ProviderError:
    return Redaction([KEY]).redact_error(translate_error(error, reply_started=reply_started, endpoint="api.test"))


def body(message: str = "", code: str | None = None, type: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "type": type, "param": None}}


CASES: list[tuple[int, Any, type[errors.ProviderError]]] = [
    (401, body("Incorrect API key provided"), errors.AuthenticationError),
    (400, body("API key not valid. Please pass a valid API key."), errors.AuthenticationError),
    (400, [body("API key not valid.")], errors.AuthenticationError),
    (402, body("Insufficient balance"), errors.PermissionDeniedError),
    (403, body("Country not supported"), errors.PermissionDeniedError),
    (404, body("The model `x` does not exist", "model_not_found"), errors.ModelNotFoundError),
    (400, body("The model `x` does not exist", "model_not_found"), errors.ModelNotFoundError),
    (400, body("nope"), errors.BadRequestError),
    (400, body("x", "context_length_exceeded"), errors.ContextLengthError),
    (400, body("This model's maximum context length is 8192 tokens."), errors.ContextLengthError),
    (400, body("prompt is too long: 9 tokens > 8 maximum"), errors.ContextLengthError),
    (422, body("the request exceeds the available context size"), errors.ContextLengthError),
    (400, body("max_tokens is too large: 99. This model supports at most 9 completion tokens"), errors.BadRequestError),
    (400, body("flagged", "content_filter"), errors.ContentFilterError),
    (413, body("Payload too large"), errors.ContextLengthError),
    (422, body("unprocessable"), errors.BadRequestError),
    (429, body("slow down", "rate_limit_exceeded"), errors.RateLimitError),
    (
        429,
        body("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
        errors.PermissionDeniedError,
    ),
    (500, body("oops"), errors.ProviderServerError),
    (502, "<html>Bad gateway</html>", errors.ProviderServerError),
    (503, body("busy"), errors.OverloadedError),
    (529, body("busy"), errors.OverloadedError),
    (504, None, errors.ProviderTimeoutError),
    (408, None, errors.ProviderTimeoutError),
    (418, {"detail": [{"loc": ["body"]}]}, errors.BadRequestError),
]


@pytest.mark.parametrize(("status", "answer", "expected"), CASES)
def test_status_and_body(status: int, answer: Any, expected: type[errors.ProviderError]) -> None:
    assert type(ours(make(openai.APIStatusError, status, answer))) is expected


def test_no_quota_says_what_to_do() -> None:
    translated = ours(make(openai.RateLimitError, 429, body("x", "insufficient_quota")))
    assert not translated.retryable
    assert translated.hint is not None
    assert "billing" in translated.hint


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ({"message": "x", "code": "rate_limit_exceeded"}, errors.RateLimitError),
        ({"message": "x", "code": 429}, errors.RateLimitError),
        ({"message": "x", "code": 503}, errors.OverloadedError),
        ({"message": "x", "type": "overloaded_error"}, errors.OverloadedError),
        ({"message": "x", "type": "invalid_request_error"}, errors.BadRequestError),
        ({"message": "x", "code": "context_length_exceeded"}, errors.ContextLengthError),
        ({"message": "x", "code": "insufficient_quota"}, errors.PermissionDeniedError),
        ({"message": "x", "type": "server_error"}, errors.ProviderServerError),
        ({"message": "x"}, errors.ProviderServerError),
        ("overloaded", errors.ProviderServerError),
        (None, errors.ProviderServerError),
    ],
)
def test_errors_in_the_stream(inner: Any, expected: type[errors.ProviderError]) -> None:
    assert type(ours(openai.APIError("x", REQUEST, body=inner), reply_started=True)) is expected


@pytest.mark.parametrize(
    ("cause", "reply_started", "expected"),
    [
        (httpx2.ConnectError("refused"), False, errors.ProviderConnectionError),
        (httpx2.ReadError("reset"), True, errors.TruncatedStreamError),
        (httpx2.RemoteProtocolError("peer closed"), True, errors.TruncatedStreamError),
        (httpx2.UnsupportedProtocol("no scheme"), False, errors.BadRequestError),
        (httpx2.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'"), False, errors.BadRequestError),
        (httpx2.DecodingError("bad gzip"), True, errors.MalformedReplyError),
        (httpx2.TooManyRedirects("x"), False, errors.BadRequestError),
        (ssl.SSLCertVerificationError("self-signed"), False, errors.ProviderConnectionError),
        (None, False, errors.ProviderConnectionError),
    ],
)
def test_connections(cause: Exception | None, reply_started: bool, expected: type[errors.ProviderError]) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = cause
    translated = ours(error, reply_started)
    assert type(translated) is expected
    assert KEY not in str(translated)


def test_certificates_get_their_own_hint() -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    assert "SSL_CERT_FILE" in (ours(error).hint or "")


def test_masked_keys_of_the_api_are_masked_whole() -> None:
    translated = ours(make(openai.AuthenticationError, 401, body("Incorrect API key provided: sk-abc***wxyz. You can")))
    assert "wxyz" not in str(translated)
    assert "You can" in str(translated)


def test_long_messages_are_cut() -> None:
    assert len(str(ours(make(openai.BadRequestError, 400, body("x" * 100_000))))) < 1000


def test_every_canonical_setting_is_a_setting() -> None:
    assert all(SETTING_PROVIDERS.values())
