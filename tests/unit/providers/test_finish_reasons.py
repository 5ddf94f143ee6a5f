"""The table of the words for a reply's end: what each means, and that it is total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import (
    BadRequestError,
    MalformedReplyError,
    PermissionDeniedError,
    ProviderError,
    ProviderServerError,
)
from perdure.providers.finish_reasons import ENDINGS, read_ending, require_reply

KINDS = {
    "complete": "stop end_turn stop_sequence STOP COMPLETE eos_token tool_calls tool_use function_call pause_turn",
    "cut": "length max_tokens MAX_TOKENS max_output_tokens model_length model_context_window_exceeded CONTINUATION"
    " incomplete",
    "refused": "content_filter SAFETY RECITATION refusal guardrail_intervened sensitive ERROR_TOXIC",
    "slip": "MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL malformed_tool_use tool_use_failed",
    "broken": "error ERROR network_error insufficient_system_resource abort OTHER NO_IMAGE failed cancelled"
    " FINISH_REASON_UNSPECIFIED something_new",
}


@pytest.mark.parametrize(("kind", "word"), [(kind, word) for kind, words in KINDS.items() for word in words.split()])
def test_what_a_word_means(kind: str, word: str) -> None:
    assert read_ending(word).kind == kind


@given(st.text() | st.sampled_from([*ENDINGS]), st.text() | st.sampled_from([*ENDINGS]))
def test_each_word_ends_a_reply_or_is_an_error_of_the_provider(reason: str, native: str) -> None:
    ending = read_ending(reason, native)
    assert (ending.error is None) == (ending.kind in ("complete", "cut", "refused"))
    if ending.error is None:
        assert require_reply(ending, "api.test", reason) == ending.finish
        return
    with pytest.raises(ProviderError) as raised:
        require_reply(ending, "api.test", reason)
    assert type(raised.value) is ending.error
    assert raised.value.retryable or isinstance(raised.value, BadRequestError | PermissionDeniedError)


@pytest.mark.parametrize(
    ("reason", "native", "kind"),
    [
        ("stop", "error", "broken"),
        ("stop", "MALFORMED_FUNCTION_CALL", "slip"),
        ("tool_calls", "max_tokens", "cut"),
        ("stop", "a word of its own", "complete"),
        ("error", "stop", "broken"),
        ("length", "stop", "cut"),
    ],
)
def test_the_worse_of_two_words_counts(reason: str, native: str, kind: str) -> None:
    assert read_ending(reason, native).kind == kind


def test_the_errors_say_what_ended_the_reply() -> None:
    with pytest.raises(ProviderServerError, match=r"^api.test broke off the reply \(network_error\)$"):
        require_reply(read_ending("network_error"), "api.test", "network_error")
    with pytest.raises(MalformedReplyError, match=r"^api.test gave no reply \(MALFORMED_FUNCTION_CALL\): print\(\)$"):
        require_reply(read_ending("MALFORMED_FUNCTION_CALL"), "api.test", "MALFORMED_FUNCTION_CALL", "print()")
