"""What a user wants: which words to look for, what kind of answer, how long."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from .common import COMMON

Kind = Literal["where", "which", "count", "size", "list", "what"]

_QUOTED = re.compile(r"`([^`\n]{2,80})`|\"([^\"\n]{2,80})\"|“([^”\n]{2,80})”|(?<!\w)'([^'\n]{2,80})'(?!\w)")
_WORD = re.compile(r"[\w][\w./-]*\w|\w")
_IDENTIFIER = re.compile(r"[\w.-]*(?:[a-z][A-Z]|_|\d|\w\.\w|/)[\w./-]*")
_BRIEF = re.compile(
    r"\b(?:in|as|use|with)\s+(?:just\s+|only\s+)?(?:one|a single|1)\s+(?:line|sentence)\b"
    r"|\bbrief(?:ly)?\b|\bshort(?:ly|er)?\b",
    re.IGNORECASE,
)
_ORDER = re.compile(r"\b(?:answer now|final answer|limit|finish|no more tools|wrap up)\b", re.IGNORECASE)
_SIZE = re.compile(r"\b(?:largest|biggest|longest|smallest|shortest)\b", re.IGNORECASE)
_SMALL = re.compile(r"\b(?:smallest|shortest)\b", re.IGNORECASE)
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("size", _SIZE),
    ("count", re.compile(r"\bhow (?:many|often)\b|\bcount\b|\bnumber of\b", re.IGNORECASE)),
    ("where", re.compile(r"\bwhere\b|\b(?:which|what) lines?\b", re.IGNORECASE)),
    ("list", re.compile(r"\blist\b.*\bfiles\b|\b(?:what|which) files (?:are|exist|do)\b", re.IGNORECASE)),
    ("which", re.compile(r"\b(?:which|what|in what|in which) files?\b", re.IGNORECASE)),
)
_SUFFIXES = {
    "python": ".py",
    "markdown": ".md",
    "javascript": ".js",
    "typescript": ".ts",
    "rust": ".rs",
    "go": ".go",
    "java": ".java",
    "html": ".html",
    "css": ".css",
    "json": ".json",
    "yaml": ".yaml",
    "toml": ".toml",
    "text": ".txt",
    "csv": ".csv",
    "shell": ".sh",
    "sql": ".sql",
}


@dataclass(frozen=True, slots=True)
class Term:
    """Something to look for; ``weight`` says how telling it is."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Question:
    """One message of the user, understood."""

    text: str
    kind: Kind
    terms: tuple[Term, ...]
    """The most telling first."""
    brief: bool = False
    small: bool = False
    """For ``size``: the smallest is asked for."""
    suffix: str | None = None
    """Files of one language only."""
    instruction: bool = False
    """Nothing to look for: it says how to answer."""


def understand(text: str) -> Question:
    """The question that ``text`` asks."""
    brief = bool(_BRIEF.search(text))
    kind: Kind = next((kind for kind, pattern in _KINDS if pattern.search(text)), "what")
    rest = _BRIEF.sub(" ", text)
    suffix = _suffix(rest)
    terms = _terms(rest, suffix)
    asks = "?" in text or kind != "what" or bool(re.search(r"\b(?:what|why|how|who|when)\b", rest, re.IGNORECASE))
    instruction = not asks and (bool(_ORDER.search(text)) or (brief and not terms))
    if kind == "list" and terms:
        kind = "which"
    return Question(text.strip(), kind, terms, brief, bool(_SMALL.search(text)), suffix, instruction)


def _suffix(text: str) -> str | None:
    spoken = re.search(r"\b(\w+) files?\b", text, re.IGNORECASE)
    written = re.search(r"(?<![\w/])\*?(\.[a-z]{1,5})\b(?= files?\b)", text)
    if written:
        return written[1]
    return _SUFFIXES.get(spoken[1].lower()) if spoken else None


def _terms(text: str, suffix: str | None) -> tuple[Term, ...]:
    found: dict[str, Term] = {}

    def add(term: str, weight: float) -> None:
        term = term.strip(" .,;:!?")
        if len(term) >= 2 and term.lower() not in found:
            found[term.lower()] = Term(term, weight)

    for match in _QUOTED.finditer(text):
        add(next(group for group in match.groups() if group), 5.0)
    for match in _WORD.finditer(_QUOTED.sub(" ", text)):
        word = match[0].strip("./-")
        lower = word.lower()
        named_language = suffix is not None and _SUFFIXES.get(lower) == suffix
        if lower in COMMON or len(word) < 3 or word.isdigit() or named_language:
            continue
        if _IDENTIFIER.fullmatch(word) or (word.isupper() and len(word) > 2):
            add(word, 4.0)
        else:
            proper = word[0].isupper() and match.start() > 0
            add(_singular(word), min(len(word), 12) / 6 + proper)
    return tuple(sorted(found.values(), key=lambda term: -term.weight))


def _singular(word: str) -> str:
    """A form that a search finds in singular and plural: searches look for parts of words."""
    if len(word) < 5 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    return word[:-3] if word.endswith("ies") else word[:-1]


def variants(term: str) -> list[str]:
    """Shorter forms of a term that was not found: parts of an identifier, the stem of a word."""
    parts = [part for part in re.split(r"[\s_./-]+|(?<=[a-z])(?=[A-Z])", term) if len(part) > 3]
    forms = parts if len(parts) > 1 else []
    for ending in ("ation", "ing", "ion", "ed", "es", "ly", "e"):
        if term.lower().endswith(ending) and len(term) - len(ending) >= 4:
            forms.append(term[: -len(ending)])
            break
    return [form for form in forms if form.lower() != term.lower() and form.lower() not in COMMON]
