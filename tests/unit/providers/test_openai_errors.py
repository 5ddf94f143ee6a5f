"""Every exception of the SDK and of the layers under it becomes one of ours, and which."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import openai
import pytest

from perdure import errors
from perdure.providers.openai_errors import translate
from perdure.providers.settings import SUPPORT
from perdure.types.redaction import Redaction

KEY = "sk-proj-abcdefghij"
REQUEST = httpx2.Request("POST", "https://api.test/v1/chat/completions", headers={"authorization": f"Bearer {KEY}"})


def exceptions_of(module: Any) -> Iterator[type[Exception]]:
    for name in sorted(vars(module)):
        value = getattr(module, name)
        # Not isinstance: it asks openai's proxies for their class, and each imports the part of the SDK it stands for.
        if issubclass(type(value), type) and issubclass(value, Exception) and not name.startswith("_"):
            yield value


def make(cls: type[Exception], status: int = 400, body: Any = None, headers: dict[str, str] | None = None) -> Exception:
    """An instance of any of them, with the key wherever it can get."""
    response = httpx2.Response(status, request=REQUEST, headers=headers)
    attempts: list[Any] = [
        lambda: cls(f"x {KEY}", response=response, body=body),  # type: ignore[call-arg]
        lambda: cls(response=response, body=body),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}", REQUEST, body=body),  # type: ignore[call-arg]
        lambda: cls(message=f"x {KEY}", request=REQUEST),  # type: ignore[call-arg]
        lambda: cls(request=REQUEST),  # type: ignore[call-arg]
        lambda: cls(completion=openai.types.chat.ChatCompletion.model_construct(usage=None)),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}", unsent_messages=[]),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}", request=REQUEST, response=response),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}"),
        lambda: cls(response, body),
        lambda: cls(),
    ]
    for attempt in attempts:
        try:
            return attempt()
        except TypeError:
            continue
    raise AssertionError(f"cannot make a {cls.__name__}")


def ours(error: Exception, begun: bool = False) -> errors.ProviderError:
    return Redaction([KEY]).redact_error(translate(error, begun=begun, endpoint="api.test"))


SDK = sorted({*exceptions_of(openai), *exceptions_of(openai._exceptions)}, key=lambda cls: cls.__name__)
STRANGERS = [RuntimeError, KeyError]
BELOW = [*exceptions_of(httpx2), ssl.SSLError, OSError, TimeoutError, UnicodeError, anyio.EndOfStream, *STRANGERS]


def test_the_walk_finds_them() -> None:
    names = {cls.__name__ for cls in SDK}
    assert {"OpenAIError", "APIError", "APIStatusError", "APITimeoutError", "RateLimitError"} <= names
    assert len(SDK) >= 15
    assert len(BELOW) >= 25


@pytest.mark.parametrize("cls", [*SDK, *BELOW], ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
@pytest.mark.parametrize("begun", [False, True])
def test_the_mapping_is_total(cls: type[Exception], begun: bool) -> None:
    translated = ours(make(cls), begun)
    assert isinstance(translated, errors.ProviderError)
    if cls not in STRANGERS:
        assert type(translated) is not errors.ProviderError, "no class of its own"
    assert KEY not in repr(translated)
    assert KEY not in str(translated)


@pytest.mark.parametrize("status", [*range(300, 309), *range(400, 452), 499, *range(500, 512), 520, 529, 599])
def test_every_status_has_a_class(status: int) -> None:
    translated = ours(make(openai.APIStatusError, status))
    assert type(translated) is not errors.ProviderError
    assert translated.status == status
    assert translated.retryable == (status >= 500 or status in (408, 409, 425, 429))


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
    assert type(ours(openai.APIError("x", REQUEST, body=inner), begun=True)) is expected


@pytest.mark.parametrize(
    ("cause", "begun", "expected"),
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
def test_connections(cause: Exception | None, begun: bool, expected: type[errors.ProviderError]) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = cause
    translated = ours(error, begun)
    assert type(translated) is expected
    assert KEY not in str(translated)


def test_certificates_get_their_own_hint() -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    assert "SSL_CERT_FILE" in (ours(error).hint or "")


def test_json_errors_are_malformed_replies() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert type(ours(caught.value)) is errors.MalformedReplyError


def test_masked_keys_of_the_api_are_masked_whole() -> None:
    translated = ours(make(openai.AuthenticationError, 401, body("Incorrect API key provided: sk-abc***wxyz. You can")))
    assert "wxyz" not in str(translated)
    assert "You can" in str(translated)


def test_long_messages_are_cut() -> None:
    assert len(str(ours(make(openai.BadRequestError, 400, body("x" * 100_000))))) < 1000


def test_every_canonical_setting_is_a_setting() -> None:
    assert all(SUPPORT.values())
