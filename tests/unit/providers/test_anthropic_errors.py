"""Every exception of the SDK and of the layers under it becomes one of ours."""

from __future__ import annotations

import ssl
from typing import Any

import anthropic
import anyio
import httpx2
import pytest
from anthropic import _exceptions
from anthropic._error_classes import ERROR_CLASSES

from perdure import errors
from perdure.providers.anthropic_errors import translate
from perdure.types.redaction import Redaction
from tests.unit.providers.test_openai_errors import exceptions_of

KEY = "sk-ant-api03-abcdefghij"
REQUEST = httpx2.Request("POST", "https://api.test/v1/messages", headers={"authorization": f"Bearer {KEY}"})


def make(cls: type[Exception], status: int = 400, body: Any = None, headers: dict[str, str] | None = None) -> Exception:
    """An instance of any of them, with the key wherever it can get."""
    response = httpx2.Response(status, request=REQUEST, headers=headers)
    attempts: list[Any] = [
        lambda: cls(f"x {KEY}", response=response, body=body),  # type: ignore[call-arg]
        lambda: cls(response=response, body=body),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}", REQUEST, body=body),  # type: ignore[call-arg]
        lambda: cls(message=f"x {KEY}", request=REQUEST),  # type: ignore[call-arg]
        lambda: cls(request=REQUEST),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}", request=REQUEST, response=response),  # type: ignore[call-arg]
        lambda: cls(f"x {KEY}"),
        lambda: cls(),
    ]
    for attempt in attempts:
        try:
            return attempt()
        except TypeError:
            continue
    raise AssertionError(f"cannot make a {cls.__name__}")


def ours(error: Exception, begun: bool = False) -> errors.ProviderError:
    return Redaction([KEY]).redact_error(
        translate(error, begun=begun, endpoint="api.test", key_name="ANTHROPIC_API_KEY")
    )


SDK = sorted(
    {*exceptions_of(anthropic), *exceptions_of(_exceptions), *ERROR_CLASSES.values()}, key=lambda cls: cls.__name__
)
STRANGERS = [RuntimeError, KeyError]
BELOW = [*exceptions_of(httpx2), ssl.SSLError, OSError, TimeoutError, UnicodeError, anyio.EndOfStream, *STRANGERS]


def test_the_walk_finds_them() -> None:
    names = {cls.__name__ for cls in SDK}
    assert {"AnthropicError", "APIError", "APIStatusError", "APITimeoutError", "OverloadedError"} <= names
    assert len(SDK) >= 25


@pytest.mark.parametrize("cls", [*SDK, *BELOW], ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
@pytest.mark.parametrize("begun", [False, True])
def test_the_mapping_is_total(cls: type[Exception], begun: bool) -> None:
    translated = ours(make(cls), begun)
    assert isinstance(translated, errors.ProviderError)
    if cls not in STRANGERS:
        assert type(translated) is not errors.ProviderError, "no class of its own"
    assert KEY not in f"{translated!r} {translated}"


def body(type: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": type, "message": message, "details": {"error_code": "x"}}}


CASES: list[tuple[int, Any, type[errors.ProviderError]]] = [
    (401, body("authentication_error"), errors.AuthenticationError),
    (402, body("billing_error"), errors.PermissionDeniedError),
    (400, body("invalid_request_error", "Your credit balance is too low"), errors.PermissionDeniedError),
    (403, body("permission_error"), errors.PermissionDeniedError),
    (404, body("not_found_error", "model: claude-x"), errors.ModelNotFoundError),
    (400, body("invalid_request_error"), errors.BadRequestError),
    (400, body("invalid_request_error", "Output blocked by content filtering policy"), errors.ContentFilterError),
    (413, body("request_too_large"), errors.ContextLengthError),
    (429, body("rate_limit_error"), errors.RateLimitError),
    (500, body("api_error"), errors.ProviderServerError),
    (504, body("timeout_error"), errors.ProviderTimeoutError),
    (529, body("overloaded_error"), errors.OverloadedError),
    (502, "<html>Bad gateway</html>", errors.ProviderServerError),
    (200, body("overloaded_error"), errors.OverloadedError),
    (200, body("billing_error"), errors.PermissionDeniedError),
    (200, "no JSON", errors.ProviderServerError),
]


@pytest.mark.parametrize(("status", "said", "cls"), CASES)
def test_statuses_and_types(status: int, said: Any, cls: type[errors.ProviderError]) -> None:
    assert type(ours(make(anthropic.APIStatusError, status, said))) is cls


def test_a_wait_is_taken_from_the_headers() -> None:
    limited = make(anthropic.RateLimitError, 429, body("rate_limit_error"), {"retry-after": "7"})
    assert ours(limited).retry_after == 7.0
