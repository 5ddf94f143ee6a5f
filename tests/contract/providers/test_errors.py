"""Errors of an API, of its SDK and of the layers below: each becomes one of ours, and which."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable

import aiohttp
import anthropic
import anyio
import google.auth.exceptions
import httpx2
import openai
import pytest
from anthropic._error_classes import ERROR_CLASSES
from google.genai import _api_client
from google.genai import errors as google_sdk

from perdure import errors
from perdure.providers.google import translate_error as translate_google
from perdure.providers.sdk import translate_error as translate_sdk_error
from perdure.types.redaction import Redaction
from tests.servers.google import reason, retry_info
from tests.servers.model_server import Reply, error
from tests.support.adapters import KEY, Api
from tests.support.exceptions import exceptions_of, make

COMMON: list[tuple[Reply, type[errors.ProviderError]]] = [
    (error(400, f"No such field, {KEY}."), errors.BadRequestError),
    (error(401, f"Incorrect API key provided: {KEY}"), errors.AuthenticationError),
    (error(403, "Not for you."), errors.PermissionDeniedError),
    (error(404, "models/x is not found"), errors.ModelNotFoundError),
    (error(429, "Slow down.", retry_after="2"), errors.RateLimitError),
    (error(500, "Oh."), errors.ProviderServerError),
    (error(503, "The model is overloaded."), errors.OverloadedError),
    (error(504, "Too slow."), errors.ProviderTimeoutError),
    (error(529, "Overloaded."), errors.OverloadedError),
]
PAGE = Reply(status=400, body=b"<html>no</html>", headers={"content-type": "text/html"})
OPENAI: list[tuple[Reply, type[errors.ProviderError]]] = [
    (error(404, "The model `x` does not exist", code="model_not_found"), errors.ModelNotFoundError),
    (error(400, "The requested model 'x' does not exist.", code="model_not_found"), errors.ModelNotFoundError),
    (error(400, "maximum context length", code="context_length_exceeded"), errors.ContextLengthError),
    (error(429, "You exceeded.", code="insufficient_quota"), errors.PermissionDeniedError),
]
INPUT = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
ANSWERS: dict[str, list[tuple[Reply, type[errors.ProviderError]]]] = {
    "openai": [*OPENAI, (PAGE, errors.BadRequestError)],
    "openai-responses": [*OPENAI, (PAGE, errors.BadRequestError)],
    "anthropic": [
        (error(400, "prompt is too long: 200001 tokens > 200000 maximum"), errors.ContextLengthError),
        (error(400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2"), errors.ContextLengthError),
        (error(413, "Request exceeds the maximum size", "request_too_large"), errors.ContextLengthError),
        (error(404, "model: claude-x", "not_found_error"), errors.ModelNotFoundError),
        (PAGE, errors.BadRequestError),
    ],
    "google": [
        (error(400, "API key not valid.", "", reason("API_KEY_INVALID")), errors.AuthenticationError),
        (error(400, INPUT), errors.ContextLengthError),
        (PAGE, errors.BadRequestError),
    ],
    "pydantic-ai": OPENAI,
}


async def test_an_error_answer_has_its_class_and_is_not_tried_again(api: Api) -> None:
    for reply, expected in [*COMMON, *ANSWERS[api.adapter.name]]:
        api.server.reset()
        with pytest.raises(errors.ProviderError) as caught:
            await api.ask(reply)
        assert type(caught.value) is expected, f"{reply.status} {reply.error}: {caught.value!r}"
        assert caught.value.status == reply.status
        assert caught.value.retry_after == (2.0 if expected is errors.RateLimitError else None)
        assert KEY not in f"{caught.value!r} {caught.value}"
        assert "html" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)
        assert caught.value.__cause__ is None
        assert api.server.stats.requests == 1, "the SDK tried again"


QUOTA = "You exceeded your current quota, please check your plan. Please retry in 39.5s."
WAITS: dict[str, list[tuple[Reply, float]]] = {
    "openai": [(error(429, "Slow down.", retry_after_ms="1500", retry_after="9"), 1.5)],
    "openai-responses": [(error(429, "Slow down.", retry_after_ms="1500", retry_after="9"), 1.5)],
    "anthropic": [(error(429, "Slow down.", retry_after="30"), 30)],
    "google": [
        (error(429, QUOTA, "RESOURCE_EXHAUSTED", retry_info("2s")), 2),
        (error(429, "Slow down.", retry_after="3"), 3),
    ],
    "pydantic-ai": [(error(429, "Slow down.", retry_after="3"), 3)],
}


async def test_how_long_to_wait(api: Api) -> None:
    for reply, seconds in WAITS[api.adapter.name]:
        with pytest.raises(errors.RateLimitError) as caught:
            await api.ask(reply)
        assert caught.value.retry_after == seconds


STRANGERS = (RuntimeError, KeyError)
PYTHON = [ssl.SSLError, OSError, TimeoutError, UnicodeError, json.JSONDecodeError, anyio.EndOfStream, *STRANGERS]
SDKS: dict[str, tuple[Callable[..., errors.ProviderError], list[type[Exception]]]] = {
    "openai": (
        translate_sdk_error,
        [*exceptions_of(openai), *exceptions_of(openai._exceptions), *exceptions_of(httpx2)],
    ),
    "anthropic": (
        translate_sdk_error,
        [
            *(*exceptions_of(anthropic), *exceptions_of(anthropic._exceptions), *ERROR_CLASSES.values()),
            *exceptions_of(httpx2),
        ],
    ),
    "google": (
        translate_google,
        [
            *(*exceptions_of(google_sdk), _api_client.EphemeralTokenAPIKeyError),
            *(*exceptions_of(google.auth.exceptions), *exceptions_of(httpx2), *exceptions_of(aiohttp)),
        ],
    ),
}
KNOWN = {
    "openai": ("OpenAIError", "APIError", "APIStatusError", "APITimeoutError", "RateLimitError", "ConnectError"),
    "anthropic": ("AnthropicError", "APIError", "APIStatusError", "APITimeoutError", "OverloadedError"),
    "google": ("APIError", "ClientError", "ServerError", "UnknownApiResponseError", "ClientPayloadError"),
}


@pytest.mark.parametrize("sdk", SDKS)
def test_every_exception_of_an_sdk_and_of_the_layers_below_has_a_class(sdk: str) -> None:
    translate, classes = SDKS[sdk]
    assert set(KNOWN[sdk]) <= {cls.__name__ for cls in classes}, "the walk finds them"
    assert len(classes) >= 40
    for cls in {*classes, *PYTHON}:
        for reply_started in (False, True):
            found = Redaction([KEY]).redact_error(
                translate(make(cls), reply_started=reply_started, endpoint="api.test")
            )
            assert isinstance(found, errors.ProviderError)
            assert cls in STRANGERS or type(found) is not errors.ProviderError, f"{cls} has no class of its own"
            assert KEY not in f"{found!r} {found}", cls


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_every_status_has_a_class(sdk: str) -> None:
    cls = {"openai": openai, "anthropic": anthropic}[sdk].APIStatusError
    for status in [*range(300, 309), *range(400, 452), 499, *range(500, 512), 520, 529, 599]:
        found = SDKS[sdk][0](make(cls, status), reply_started=False, endpoint="api.test")
        assert type(found) is not errors.ProviderError
        assert found.status == status
        assert found.retryable == (status >= 500 or status in (408, 409, 425, 429, 499)), status
