"""Which of our errors the SDK's become; that none is left out is in the contract."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from perdure import errors
from perdure.providers.sdk import translate_error
from perdure.types.redaction import Redaction
from tests.support.adapters import KEY
from tests.support.exceptions import make


def ours(error: Exception, reply_started: bool = False) -> errors.ProviderError:
    return Redaction([KEY]).redact_error(
        translate_error(error, reply_started=reply_started, endpoint="api.test", key_name="ANTHROPIC_API_KEY")
    )


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
