"""What each word for the end of a reply means: one table for all formats.

Servers that speak one vendor's format send the words of another, so the words of all of them stand together, in lower
case. A word that is not here ends a reply that broke: a text that may be half is no answer, and a call that may be half
does not run. Sources: the SDKs' own types (openai, anthropic, google-genai) and pydantic-ai's maps, which tests compare
with it; the other words are of public code and issue threads, and not checked against their servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import BadRequestError, ModelSlipError, PermissionDeniedError, ProviderError, ProviderServerError
from ..types.messages import FinishReason, clean_text
from .errors import truncate_api_text

EndingKind = Literal["complete", "cut", "refused", "slip", "broken"]
"""``complete``; ``cut`` by the output limit; ``refused`` by the model or filtered; the model's ``slip``, after which it
is asked again; ``broken``: another attempt."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What an end of a reply means: a finish reason, or an error and no reply."""

    kind: EndingKind
    finish: FinishReason = "other"
    error: type[ProviderError] | None = None


_STOP = Ending("complete", "stop")
_CALLS = Ending("complete", "tool_calls")
_CUT = Ending("cut", "length")
_FILTERED = Ending("refused", "content_filter")
_REFUSED = Ending("refused", "refusal")
_SLIP = Ending("slip", error=ModelSlipError)
_BROKEN = Ending("broken", error=ProviderServerError)

_WORDS: Sequence[tuple[Ending, str]] = (
    (_STOP, "stop end_turn stop_sequence complete completed eos eos_token end end_of_turn"),
    (_CALLS, "tool_calls tool_call tool_use function_call"),
    (_CUT, "length max_tokens max_output_tokens max_completion_tokens model_length continuation error_limit"),
    (_CUT, "incomplete"),  # a response without its reason, which is one of these or a filter
    (_CUT, "model_context_window_exceeded context_window_exceeded max_context_length token_limit"),
    (_FILTERED, "content_filter content_filtered guardrail_intervened sensitive error_toxic safety recitation"),
    (_FILTERED, "language blocklist prohibited_content spii image_safety image_prohibited_content image_recitation"),
    (_FILTERED, "model_armor escalation"),
    (_REFUSED, "refusal refused"),
    # The model tried to call a tool and wrote something else: the next attempt often succeeds.
    (_SLIP, "malformed_function_call unexpected_tool_call malformed_response malformed_tool_call malformed_tool_use"),
    (_SLIP, "malformed_model_output invalid_tool_call tool_use_failed too_many_tool_calls"),
    (_BROKEN, "error network_error server_error internal_error upstream_error insufficient_system_resource"),
    (_BROKEN, "abort aborted cancel cancelled canceled user_cancel timeout timed_out failed other unknown"),
    (_BROKEN, "in_progress queued max_messages steered finish_reason_unspecified image_other no_image"),
    # Requests that would fail again.
    (Ending("broken", error=BadRequestError), "missing_thought_signature"),
    (Ending("broken", error=PermissionDeniedError), "pup_limited_disabled"),
    # The API's own tools took longer than the adapter waits for them: what there is of the reply counts.
    (Ending("complete", "other"), "pause_turn compaction"),
)
ENDINGS: dict[str, Ending] = {word: ending for ending, words in _WORDS for word in words.split()}
"""By the word in lower case."""

_SEVERITY: tuple[EndingKind, ...] = ("complete", "cut", "refused", "slip", "broken")


def read_ending(reason: str, native: str = "") -> Ending:
    """What ``reason`` means. ``native`` is the upstream's own word, which an aggregator adds to its translation
    (``native_finish_reason``): it counts if it is known and worse."""
    ending = ENDINGS.get(reason.strip().lower(), _BROKEN)
    known = ENDINGS.get(native.strip().lower(), ending)
    return max(ending, known, key=lambda each: _SEVERITY.index(each.kind))


def require_reply(ending: Ending, endpoint: str, reason: str, message: str = "", *, native: str = "") -> FinishReason:
    """The finish reason. Raises the ending's error if it means that there is no reply; ``message`` is the API's."""
    if ending.error is None:
        return ending.finish
    what = "broke off the reply" if ending.error is ProviderServerError else "gave no reply"
    reason += f", {native}" if native.lower() not in ("", reason.lower()) else ""
    detail = f": {truncate_api_text(clean_text(message))}" if message else ""
    raise ending.error(f"{endpoint} {what} ({truncate_api_text(clean_text(reason))}){detail}")
