"""What the tools' results say, in whichever of the usual shapes: lines, ``path:line: text``, or JSON."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# ---
# Words that say nothing about what a question is about.


_WORDS = """
    a about after again all also am an and another answer answered any anything appear appears are as ask at
    be because been before below best between biggest both brief briefly but by call called can cannot code
    contain containing contains content contents could define defined defines describe described describes
    did different directory do document documented does doing done each either else entire every exactly
    exist exists explain explained file filename filenames files find first folder folders for from further
    get give given gives go got had happen happens has have having he help her here him his how i if in
    inside into is it its itself just keep know large largest last let like line lines list located location
    longest look made main make makes many matter may me mean means mention mentioned mentions might more
    most much must my name named names need no nor not now number occurrence occurrences of often on once one
    only onto or order other our out over overview own part path paths please project put puts question quick
    quote read reply repo repository respond said same say says see sentence set sets she short shortest
    shortly should show shows smallest so some something stand stands such summarise summarize summary tell
    text than thank thanks that the their them then there these they thing things this those through time
    times to too tree two under until up upon us use used uses using very want was way we well were what when
    where whether which while who whole whom whose why will with within word words work working works would
    write written yes you your
"""
COMMON = frozenset(_WORDS.split())
"""In lower case."""


_GREP = re.compile(r"(?P<path>[^\s:][^:]*?):(?P<line>\d+)(?::\d+)?\s*[:|\t-]\s?(?P<text>.*)")
_NUMBERED = re.compile(r"\s*(?P<line>\d+)\s*[:|→\t]\s?(?P<text>.*)")
_FAILED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception)\b\s*:|error\b|tool not found", re.IGNORECASE)
_NOTHING = re.compile(
    r"\s*(?:no (?:match|file|result|hit|line)|nothing|none\b|\(none\)|0 (?:match|result|hit))", re.IGNORECASE
)
_LINES = re.compile(r"(\d[\d,]*)\s*lines?\b")
_BYTES = re.compile(r"(\d[\d,]*)\s*(?:bytes?|B)\b")
_CUT = re.compile(r"^\s*(?:…|\.\.\.).*\d|\btruncated\b", re.MULTILINE)
"""How tools say that there is more than they show."""
_TAIL = re.compile(r"\s*(?:\t|\s{2,}|\s\(|,\s|\s[-–—]\s|:\s)\s*(?P<facts>.*\d.*)$")


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a search found."""

    path: str
    line: int
    text: str


@dataclass(slots=True)
class File:
    """A file that is known; None is unknown."""

    size: int | None = None
    lines: int | None = None


