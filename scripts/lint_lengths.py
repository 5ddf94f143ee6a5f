"""Refuses files of more than 600 lines, but for :data:`FACADES`, and functions of more than 60; warns from 500 and 40.

Usage: lint_lengths.py [FILE|DIRECTORY ...]    (default: perdure)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_WARN, FILE_MAX = 500, 600
FUNCTION_WARN, FUNCTION_MAX = 40, 60
FACADES: dict[str, tuple[int, str]] = {
    "perdure/agent/spec.py": (800, "one class: the definition of an agent, with every argument"),
    "perdure/client/client.py": (800, "one class: what a program does with runs, a method each"),
    "perdure/client/pages.py": (800, "one kind of page and cursor for every list"),
    "perdure/client/run.py": (800, "one class: the handle of a run, a method for each request"),
}
"""Files that may be longer, by path: the most lines, and why the file is not divided. Each is one public class or one
table, whose parts no reader would look for elsewhere; what they do stands in modules below them."""


@dataclass(frozen=True)
class Finding:
    place: str
    what: str
    lines: int
    limit: int
    fatal: bool

    def __str__(self) -> str:
        kind = "error" if self.fatal else "warning"
        return f"{self.place}: {kind}: {self.what} has {self.lines} lines (limit {self.limit})"


def check(path: Path) -> Iterator[Finding]:
    """The findings of one file. A function counts from its ``def`` to its last line, docstring included."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    limit, warn = (FACADES[path.as_posix()][0],) * 2 if path.as_posix() in FACADES else (FILE_MAX, FILE_WARN)
    if lines > warn:
        yield Finding(str(path), "file", lines, limit, lines > limit)
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_WARN:
                place = f"{path}:{node.lineno}"
                yield Finding(place, f"function {node.name}", lines, FUNCTION_MAX, lines > FUNCTION_MAX)


def python_files(roots: list[str]) -> Iterator[Path]:
    for root in map(Path, roots):
        yield from [root] if root.is_file() else sorted(root.rglob("*.py"))


def main(arguments: list[str]) -> int:
    findings = [f for path in python_files(arguments or ["perdure"]) for f in check(path)]
    for finding in findings:
        print(finding)
    gone = [] if arguments else [path for path in FACADES if not Path(path).is_file()]
    for path in gone:
        print(f"{path}: error: there is no such file: remove it from FACADES")
    return int(bool(gone) or any(finding.fatal for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
