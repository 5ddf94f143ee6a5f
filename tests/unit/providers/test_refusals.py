"""What servers say when they refuse: too long, the model's own slip, the words behind an aggregator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import errors
from perdure.providers.errors import build_status_error, build_stream_error
from perdure.providers.refusals import MODEL_SLIP_TEXTS, TOO_LONG_TEXTS

TOO_LONG = {
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Poolside at OpenRouter": "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "parenthesised": "Input length (265330) exceeds model's maximum context length (262144).",
    "GitHub Copilot": "prompt token count of 105000 exceeds the limit of 64000",
    "Kimi": "Invalid request: Your request exceeded model token limit: 65536 (requested: 70021)",
    "DashScope": "InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "Mistral": "Prompt contains 45000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Together": "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
    "vLLM": "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens.",
    "vLLM, model length": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "llama.cpp": "the request exceeds the available context size. try increasing the context size",
    "DS4": "Prompt has 32769 tokens, but the configured context size is 32768 tokens",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "Ollama": "prompt too long; exceeded max context length by 12 tokens",
    "Groq": "Please reduce the length of the messages or completion.",
    "Anthropic": "prompt is too long: 213462 tokens > 200000 maximum",
    "Bedrock": "Input is too long for requested model.",
    "Google": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "z.ai": "Prompt 超长",
    "Hugging Face": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
}
REQUEST_TOO_LARGE = (
    "Request too large for gpt-5-mini in organization org-1 on tokens per min (TPM): Limit 30000, Requested 41234. "
    "The input or output tokens must be reduced in order to run successfully."
)


def refusal(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None, "param": None, **more}}


@pytest.mark.parametrize(
    "message",
    [
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576",
        "Input length 140000 exceeds the maximum length 131072",
        "token count exceeds the model limit",
        "the length of the content exceeds limit",
        "The maximum number of tokens is 4096, but you have 5000",
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
        "prompt_tokens_exceeded",
        "The conversation is too long for this model",
    ],
)
def test_too_long_in_words_that_no_row_has(message: str) -> None:
    for status in (400, 413, 422):
        assert type(build_status_error(status, refusal(message), {}, "api.test")) is errors.ContextLengthError


@pytest.mark.parametrize("name", TOO_LONG)
def test_too_long_in_every_wording(name: str) -> None:
    body = refusal(TOO_LONG[name])
    for status in (400, 413, 422, 429, 500):
        assert type(build_status_error(status, body, {}, "api.test")) is errors.ContextLengthError, status
    assert type(build_stream_error(body, "", "api.test")) is errors.ContextLengthError
    wrapped = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps(body)}}}
    assert type(build_status_error(400, wrapped, {}, "api.test")) is errors.ContextLengthError


def test_a_request_that_is_larger_than_a_minute_allows_is_too_long() -> None:
    error = build_status_error(429, refusal(REQUEST_TOO_LARGE, code="rate_limit_exceeded"), {}, "api.test")
    assert type(error) is errors.ContextLengthError


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (429, "Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 20000.", errors.RateLimitError),
        (429, "Too many tokens, please wait before trying again.", errors.RateLimitError),
        (429, "Too many tokens per day, please wait before trying again.", errors.RateLimitError),
        (429, "rate limit exceeded: your input tokens per minute", errors.RateLimitError),
        (500, "the context could not be read", errors.ProviderServerError),
        (400, "max_tokens: 99999 > 8192, which is the maximum number of output tokens", errors.BadRequestError),
        (400, "max_tokens exceeds the limit of 8192", errors.BadRequestError),
        (400, "Tools are too many: 200", errors.BadRequestError),
        (400, "Error in the tool choice", errors.BadRequestError),
        *(
            (400, message, errors.BadRequestError)
            for message in (
                "max_tokens is too large: 10. This model supports at most 5 completion tokens",
                "messages.3.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
                "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length 1024",
                "Invalid 'messages[2].tool_call_id': string too long. Expected a string with maximum length 40",
                "Invalid 'input[0].content': array too long. Expected an array with maximum length 100",
                "content[0].file exceeds the limit of 32 MB",
                "tools: schema exceeds maximum nesting depth",
                "tokens per minute limit exceeded",
            )
        ),
    ],
)
def test_what_is_not_too_long(status: int, message: str, expected: type[errors.ProviderError]) -> None:
    assert type(build_status_error(status, refusal(message), {}, "api.test")) is expected


SLIPS = {
    "Groq": refusal(
        "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        code="tool_use_failed",
        failed_generation='<function=weather{"city": "Rome"}</function>',
    ),
    "Groq, unknown tool": refusal(
        "tool call validation failed: attempted to call tool 'brave' which was not in request.tools"
    ),
    "Cerebras": refusal("Failed to generate tool_calls. Please adjust your prompt.", code="wrong_api_format"),
    "SambaNova": refusal("Model did not output valid tool calls"),
    "Ollama": {"error": 'error parsing tool call: raw=\'{"city": "Ro\', err=unexpected end of JSON input'},
    "llama.cpp": refusal("Failed to parse input at pos 12: <tool_call>"),
    "OpenRouter": {
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"provider_name": "Groq", "raw": json.dumps(refusal("x", code="tool_use_failed"))},
        }
    },
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_of_the_model_is_worth_another_attempt(name: str) -> None:
    for status in (400, 422, 500):
        error = build_status_error(status, SLIPS[name], {}, "api.test")
        assert type(error) is errors.ModelSlipError
        assert error.retryable
    assert type(build_stream_error(SLIPS[name], "", "api.test")) is errors.ModelSlipError


def test_the_error_says_what_the_model_wrote() -> None:
    assert "<function=weather" in str(build_status_error(400, SLIPS["Groq"], {}, "api.test"))


RAW = '{"type":"error","error":{"type":"invalid_request_error","message":"messages.1: image is broken"}}'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"message": "Provider returned error", "metadata": {"raw": RAW}}, "messages.1: image is broken"),
        ({"message": "Provider returned error", "metadata": {"raw": json.loads(RAW)}}, "messages.1: image is broken"),
        ({"message": "Provider returned error", "metadata": {"raw": "upstream says no"}}, "upstream says no"),
        ({"message": "Flagged", "metadata": {"reasons": ["violence", "spam"]}}, "violence, spam"),
        ({"message": "No", "innererror": {"code": "BadInput", "message": "the inner words"}}, "the inner words"),
        (
            {"message": "No", "metadata": {"raw": {"error": {"message": "a", "metadata": {"raw": "deepest"}}}}},
            "deepest",
        ),
    ],
)
def test_users_see_the_words_of_the_server_behind(body: dict[str, Any], words: str) -> None:
    error = build_status_error(400, {"error": body}, {}, "api.test")
    assert words in str(error)
    assert error.place is None  # it is a place in the aggregator's request, not in ours
    assert words in str(build_stream_error({"error": {**body, "code": 400}}, "", "api.test"))


def test_upstream_words_say_what_kind_of_error_it_is() -> None:
    raw = refusal("Your credit balance is too low to access the Anthropic API.")
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps(raw)}}}
    assert type(build_status_error(400, body, {}, "api.test")) is errors.PermissionDeniedError


def test_hostile_bodies_are_read_too() -> None:
    deep: Any = {}
    for _ in range(2_000):
        deep = {"metadata": {"raw": deep}, "message": "m"}
    for raw in (deep, "[" * 100_000, "x" * 1_000_000, None, 7, [], {"message": {"a": ["b"]}}, {"errors": [None]}):
        error = build_status_error(400, {"error": {"message": "no", "metadata": {"raw": raw}}}, {}, "api.test")
        assert len(str(error)) < 2_000
    assert type(build_status_error(400, {"errors": [{"message": "told so"}]}, {}, "api.test")) is errors.BadRequestError


def test_every_row_of_the_tables_has_a_wording() -> None:
    import re

    texts = [*TOO_LONG.values(), REQUEST_TOO_LARGE]
    unused = [
        name
        for name, pattern in TOO_LONG_TEXTS[:20]
        if not any(re.search(pattern, text, re.IGNORECASE) for text in texts)
    ]
    assert set(unused) <= {"OpenAI, Azure"}
    slips = [json.dumps(body) for body in SLIPS.values()]
    named = {
        name for name, pattern in MODEL_SLIP_TEXTS if any(re.search(pattern, text, re.IGNORECASE) for text in slips)
    }
    assert {"Groq", "Cerebras, SambaNova", "SambaNova", "Ollama", "llama.cpp"} <= named