@dataclass(slots=True)
class Findings:
    """Everything that is known so far."""

    listed: bool = False
    files: dict[str, File] = field(default_factory=dict)
    searches: dict[str, list[Hit]] = field(default_factory=dict)
    """Hits by what was searched for, in lower case."""
    reads: dict[str, dict[int, str]] = field(default_factory=dict)
    """Lines by number, by path."""
    failures: list[str] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Searches of which only the first hits are known; "" is the list of files."""

    def add(self, use: str, arguments: Mapping[str, Any], result: str) -> None:
        """Take in what a tool of ``use`` (list, search, read, count) said."""
        if _FAILED.match(result.lstrip()):
            self.failures.append(result.strip().splitlines()[0][:200])
            result = ""
        value = _json(result)
        match use:
            case "list":
                self.listed = True
                self.cut |= {""} if _CUT.search(result) else set()
                for path, facts in _files(value, result):
                    self.files.setdefault(path, facts)
            case "search":
                hits = list(_hits(value, result))
                self.searches[_main(arguments).lower()] = hits
                self.cut |= {_main(arguments).lower()} if _CUT.search(result) else set()
                for hit in hits:
                    self.files.setdefault(hit.path, File())
            case "read":
                lines = self.reads.setdefault(_main(arguments), {})
                lines.update(_lines(value, result, _start(arguments)))
            case "count":
                number = _LINES.search(result) or re.search(r"(\d[\d,]*)\W*$", result)
                known = self.files.setdefault(_main(arguments), File())
                known.lines = int(number[1].replace(",", "")) if number else -1


def _main(arguments: Mapping[str, Any]) -> str:
    """The argument that matters: a path or a text."""
    return next((value for value in arguments.values() if isinstance(value, str)), "")


def _start(arguments: Mapping[str, Any]) -> int:
    return next((value for value in arguments.values() if isinstance(value, int)), 1)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _items(value: Any) -> list[Any]:
    """The list that a JSON result is, or has."""
    if isinstance(value, dict):
        value = next((inner for inner in value.values() if isinstance(inner, list)), None)
    return value if isinstance(value, list) else []


def _pick(item: Mapping[str, Any], *keys: str) -> Any:
    return next((item[key] for key in keys if key in item), None)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _files(value: Any, text: str) -> Iterator[tuple[str, File]]:
    if isinstance(value, dict) and value and all(isinstance(size, int) for size in value.values()):
        yield from ((path, File(size=size)) for path, size in value.items())
        return
    for item in _items(value) or text.splitlines():
        if isinstance(item, dict):
            path = _pick(item, "path", "file", "name", "filename")
            if isinstance(path, str):
                yield path, File(_number(_pick(item, "size", "bytes")), _number(_pick(item, "lines", "line_count")))
        elif isinstance(item, str) and (found := _file(item)):
            yield found


def _file(line: str) -> tuple[str, File] | None:
    line = line.strip().lstrip("-*• ").strip("`")
    facts = _TAIL.search(line)
    path = (line[: facts.start()] if facts else line).strip("` ")
    if (
        not path
        or _NOTHING.match(line)
        or path.endswith((":", "/"))
        or (" " in path and "." not in path.split("/")[-1])
    ):
        return None
    if re.match(r"(?:…|\.\.\.|and \d+|\d+ (?:more|files))", path):
        return None
    said = facts["facts"] if facts else ""
    size, lines = _BYTES.search(said), _LINES.search(said)
    plain = re.fullmatch(r"[\d,]+", said.strip(" )"))
    if plain:
        return path, File(size=int(plain[0].replace(",", "")))
    return path, File(*(int(found[1].replace(",", "")) if found else None for found in (size, lines)))


def _hits(value: Any, text: str) -> Iterator[Hit]:
    for item in _items(value):
        if isinstance(item, dict):
            path, line = _pick(item, "path", "file", "filename"), _number(_pick(item, "line", "line_number", "lineno"))
            if isinstance(path, str) and line is not None:
                yield Hit(path, line, str(_pick(item, "text", "content", "snippet", "match") or ""))
        elif isinstance(item, str) and (found := _GREP.fullmatch(item)):
            yield Hit(found["path"], int(found["line"]), found["text"])
    heading = ""
    for row in text.splitlines() if value is None else ():
        if numbered := _NUMBERED.fullmatch(row):
            if heading:
                yield Hit(heading, int(numbered["line"]), numbered["text"])
        elif found := _GREP.fullmatch(row):
            yield Hit(found["path"].strip(), int(found["line"]), found["text"])
        elif known := _file(row.rstrip(":")):
            heading = known[0]


def _lines(value: Any, text: str, start: int) -> dict[int, str]:
    if isinstance(value, str):
        text = value
    elif isinstance(value, dict):
        inner = _pick(value, "content", "text", "lines")
        text = "\n".join(map(str, inner)) if isinstance(inner, list) else str(inner or "")
    elif isinstance(value, list) and all(isinstance(line, str) for line in value):
        text = "\n".join(value)
    lines = [line for line in text.splitlines() if not _CUT.match(line)]
    numbered = [found for line in lines if (found := _NUMBERED.fullmatch(line))]
    if numbered and len(numbered) >= 0.8 * len(lines):
        numbers = [int(found["line"]) for found in numbered]
        if numbers == sorted(numbers):
            return {number: found["text"] for number, found in zip(numbers, numbered, strict=True)}
    return dict(enumerate(lines, max(1, start)))


# ---
# What a user wants: which words to look for, what kind of answer, how long.


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


# ---
# Which lines and files answer a question best.


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
