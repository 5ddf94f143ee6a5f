"""Which lines and files answer a question best."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .findings import Findings, Hit
from .question import Question, Term, variants

DEFINES = re.compile(r"\s*(?:async\s+)?(?:def|class|function|func|fn|type|struct|interface|const|let|var|#+|=+)\s")
_ASIDE = re.compile(
    r"(?:^|[/_.-])(?:tests?|spec|lock|min|vendor|node_modules|changelog|licen[cs]e|__pycache__|pyc|dist|build)(?:[/_.-]|$)",
    re.IGNORECASE,
)
_CLOSE = 0.5
"""A file with this share of the best one's score is worth naming too."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The hits of a question."""

    hits: tuple[Hit, ...]
    """Best first; those of the best file before all others."""
    files: tuple[str, ...]
    """Best first."""
    close: int
    """How many of the files come near the best one, itself included."""

    def best_in(self, path: str) -> Hit:
        """The best hit in a file."""
        return next(hit for hit in self.hits if hit.path == path)

    def number_in(self, path: str) -> int:
        """How many lines of a file were found."""
        return sum(hit.path == path for hit in self.hits)


def named_file(question: Question, findings: Findings) -> str | None:
    """The file that the question names, if there is one."""
    for term in question.terms:
        name = term.text.lower()
        for path in findings.files if "." in name else ():
            if path.lower() == name or path.lower().endswith(f"/{name}"):
                return path
    return None


def sought(question: Question, findings: Findings) -> list[Term]:
    """What to search for: the terms, without the name of a file that is there."""
    named = named_file(question, findings)
    return [term for term in question.terms if named is None or not named.lower().endswith(term.text.lower())]


def searched(question: Question, findings: Findings) -> dict[str, float]:
    """What was found for this question, in lower case, and what a hit is worth: rare words tell more."""
    weights: dict[str, float] = {}
    for term in sought(question, findings):
        for text, share in ((term.text, 1.0), *((form, 0.5) for form in variants(term.text))):
            hits = findings.searches.get(text.lower())
            if hits:
                weights[text.lower()] = share * term.weight / math.log(3 + len(hits))
    return weights


def rank(question: Question, findings: Findings) -> Ranking:
    """The hits of the question's own searches; only those in the file that it names, where it names one."""
    weights = searched(question, findings)
    named = named_file(question, findings)
    hits = {(hit.path, hit.line): hit for text in weights for hit in findings.searches[text]}
    inside = {key: hit for key, hit in hits.items() if key[0] == named}
    hits = inside if named else hits
    scores = {key: _line_score(hit, weights) for key, hit in hits.items()}
    files = _file_scores(list(hits.values()), scores, weights)
    order = tuple(sorted(files, key=lambda path: (-files[path], path)))
    place = {path: number for number, path in enumerate(order)}
    best = sorted(hits.values(), key=lambda hit: (place[hit.path], -scores[hit.path, hit.line], hit.line))
    close = sum(files[path] >= _CLOSE * files[order[0]] for path in order)
    return Ranking(tuple(best), order, close)


def _line_score(hit: Hit, weights: Mapping[str, float]) -> float:
    text = hit.text.lower()
    score = sum(weight for word, weight in weights.items() if word in text)
    if DEFINES.match(hit.text):
        score *= 1.5
    return score * (0.3 if len(hit.text) > 400 else 1.0)


def _file_scores(
    hits: Sequence[Hit], scores: Mapping[tuple[str, int], float], weights: Mapping[str, float]
) -> dict[str, float]:
    """A file is as good as its best line, plus how many of the words it has, in its text and in its name."""
    texts: dict[str, list[str]] = defaultdict(list)
    for hit in hits:
        texts[hit.path].append(hit.text.lower())
    files: dict[str, float] = {}
    for path, lines in texts.items():
        best = max(scores[hit.path, hit.line] for hit in hits if hit.path == path)
        inside = sum(weight for word, weight in weights.items() if any(word in line for line in lines))
        in_name = sum(weight for word, weight in weights.items() if word in path.lower())
        score = best + 0.5 * inside + in_name + 0.05 * math.log(len(lines))
        files[path] = score * (0.5 if _ASIDE.search(path) else 1.0)
    return files
