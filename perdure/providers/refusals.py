"""What model APIs say when they refuse a request: their wordings in tables, and the words behind an aggregator's.

``errors`` builds the exceptions; ``dialects`` has what a server's refusal of a parameter means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# ---
# "The conversation is too long", as public code bases recognise it.


TOO_LONG_TEXTS: tuple[tuple[str, str], ...] = (
    ("OpenAI, Azure", r"context_length_exceeded|exceeds? the context window"),
    ("OpenAI, more than a minute's tokens", r"request too large for|tokens must be reduced in order to run"),
    ("Groq, DeepSeek", r"reduce (?:the length of (?:the |your )?(?:messages|input|prompt)|your message size)"),
    ("vLLM, OpenRouter, LiteLLM", r"maximum (?:context|model) length"),
    ("Anthropic, z.ai", r"prompt (?:is )?too long|request_too_large|exceed context limit|prompt exceeds max length"),
    ("Bedrock", r"input is too long"),
    ("Google", r"input token count.{0,60}(?:exceeds|only supports)|exceeds? the maximum number of (?:input )?tokens"),
    ("xAI", r"maximum prompt length is"),
    ("Poolside, Alibaba", r"(?:maximum|max|model's) (?:allowed )?(?:input|prompt) (?:length|tokens)"),
    ("GitHub", r"prompt token count of .{1,40}exceeds|model_max_prompt_tokens_exceeded|tokens_limit_reached"),
    ("Kimi", r"exceeded model token limit"),
    ("DashScope, Xunfei", r"range of (?:input|prompt) length should be"),
    ("Mistral", r"too large for model with \d+ maximum"),
    ("Together", r"longer than the model'?s? (?:maximum )?context"),
    ("llama.cpp", r"(?:available|configured) context size|context size has been exceeded|exceed_context_size_error"),
    ("LM Studio", r"greater than the context (?:length|size)|context length is only"),
    ("MiniMax", r"context window exceeds"),
    ("z.ai", r"model_context_window_exceeded|prompt 超长|(?:输入|上下文|长度).{0,12}(?:超长|超过|超出)"),
    ("Ollama", r"exceeded (?:max )?context length"),
    ("Hugging Face", r"`?inputs`? tokens \+ `?max_new_tokens`? must be"),
    ("Cohere", r"too many tokens: total number of tokens|total tokens.{0,80}exceed"),
    ("SGLang", r"(?:input|requested token count).{0,60}(?:longer than|exceeds) the model'?s"),
    ("Fireworks, SambaNova, others", r"(?:prompt|input|request)_too_(?:long|large)|input too long"),
    ("others", r"exceeds? the (?:model'?s |maximum |available )*(?:context|input)|token limit exceeded"),
)
"""Whose wording it is, and the pattern: clear enough that it counts in answers of any status, a 429 too."""

_TOO_LONG = re.compile("|".join(f"(?:{pattern})" for _, pattern in TOO_LONG_TEXTS), re.IGNORECASE | re.DOTALL)
_MAYBE_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|maximum context|too many (input )?tokens", re.IGNORECASE
)
"""Counts in an answer that blames the request; with 429 it may be about tokens a minute (Bedrock's "Too many tokens,
please wait before trying again")."""
_EXCEEDS = re.compile(
    r"\b(?:prompts?|inputs?|contexts?|conversation|messages|content|tokens?|request body)\b[^.\n]{0,60}"
    r"\b(?:exceed(?:s|ed|ing)?|longer than|too (?:long|large)|only supports)\b"
    r"|tokens?_(?:limit_(?:reached|exceeded)|exceeded)|maximum number of (?:input )?tokens",
    re.IGNORECASE,
)
_OTHER_LIMIT = re.compile(
    r"max_(?:completion_|output_|new_)?tokens|(?:completion|output|generated|budget_)\s?tokens|thinking|images?\b"
    r"|pages?\b|files?\b|description|\bnames?\b|\btools?\b|functions?\b|schema|(?:\b|_)ids?\b|metadata|array"
    r"|stop_sequences|per (?:minute|day)|\brates?\b|quota|credit",
    re.IGNORECASE,
)
"""What else may exceed a limit; the clear wordings above count all the same."""
_WAIT_HELPS = re.compile(
    r"rate limit (?:reached|exceeded)|too many requests|throttl|please wait|(?:try|retry) again (?:in|after) [\d.]"
    r"|\bused \d",
    re.IGNORECASE,
)
"""The request fits if it comes later."""

REFUSING_STATUSES = (400, 413, 422)


def is_too_long(status: int, text: str) -> bool:
    """Whether an answer of ``status`` says that the conversation is too long for the model, whenever it is sent."""
    if status in REFUSING_STATUSES:
        if _TOO_LONG.search(text) or _MAYBE_TOO_LONG.search(text):
            return True
        return _EXCEEDS.search(text) is not None and _OTHER_LIMIT.search(text) is None
    return status in (429, 500, 502) and bool(_TOO_LONG.search(text)) and not _WAIT_HELPS.search(text)


# ---
# "The model wrote something that is no tool call": its own slip, for which another attempt helps.


MODEL_SLIP_TEXTS: tuple[tuple[str, str], ...] = (
    ("Groq", r"tool_use_failed|tool call validation failed|failed to call a function|output_parse_failed"),
    ("Groq, structured output", r"json_validate_failed"),
    ("Cerebras, SambaNova", r"failed to (?:generate|parse) (?:the )?(?:tool[_ ]calls?|json|function[_ ]calls?)"),
    ("SambaNova", r"model did not output valid|invalid (?:tool|function) call (?:generated|output)"),
    ("Ollama", r"error parsing tool call"),
    ("llama.cpp", r"failed to parse (?:input at pos|tool call|the model'?s? output)"),
    ("vLLM", r"error (?:in|while) (?:extracting|parsing) tool calls?|tool parser"),
    ("Fireworks, Together", r"could not parse (?:the )?(?:tool|function) call"),
)
"""Whose wording it is, and the pattern."""

_MODEL_SLIP = re.compile("|".join(f"(?:{pattern})" for _, pattern in MODEL_SLIP_TEXTS), re.IGNORECASE)
_SLIP_FIELDS = ("failed_generation", "failed_output", "generated_text")
"""Where the text of the broken call is."""
SLIP_STATUSES = (*REFUSING_STATUSES, 424, 500)


def is_model_slip(status: int, text: str) -> bool:
    """Whether an answer of ``status`` refuses what the model wrote, and not the request."""
    return status in SLIP_STATUSES and _MODEL_SLIP.search(text) is not None


# ---
# The words of the server behind an aggregator.


_MAX_DEPTH = 4
"""Aggregators behind aggregators."""


def get_error_object(body: object) -> object:
    """The error object of a body in any of the usual shapes."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]  # Google wraps its error in a list, in a stream
    if isinstance(body, Mapping):
        if isinstance(body.get("error"), Mapping | str):
            return body["error"]
        if isinstance(errors := body.get("errors"), list) and errors and "message" not in body:
            return errors[0]  # Cloudflare, GitHub
    return body


def read_error_message(inner: Mapping[str, Any]) -> str:
    """The message of an error object. Raises ``RecursionError`` for one that is nested too deep to be shown."""
    names = ("message", "detail", "error_message", "Message", "msg", "error_msg")
    message = next((inner[name] for name in names if inner.get(name)), "")
    return message if isinstance(message, str) else json.dumps(message, default=str)


def iter_upstream_texts(inner: object, depth: int = 0) -> Iterator[str]:
    """What the servers behind an aggregator said, in order: messages and codes, and what a model wrote wrongly.

    OpenRouter has the whole answer as text in ``metadata.raw``, Azure has the reason in ``innererror``.
    """
    if depth >= _MAX_DEPTH or not isinstance(inner, Mapping):
        return
    metadata = inner.get("metadata")
    if isinstance(metadata, Mapping):
        raw = metadata.get("raw")
        if isinstance(raw, str) and raw.strip():
            try:
                raw = json.loads(raw)
            except (ValueError, RecursionError):
                yield raw.strip()
        yield from _iter_inner_texts(raw, depth)
        reasons = metadata.get("reasons")
        if isinstance(reasons, list) and reasons:
            yield "flagged for " + ", ".join(str(reason)[:60] for reason in reasons[:5])
    for name in ("innererror", "inner_error", "upstream_error", "cause"):
        yield from _iter_inner_texts(inner.get(name), depth)
    for name in _SLIP_FIELDS:
        if isinstance(text := inner.get(name), str) and text:
            yield f"the model wrote {text}"


def _iter_inner_texts(value: object, depth: int) -> Iterator[str]:
    inner = get_error_object(value)
    if isinstance(inner, str):
        if inner is not value or depth:
            yield inner
        return
    if not isinstance(inner, Mapping):
        return
    labels = [str(inner[key]) for key in ("code", "type") if isinstance(inner.get(key), str | int) and inner[key]]
    message = read_error_message(inner)
    if message or labels:
        yield f"{message} ({' '.join(labels)})" if labels and message else message or " ".join(labels)
    yield from iter_upstream_texts(inner, depth + 1)


def list_upstream_texts(inner: object, message: str) -> list[str]:
    """The texts of ``iter_upstream_texts`` that are not in ``message`` yet; none if they are nested too deep."""
    try:
        texts = [text for text in iter_upstream_texts(inner) if text and text not in message]
    except RecursionError:
        return []
    return list(dict.fromkeys(texts))
