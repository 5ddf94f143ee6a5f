"""What lists of runs are filtered by, and counts of runs that failed; the lists are methods of ``Runs``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..types.messages import clean_text

SCANNED_RUNS = 5000
"""Runs that one search looks at: a page that finds too few says where the next one continues."""
MAX_WORDS = 8
"""Words of a search; further ones are ignored."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs of the store. None is all."""

    agent: str | None = None
    status: str | None = None
    """As the store has it."""
    tenant: str | None = None
    user: str | None = None
    roots: bool = False
    """Without the runs of subagents."""
    created_from: str | None = None
    created_before: str | None = None
    updated_from: str | None = None
    """Those whose last step was recorded at this time or later."""
    error: str | None = None
    """The class of the error that the run, or its last turn, failed with."""
    search: str | None = None
    """Words, each of which is in the id, in the first message or in the text of the error; letters of ASCII in either
    case."""


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Runs that failed with the same error."""

    error_type: str
    runs: int
    last_at: str
    """When the last of them failed."""


def encode_words(search: str | None) -> str | None:
    """Return the words of a search as both databases read them: an object with a pattern for each as its keys."""
    words = _split_words(search)
    for mark in ("\\", "%", "_"):
        words = [word.replace(mark, f"\\{mark}") for word in words]
    return json.dumps(dict.fromkeys(words, 1)) if words else None


def has_words(search: str | None, *texts: str | None) -> bool:
    """Whether the texts have all words of a search, as the databases tell."""
    text = lower_ascii(" ".join(text or "" for text in texts))
    return all(word in text for word in _split_words(search))


def _split_words(search: str | None) -> list[str]:
    return lower_ascii(search or "").replace("\0", " ").split()[:MAX_WORDS]


def lower_ascii(text: str) -> str:
    """Return ``text`` with the small letters that lower() of the databases knows: those of ASCII."""
    return text.encode(errors="replace").lower().decode()


def summarize_text(text: str, chars: int) -> str:
    """Return ``text`` on one line, of at most ``chars`` characters."""
    line = " ".join(clean_text(text[: 20 * chars]).split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"
