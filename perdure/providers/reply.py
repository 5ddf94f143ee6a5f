"""What the replies of all wire formats have in common: JSON of unknown shape, text that comes in pieces.

Anything may come from a server that calls itself compatible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..errors import MalformedReplyError, TruncatedStreamError
from ..types.messages import clean_text
from ..types.plain_json import EXACT_INTEGERS


def read_string(value: object) -> str:
    """``value`` if it is a string; else ""."""
    return value if isinstance(value, str) else ""


def read_array(value: object) -> list[Any]:
    """``value`` if it is an array; else []."""
    return value if isinstance(value, list) else []


def read_object(value: object) -> Mapping[str, Any]:
    """``value`` if it is an object; else {}."""
    return value if isinstance(value, dict) else {}


def read_count(values: Mapping[str, Any], key: str) -> int:
    """The number under ``key`` if it can be a count of tokens; else 0."""
    value = values.get(key)  # NaN and infinity too: Python's parser takes them
    return int(value) if isinstance(value, int | float) and 0 <= value < EXACT_INTEGERS else 0


_KEPT_HEADERS = (
    *("request-id", "requestid", "trace-id", "generation-id", "call-id", "cf-ray"),
    *("ratelimit", "rate-limit", "retry-after", "processing-ms"),
    *("model-version", "upstream", "served-by", "cache-status"),
)
"""Parts of the names of headers that are kept."""
_MOST_HEADERS, _HEADER_CHARS = 64, 200
_REQUEST_IDS = (
    *("request-id", "x-request-id", "apim-request-id", "x-amzn-requestid", "x-goog-request-id", "x-generation-id"),
    *("x-oneapi-request-id", "x-litellm-call-id", "cf-ray"),
)
"""Headers with the id by which a vendor's support finds a request; the first that is there counts."""


def keep_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of a response's headers that say something of the request or of limits, for ``Completed.headers``."""
    kept: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        if len(kept) < _MOST_HEADERS and len(name) <= _HEADER_CHARS and any(part in name for part in _KEPT_HEADERS):
            kept[name] = clean_text(value)[:_HEADER_CHARS]
    return kept


def find_request_id(headers: Mapping[str, str]) -> str | None:
    """The vendor's id of a request, of headers with lower-case names."""
    ids = (headers[name] for name in _REQUEST_IDS if headers.get(name))
    return next((clean_text(each)[:_HEADER_CHARS] for each in ids), None)


class StreamedText:
    """Text that arrives in pieces, which may end between the halves of a surrogate pair."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """The text to show for ``piece``, with the half pair that was held back before."""
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        piece = clean_text(piece)
        self._pieces.append(piece)
        return piece

    def join_text(self) -> str:
        """The whole text."""
        return "".join(self._pieces) + clean_text(self._half)


_THINK_TAG = re.compile(r"<(think|thinking|thought)>")
_TAGS = ("<think>", "<thinking>", "<thought>")
_MOST_BLANKS = 1_000
"""Characters before the tag."""


class ThinkTags:
    """Tells thinking from the answer in a text that comes in pieces, and begins with ``<think>`` if there is any.

    A tag elsewhere is text: an answer may be about tags.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["beginning", "thinking", "gap", "answer"] = "beginning"
        self._end = ""
        self._has_thinking = False

    def add(self, piece: str) -> tuple[str, str]:
        """Take a piece; what is now known to be thinking, and what is the answer's."""
        if self._state == "answer":
            return "", piece
        text, self._held = self._held + piece, ""
        thinking = ""
        if self._state == "beginning":
            start = text.lstrip()
            if match := _THINK_TAG.match(start):
                self._state, self._end, text = "thinking", f"</{match[1]}>", start[match.end() :]
            elif len(text) < _MOST_BLANKS and any(tag.startswith(start) for tag in _TAGS):
                self._held = text  # the tag may still come
                return "", ""
            else:
                self._state = "answer"
                return "", text
        if self._state == "thinking":
            if not self._has_thinking:
                text = text.lstrip("\n")
            self._has_thinking = bool(text)
            thinking, end, rest = text.partition(self._end)
            if not end:
                sizes = range(len(self._end) - 1, 0, -1)
                keep = next((size for size in sizes if text.endswith(self._end[:size])), 0)
                thinking, self._held = text[: len(text) - keep], text[len(text) - keep :]
                return thinking, ""
            self._state, text = "gap", rest
        text = text.lstrip()
        if text:
            self._state = "answer"
        return thinking, text

    def flush(self) -> tuple[str, str]:
        """What was held back, at the end of the reply."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thinking" else ("", held)


class StreamedReply:
    """Base of the readers of a reply. ``origin`` marks opaque data; the other two are for the texts of errors."""

    def __init__(self, endpoint: str, origin: str, key_name: str = "the key") -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._key_name = key_name
        self._model = ""

    def _require_object(self, value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._build_malformed_error(f"{name} that is not a JSON object", value)
        return value

    def _build_malformed_error(self, problem: str, value: object) -> MalformedReplyError:
        return MalformedReplyError(f"{self._endpoint} sent {problem}: {str(value)[:200]!r}")

    def _build_truncated_error(self) -> TruncatedStreamError:
        return TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
