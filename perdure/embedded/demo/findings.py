"""What the tools' results say, in whichever of the usual shapes: lines, ``path:line: text``, or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
