"""What APIs say when they refuse, and what it means: the wordings of all the vendors in one table."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from perdure import errors
from perdure.providers.errors import build_status_error, build_stream_error, mark_refused_content
from perdure.types.redaction import Redaction


def anthropic(kind: str, message: str = "x") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def google(code: int, status: str, message: str = "x", *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def info(reason: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}


def wait(delay: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


QUOTA = "You exceeded your current quota, please check your plan and billing details."

CASES: list[tuple[int, Any, type[errors.ProviderError]]] = [
    (401, anthropic("authentication_error", "invalid x-api-key"), errors.AuthenticationError),
    (402, anthropic("billing_error"), errors.PermissionDeniedError),
    (
        400,
        anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        errors.PermissionDeniedError,
    ),
    (403, anthropic("permission_error"), errors.PermissionDeniedError),
    (404, anthropic("not_found_error", "model: claude-0"), errors.ModelNotFoundError),
    (
        400,
        anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        errors.ContextLengthError,
    ),
    (
        400,
        anthropic(
            "invalid_request_error", "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
        ),
        errors.ContextLengthError,
    ),
    (
        400,
        anthropic("invalid_request_error", "max_tokens: 99999 > 8192, which is the maximum number of output tokens"),
        errors.BadRequestError,
    ),
    (
        400,
        anthropic("invalid_request_error", "Output blocked by content filtering policy"),
        errors.ContentFilterError,
    ),
    (
        400,
        anthropic("invalid_request_error", "messages.1: `tool_use` ids were found without `tool_result` blocks"),
        errors.BadRequestError,
    ),
    (413, anthropic("request_too_large", "Request exceeds the maximum size"), errors.ContextLengthError),
    (429, anthropic("rate_limit_error"), errors.RateLimitError),
    (500, anthropic("api_error"), errors.ProviderServerError),
    (504, anthropic("timeout_error"), errors.ProviderTimeoutError),
    (529, anthropic("overloaded_error", "Overloaded"), errors.OverloadedError),
    (
        400,
        google(400, "INVALID_ARGUMENT", "API key not valid.", info("API_KEY_INVALID")),
        errors.AuthenticationError,
    ),
    (400, google(400, "INVALID_ARGUMENT", "API key expired."), errors.AuthenticationError),
    (
        403,
        google(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers."),
        errors.AuthenticationError,
    ),
    (403, google(403, "PERMISSION_DENIED", "Permission denied."), errors.PermissionDeniedError),
    (
        400,
        google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
        errors.PermissionDeniedError,
    ),
    (
        404,
        google(404, "NOT_FOUND", "models/gemini-0 is not found for API version v1beta"),
        errors.ModelNotFoundError,
    ),
    (
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
        ),
        errors.ContextLengthError,
    ),
    (
        400,
        google(400, "INVALID_ARGUMENT", "Please ensure that the number of function response parts is equal"),
        errors.BadRequestError,
    ),
    (429, google(429, "RESOURCE_EXHAUSTED", QUOTA, wait("17s")), errors.RateLimitError),
    (429, google(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted"), errors.RateLimitError),
    (
        429,
        google(429, "RESOURCE_EXHAUSTED", f"{QUOTA}\n* Quota exceeded for metric: m, limit: 0", wait("17s")),
        errors.PermissionDeniedError,
    ),
    (
        429,
        google(429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted."),
        errors.PermissionDeniedError,
    ),
    (500, google(500, "INTERNAL"), errors.ProviderServerError),
    (503, google(503, "UNAVAILABLE", "The model is overloaded."), errors.OverloadedError),
    (504, google(504, "DEADLINE_EXCEEDED"), errors.ProviderTimeoutError),
]


@pytest.mark.parametrize(("status", "body", "expected"), CASES)
def test_answers(status: int, body: Any, expected: type[errors.ProviderError]) -> None:
    error = build_status_error(status, body, {}, "api.test")
    assert type(error) is expected
    assert error.status == status


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, errors.OverloadedError),
        (anthropic("overloaded_error"), errors.OverloadedError),
        (anthropic("rate_limit_error"), errors.RateLimitError),
        (anthropic("api_error"), errors.ProviderServerError),
        (anthropic("invalid_request_error", "prompt is too long: 9 tokens > 8"), errors.ContextLengthError),
        (google(503, "UNAVAILABLE"), errors.OverloadedError),
        ([google(429, "RESOURCE_EXHAUSTED", "x", wait("3s"))], errors.RateLimitError),
        ({"status": "UNAVAILABLE", "message": "x"}, errors.OverloadedError),
        ({"code": "server_error", "message": "x"}, errors.ProviderServerError),
        ({"code": "invalid_prompt", "message": "x"}, errors.BadRequestError),
        ({"code": "image_parse_error", "message": "x"}, errors.BadRequestError),
        ({"code": "image_content_policy_violation", "message": "x"}, errors.ContentFilterError),
        ({"code": "vector_store_timeout", "message": "x"}, errors.ProviderServerError),
    ],
)
def test_errors_in_the_stream(inner: Any, expected: type[errors.ProviderError]) -> None:
    assert type(build_stream_error(inner, "", "api.test")) is expected


def test_google_says_how_long_to_wait() -> None:
    body = google(
        429, "RESOURCE_EXHAUSTED", f"{QUOTA} Please retry in 40s.", info("RATE_LIMIT_EXCEEDED"), wait("17.5s")
    )
    error = build_status_error(429, body, {"retry-after": "3"}, "api.test")
    assert error.retry_after == 17.5
    assert build_status_error(400, google(400, "INVALID_ARGUMENT", "x", wait("3s")), {}, "api.test").retry_after is None
    said = build_status_error(429, google(429, "RESOURCE_EXHAUSTED", "Please retry in 40s."), {}, "api.test")
    assert said.retry_after == 40


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refused_key_names_where_it_is(status: int) -> None:
    body = anthropic("authentication_error", "invalid_api_key")
    error = build_status_error(status, body, {}, "api.test", key_name="ANTHROPIC_API_KEY")
    assert "ANTHROPIC_API_KEY" in (error.hint or "")
    inside = build_stream_error({"type": "authentication_error"}, "", "api.test", key_name="ANTHROPIC_API_KEY")
    assert "ANTHROPIC_API_KEY" in (inside.hint or "")


def test_metadata_without_store_says_what_to_do() -> None:
    body = {"error": {"message": "The 'metadata' parameter is only allowed when 'store' is enabled."}}
    assert "{'store': True}" in (build_status_error(400, body, {}, "api.test").hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "key sk-ant-REDACTED is wrong",
        "GET https://x/v1?alt=sse&key=0123456789&x=1",
        "API key AIzaSyREDACTED0123456789 not valid",
        "Bearer 0123456789",
        "the secret is s3cr3t-0123456789",
    ],
)
def test_no_key_is_shown(text: str) -> None:
    error = Redaction(["s3cr3t-0123456789"]).redact_error(errors.ProviderError(text))
    assert "0123456789" not in f"{error} {error.args}"


PIXEL, CAT = b"pixel", b"cat"
BODY = {
    "model": "m",
    "tools": [{"name": "t"}],
    "generationConfig": {"seed": 1},
    "messages": [
        {"role": "user", "content": "Hi."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look."},
                {"type": "image", "source": {"type": "base64", "data": base64.b64encode(PIXEL).decode()}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(CAT).decode()}},
            ],
        },
    ],
}
BODY |= {"input": BODY["messages"], "contents": [{"parts": BODY["messages"][1]["content"]}]}


def violation(field: str) -> dict[str, Any]:
    violations = [{"field": field, "description": "x"}]
    return {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}


def openai(message: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            anthropic("invalid_request_error", "messages.1.content.1.image.source.base64: image cannot be empty"),
            {PIXEL},
        ),
        (anthropic("invalid_request_error", "messages.1.content: at most 1 image"), {b"Look.", PIXEL, CAT}),
        (anthropic("invalid_request_error", "messages.0: all messages must have non-empty content"), {b"Hi."}),
        (anthropic("invalid_request_error", "Could not process image"), None),
        (anthropic("invalid_request_error", "messages: roles must alternate"), None),
        (anthropic("invalid_request_error", "messages.9.content.1: x"), None),
        (anthropic("invalid_request_error", "tools.0.custom.input_schema: Field required"), set()),
        (anthropic("invalid_request_error", "Output blocked by content filtering policy"), set()),
        (anthropic("invalid_request_error", "AiError: Invalid data for image"), None),
        (openai("Invalid 'input[1].content[2].image_url'.", "input[1].content[2].image_url"), {CAT}),
        (openai("Invalid image.", "messages.[1].content.[2].image_url"), {CAT}),
        (openai("Expected an image at 'messages[1].content[1]'.", "messages"), {PIXEL}),
        (openai("The image data you provided does not represent a valid image.", "input"), None),
        (openai("No.", "messages[" + "9" * 5000 + "]"), None),
        (openai("Filtered due to the prompt", "prompt"), None),
        (openai("Unknown tool", "tools[0].name"), set()),
        (google(400, "INVALID_ARGUMENT", "Bad", violation("contents[0].parts[1].inline_data.data")), {PIXEL}),
        (google(400, "INVALID_ARGUMENT", "* GenerateContentRequest.contents[0].parts[2]: x"), {CAT}),
        (google(400, "INVALID_ARGUMENT", "Bad", violation("generation_config.seed")), set()),
        (google(400, "INVALID_ARGUMENT", "Unable to process input image. Please retry"), None),
    ],
)
def test_what_of_a_request_an_error_names(body: Any, named: set[bytes] | None) -> None:
    error = mark_refused_content(build_status_error(400, body, {}, "api"), json.dumps(BODY).encode())
    if not named:
        assert error.refused == (None if named is None else frozenset())
        return
    contents = {hashlib.sha256(one).hexdigest(): one for one in (PIXEL, CAT, b"Look.", b"Hi.")}
    assert {contents[digest] for digest in error.refused or () if digest in contents} == named


def test_a_model_that_takes_no_images_is_not_a_missing_model() -> None:
    body = {"error": {"message": "No endpoints found that support image input", "code": 404}}
    assert type(build_status_error(404, body, {}, "api")) is errors.BadRequestError


@pytest.mark.parametrize("field", ["message", "code"])
def test_an_error_that_is_nested_too_deep_to_be_shown_is_classified(field: str) -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    error = build_status_error(429, {"error": {"message": "slow down", field: deep}}, {"retry-after": "3"}, "api.test")
    assert isinstance(error, errors.RateLimitError)
    assert (error.retry_after, str(error)) == (3, "api.test answered 429")
