"""What to look at next: the calls that a question still needs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .findings import Findings
from .question import Question, variants
from .rank import named_file, rank, sought
from .toolkit import Toolkit
from .wire import Ask

MOST_CALLS = 12
"""Calls in a turn."""
_SEARCHES = 3
_READS = 2
_COUNTS = 5
_BEFORE, _WINDOW = 4, 16
"""Lines above a hit, and lines altogether, that are read."""
_INTRODUCTION = re.compile(r"(?:^|/)(?:readme|index|overview|introduction|main|__init__)\b[^/]*$", re.IGNORECASE)


def next_calls(questions: Sequence[Question], findings: Findings, tools: Toolkit, used: int) -> list[Ask]:
    """The calls of the next step, at most so many as are left; none when it is time to answer.

    Steps go list, search, read, count, each for all questions at once.
    """
    for step in (_list, _search, _search_again, _read, _count):
        calls = step(questions, findings, tools)
        if calls:
            return _once(calls)[: max(0, MOST_CALLS - used)]
    return []


def _once(calls: list[Ask]) -> list[Ask]:
    kept: list[Ask] = []
    for call in calls:
        if call not in kept:
            kept.append(call)
    return kept


def _list(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    return [tools.list_files()] if "list" in tools and not findings.listed and questions else []


def _search(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    if "search" not in tools:
        return []
    asked = [question for question in questions if question.kind != "size"]
    wanted = [term.text for question in asked for term in sought(question, findings)[:_SEARCHES]]
    return [tools.search(text) for text in wanted if text.lower() not in findings.searches]


def _search_again(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    """Shorter forms, for a question none of whose words was found."""
    if "search" not in tools:
        return []
    calls: list[Ask] = []
    for question in questions:
        terms = sought(question, findings)[:_SEARCHES]
        if question.kind == "size" or rank(question, findings).hits:
            continue
        forms = [form for term in terms for form in variants(term.text)][:2]
        calls.extend(tools.search(form) for form in forms if form.lower() not in findings.searches)
    return calls


def _read(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    if "read" not in tools:
        return []
    calls: list[Ask] = []
    for question in questions:
        for path, line in spots(question, findings):
            if path not in findings.reads:
                calls.append(tools.read(path, max(1, line - _BEFORE), _WINDOW))
    return calls


def spots(question: Question, findings: Findings) -> list[tuple[str, int]]:
    """Where to read for a question: path and line."""
    if question.kind in ("size", "count", "list"):
        return []
    named = named_file(question, findings)
    ranking = rank(question, findings)
    found = [(path, ranking.best_in(path).line) for path in ranking.files[:_READS]]
    if named:
        return [(path, line) for path, line in found if path == named] or [(named, 1)]
    if not question.terms and (start := introduction(findings)):
        return [(start, 1)]
    return found


def introduction(findings: Findings) -> str | None:
    """The file that says what a folder is about."""
    candidates = sorted(findings.files, key=lambda path: (path.count("/"), len(path), path))
    return next((path for path in candidates if _INTRODUCTION.search(path)), candidates[0] if candidates else None)


def _count(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    if "count" not in tools:
        return []
    wanted: list[str] = []
    for question in questions:
        named = named_file(question, findings)
        if question.kind == "count" and named:
            wanted.append(named)
        if question.kind == "size":
            wanted.extend(candidates(question, findings))
    return [tools.count(path) for path in wanted if findings.files[path].lines is None]


def candidates(question: Question, findings: Findings) -> list[str]:
    """Files whose lines are worth counting to find the largest (or smallest)."""
    paths = [path for path in findings.files if not question.suffix or path.endswith(question.suffix)]
    sized = [path for path in paths if findings.files[path].size is not None]
    if sized:
        sized.sort(key=lambda path: (findings.files[path].size or 0) * (1 if question.small else -1))
        return sized[:1]
    # Nothing says how large they are: those deeper in the tree are rarely the answer.
    paths.sort(key=lambda path: (findings.files[path].lines is None, path.count("/"), path))
    return paths[:_COUNTS]
