"""Refuses files of more than 600 lines and functions of more than 60; warns from 500 and 40.

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
    if lines > FILE_WARN:
        yield Finding(str(path), "file", lines, FILE_MAX, lines > FILE_MAX)
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
    return int(any(finding.fatal for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
