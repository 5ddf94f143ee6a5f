"""What a refusal says of a server's dialect: the wordings of servers, and what each changes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import BadRequestError
from perdure.providers.dialects import CONCESSIONS, DIALECTS, FIELDS, Concessions, Dialect, find_dialect, find_signer
from perdure.providers.errors import build_status_error

ALL = tuple(dict.fromkeys(name for names in FIELDS.values() for name in names))

REFUSALS: list[tuple[str, str, str, Any]] = [
    ("openai", "Extra inputs are not permitted, field: 'stream_options'", "stream_usage", False),
    ("openai", "Validation error at #/stream_options: Extra inputs are not permitted", "stream_usage", False),
    ("openai", "{'type': 'extra_forbidden', 'loc': ('body', 'stream_options')}", "stream_usage", False),
    ("openai", "Unknown parameter: 'stream_options.include_usage'.", "stream_usage", False),
    *(
        (wire_format, text, "streaming", False)
        for wire_format in ("openai", "openai-responses", "anthropic")
        for text in (
            "Your organization must be verified to stream this model. Please go to: https://x/settings.",
            "Unsupported value: 'stream' does not support true with this model. Supported values are: false.",
            "This model doesn't support tool use in streaming mode.",
            "Streaming is not supported for this model",
        )
    ),
    ("openai", "Invalid tool_choice type: 'object'. Supported string values: none, auto", "forced_tool", "required"),
    ("openai", "Thinking mode does not support this tool_choice", "forced_tool", "asked"),
    ("openai", "tool_choice 'specified' is incompatible with thinking enabled", "forced_tool", "asked"),
    ("openai", "No endpoints found that support the provided 'tool_choice' value.", "forced_tool", "asked"),
    ("openai", "tool_choice only supports auto", "forced_tool", "asked"),
    ("anthropic", "tool_choice forces tool use is not compatible with this model", "forced_tool", "asked"),
    ("anthropic", "Thinking may not be enabled when tool_choice forces tool use.", "forced_tool", "asked"),
    ("openai-responses", "Unsupported parameter: 'tool_choice'", "forced_tool", "asked"),
    (
        "openai",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens_name",
        "max_completion_tokens",
    ),
    (
        "openai",
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        "short_call_ids",
        True,
    ),
    ("openai", "Tool call IDs should be alphanumeric strings with length 9!", "short_call_ids", True),
    ("openai", "Conversation roles must alternate user/assistant/user/assistant/...", "strict_roles", True),
    (
        "openai",
        "After the (optional) system message(s), user and assistant roles should be alternating.",
        "strict_roles",
        True,
    ),
    ("openai", "Unexpected role 'user' after role 'tool'", "strict_roles", True),
    (
        "openai",
        "Expected last role User or Tool (or Assistant with prefix True) but got assistant",
        "strict_roles",
        True,
    ),
    ("openai", "System message must be at the beginning.", "strict_roles", True),
    ("openai", "System role not supported", "strict_roles", True),
    ("openai", "The `reasoning_content` in the thinking mode must be passed back to the API.", "thinking", "demanded"),
    ("openai", "Missing `reasoning_content` field in the assistant message at index 2", "thinking", "demanded"),
    (
        "openai",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "thinking",
        "demanded",
    ),
    ("anthropic", "The `content[].thinking` in the thinking mode must be passed back", "thinking", "demanded"),
    ("anthropic", "messages.1.content.0.thinking.signature: Field required", "thinking", "signed"),
    ("anthropic", "messages.1.content.0: Invalid `signature` in `thinking` block", "thinking", "refused"),
    ("openai", "'messages.2' : property 'reasoning_content' is unsupported", "thinking", "refused"),
    ("openai", "messages.1.assistant.reasoning: Extra inputs are not permitted", "thinking", "refused"),
    ("openai", "Function call is missing a thought_signature in functionCall parts.", "call_signatures", True),
    ("anthropic", "system.0.cache_control: Extra inputs are not permitted", "cache_marks", False),
]


def concede(format: str, words: str, dialect: Dialect | None = None, used: tuple[str, ...] = ALL) -> Concessions:
    dialect = dialect or Dialect()
    concessions = Concessions(format, dialect, dialect)
    body = {"error": {"message": words, "type": "invalid_request_error", "code": "invalid_parameter_error"}}
    concessions.concede(build_status_error(400, body, {}, "api.test"), used)
    return concessions


@pytest.mark.parametrize(("format", "words", "field", "value"), REFUSALS)
def test_a_refusal_changes_one_field(format: str, words: str, field: str, value: Any) -> None:
    made = concede(format, words)
    assert {
        name: getattr(made.dialect, name) for name in ALL if getattr(made.dialect, name) != getattr(Dialect(), name)
    } == {field: value}
    assert concede(format, words, used=()).made == 0, "what was not sent cannot have been refused"
    body = {"error": {"message": words}}
    again = made.concede(build_status_error(400, body, {}, "api.test"), ALL)
    assert not again or made.dialect.forced_tool == "asked", "each change is made once"


def test_every_concession_has_a_wording() -> None:
    texts = [words for _, words, _, _ in REFUSALS]
    seldom = {"max_tokens"}  # the way back
    unused = [each for each in CONCESSIONS if each.value not in seldom and not any(map(each.text.search, texts))]
    assert unused == []


@pytest.mark.parametrize(
    "words",
    [
        "max_completion_tokens is too large: 99. This model supports at most 9 completion tokens",
        "Unsupported value: 'reasoning_effort' does not support 'max' with this model.",
        "Unsupported value: 'temperature' does not support 0 with this model.",
        "Invalid schema for function 'f': array schema missing items",
        "messages.3.content.0.image.source: the image is invalid",
        "An assistant message with 'tool_calls' must be followed by tool messages",
        "The thinking budget must be at least 1024",
        "nope",
    ],
)
def test_other_refusals_are_final(words: str) -> None:
    for wire in ("openai", "anthropic"):
        assert concede(wire, words).made == 0


def test_a_call_concedes_four_times_at_most() -> None:
    concessions = Concessions("openai", Dialect(), Dialect())
    texts = [words for wire, words, _, _ in REFUSALS if wire == "openai"] * 3
    made = [concessions.concede(BadRequestError(words, status=400), ALL) for words in texts]
    assert sum(made) == 4


def test_what_is_true_of_one_conversation_is_not_remembered() -> None:
    made = concede("anthropic", "messages.1.content.0: Invalid `signature` in `thinking` block")
    assert (made.dialect.thinking, made.lasting.thinking) == ("refused", "returned")


def test_hosts_and_names_are_unique() -> None:
    for wire in ("openai", "anthropic"):
        entries = [each for each in DIALECTS if wire in each.formats]
        hosts = [host for each in entries for host in each.hosts]
        assert len(hosts) == len(set(hosts))
        assert len(entries) == len({each.name for each in entries})
        for host in hosts:
            assert find_dialect(wire, f"eu.{host}") is find_dialect(wire, host)
            assert find_dialect(wire, f"not{host}").name == "compatible"


def test_who_reads_what_a_model_signed() -> None:
    claudes = ("claude-opus-4-6", "anthropic/claude-haiku-4.6", "us.anthropic.Claude-sonnet-4-6-v1:0")
    assert {find_signer(name) for name in claudes} == {"claude"}
    assert (
        len({find_signer(name) for name in ("openai/gpt-5", "openai/gpt-5-mini", "google/gemini-3-pro", "grok")}) == 4
    )
