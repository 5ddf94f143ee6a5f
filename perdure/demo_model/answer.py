"""The answer in words, from what was found: files, line numbers, and the lines themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from .planning import candidates, introduction
from .search import DEFINES, Findings, Question, Ranking, named_file, rank, searched

_QUOTED_LINES = 5
_LONGEST_LINE = 160


def compose(questions: Sequence[Question], findings: Findings, *, brief: bool) -> str:
    """The answer to all questions, in their order."""
    sections: list[str] = []
    for number, question in enumerate(questions):
        section = _ANSWERS[question.kind](question, findings)
        if brief:
            section = " ".join(
                line.lstrip("> ").strip() for part in section.split("\n\n")[:2] for line in part.split("\n")
            )
        sections.append(section if number == 0 else f"You also asked “{_short(question.text)}”: {section}")
    return (" " if brief else "\n\n").join(sections)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:79] + "…"


def _line(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _names(paths: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:most])
    return shown + (f" and {len(paths) - most} more" if len(paths) > most else "")


def _said(question: Question) -> str:
    return " or ".join(f"“{term.text}”" for term in question.terms[:3])


def _nothing(question: Question, findings: Findings) -> str:
    looked = [f"“{term.text}”" for term in question.terms if term.text.lower() in findings.searches]
    if not findings.listed and not findings.searches:
        failed = f" ({findings.failures[-1]})" if findings.failures else ""
        return f"I could not look at any files, so I cannot say{failed}."
    where = f"the {_plural(len(findings.files), 'file')} here" if findings.files else "this folder"
    if not looked:
        return f"I found nothing in {where} that answers this."
    return f"I found nothing about it: no line of {where} has {' or '.join(looked)}."


def _where(question: Question, findings: Findings) -> str:
    ranking = rank(question, findings)
    if not ranking.hits:
        return _file_itself(question, findings) or _nothing(question, findings)
    best = ranking.hits[0]
    lines = _passage(findings.reads.get(best.path, {}), best.line, 3) or {best.line: best.text}
    words = _words_in(best.text, question, findings)
    text = f"{_and(words) or _said(question)} {'is' if len(words) == 1 else 'are'} in `{best.path}`, line {best.line}:"
    return f"{text}\n\n{_quote(lines)}" + _others(ranking, best.path)


def _which(question: Question, findings: Findings) -> str:
    ranking = rank(question, findings)
    if not ranking.hits:
        return _file_itself(question, findings) or _nothing(question, findings)
    path = ranking.files[0]
    best = ranking.best_in(path)
    found = _plural(ranking.number_in(path), "line")
    text = f"`{path}` fits best: {found} of it {'has' if found == '1 line' else 'have'} {_said(question)}. "
    return text + f"Line {best.line} says:\n\n> {_line(best.text)}" + _others(ranking, path)


def _file_itself(question: Question, findings: Findings) -> str | None:
    named = named_file(question, findings)
    return f"There is a file of that name: `{named}`." if named else None


def _what(question: Question, findings: Findings) -> str:
    ranking = rank(question, findings)
    named = named_file(question, findings)
    path = named or (ranking.files[0] if ranking.files else None)
    if path is None and not question.terms:
        return _overview(findings) or _nothing(question, findings)
    if path is None:
        return _nothing(question, findings)
    line = ranking.best_in(path).line if path in ranking.files else 1
    lines = _passage(findings.reads.get(path, {}), line)
    if not lines and path in ranking.files:
        lines = {line: ranking.best_in(path).text}
    if not lines:
        return f"`{path}` is there, but I could not read it."
    first, last = min(lines), max(lines)
    place = f"line {first}" if first == last else f"lines {first}–{last}"
    return f"`{path}`, {place}, says:\n\n{_quote(lines)}" + _others(ranking, path)


def _passage(lines: dict[int, str], line: int, most: int = _QUOTED_LINES) -> dict[int, str]:
    """The paragraph around ``line``: from a line before it to a blank one, a heading kept with what it heads."""
    if line not in lines:
        line = next((number for number in sorted(lines) if lines[number].strip()), 0)
    first = line
    if line in lines and not DEFINES.match(lines[line]) and lines.get(line - 1, "").strip():
        first -= 1  # a sentence seldom begins where the word stands
    last = line
    while last - first < most - 1 and last + 1 in lines:
        blank = not lines[last + 1].strip()
        if blank and not (last == line and lines[line].lstrip().startswith("#") and last + 2 in lines):
            break
        last += 1
    kept = {number: lines[number] for number in range(first, last + 1) if number in lines}
    while kept and not kept[max(kept)].strip():
        del kept[max(kept)]
    return kept


def _quote(lines: dict[int, str]) -> str:
    return "\n".join(f"> {_line(lines[number])}".rstrip() for number in sorted(lines))


def _others(ranking: Ranking, path: str) -> str:
    near = [other for other in ranking.files[: ranking.close] if other != path]
    places = [f"`{other}` line {ranking.best_in(other).line}" for other in near]
    more = f" and {_plural(len(places) - 3, 'more file')}" if len(places) > 3 else ""
    return f"\n\nSee also {', '.join(places[:3])}{more}." if places else ""


def _words_in(line: str, question: Question, findings: Findings) -> list[str]:
    found = [word for word in searched(question, findings) if word in line.lower()]
    spelled = {term.text.lower(): term.text for term in question.terms}
    return [spelled.get(word, word) for word in found]


def _and(words: Sequence[str]) -> str:
    quoted = [f"“{word}”" for word in words]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else "".join(quoted)


def _overview(findings: Findings) -> str | None:
    start = introduction(findings)
    if start is None:
        return None
    lines = _passage(findings.reads.get(start, {}), 1)
    text = f"`{start}` begins:\n\n{_quote(lines)}\n\n" if lines else ""
    return text + _kinds(list(findings.files), findings)


def _kinds(paths: Sequence[str], findings: Findings) -> str:
    counted = Counter(PurePosixPath(path).suffix or "without a suffix" for path in paths)
    kinds = ", ".join(f"{number} {suffix}" for suffix, number in counted.most_common(4))
    least = "at least " if "" in findings.cut else ""
    return f"There {'is' if len(paths) == 1 else 'are'} {least}{_plural(len(paths), 'file')} here ({kinds})."


def _list(question: Question, findings: Findings) -> str:
    paths = [path for path in findings.files if not question.suffix or path.endswith(question.suffix)]
    return f"{_kinds(paths, findings)}\n\n{_names(paths, 20)}." if paths else _nothing(question, findings)


def _count(question: Question, findings: Findings) -> str:
    named = named_file(question, findings)
    lines = findings.files[named].lines if named else None
    if named and lines is not None and lines >= 0:
        return f"`{named}` has {_plural(lines, 'line')}."
    if question.suffix or not question.terms:
        paths = [path for path in findings.files if not question.suffix or path.endswith(question.suffix)]
        if question.suffix and paths:
            return f"There are {_plural(len(paths), f'{question.suffix} file')}: {_names(paths)}."
        return _kinds(paths, findings) if paths else _nothing(question, findings)
    ranking = rank(question, findings)
    if not ranking.hits:
        return f"None. {_nothing(question, findings)}"
    word = next(term.text for term in question.terms if findings.searches.get(term.text.lower()))
    hits = findings.searches[word.lower()]
    counted = Counter(hit.path for hit in hits).most_common()
    by_file = ", ".join(f"`{path}` {number}" for path, number in counted[:4])
    spread = f" in {_plural(len(counted), 'file')} ({by_file}{', …' if len(counted) > 4 else ''})"
    least = "at least " if word.lower() in findings.cut else ""
    found = f"The search found {least}{_plural(len(hits), 'line')} with “{word}”{spread}."
    return f"{found} For instance `{hits[0].path}`, line {hits[0].line}:\n\n> {_line(hits[0].text)}"


def _size(question: Question, findings: Findings) -> str:
    word = "smallest" if question.small else "largest"
    chosen = [path for path in candidates(question, findings) if path in findings.files]
    sized = [path for path in chosen if findings.files[path].size is not None]
    if sized:
        file = findings.files[sized[0]]
        lines = f", {_plural(file.lines, 'line')}" if file.lines is not None and file.lines >= 0 else ""
        return f"The {word} file is `{sized[0]}`: {_plural(file.size or 0, 'byte')}{lines}."
    known = {path: file.lines for path, file in findings.files.items() if (file.lines or -1) >= 0}
    if not known:
        return _nothing(question, findings)
    best = (min if question.small else max)(known, key=lambda path: known[path] or 0)
    scope = (
        "" if len(known) == len(findings.files) else f" of the {len(known)} (of {len(findings.files)}) that I counted"
    )
    return f"The {word} file{scope} is `{best}`: {_plural(known[best] or 0, 'line')}."


_ANSWERS = {"where": _where, "which": _which, "what": _what, "count": _count, "size": _size, "list": _list}
