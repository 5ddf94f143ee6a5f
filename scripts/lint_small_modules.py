"""Refuses a module of fewer than 60 lines that exactly one other module imports: its content belongs in that module.

It may stand apart where it breaks an import cycle or keeps an import cheap, if the first line of its docstring says
why, in the words "apart because" or "separate because": "JSON values, apart because two formats import them".
Left out are `__init__.py`, migrations, and modules that are run (`__main__.py`, or with `if __name__ == "__main__"`).

Usage: lint_small_modules.py [PACKAGE DIRECTORY]    (default: perdure)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp

MIN_LINES = 60
REASON = re.compile(r"\b(?:apart|separate) because \w")
RUN_AS_PROGRAM = re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.MULTILINE)
LEFT_OUT = {"__init__.py", "__main__.py"}


@dataclass(frozen=True)
class Finding:
    path: Path
    lines: int
    importer: str

    def __str__(self) -> str:
        return (
            f"{self.path}: error: {self.lines} lines, imported by {self.importer} alone: merge it there, "
            'or say in the first line of its docstring "apart because …"'
        )


def may_stand_apart(path: Path, source: str) -> bool:
    if path.name in LEFT_OUT or "migrations" in path.parts or RUN_AS_PROGRAM.search(source):
        return True
    docstring = ast.get_docstring(ast.parse(source, str(path))) or ""
    return bool(REASON.search(docstring.partition("\n")[0]))


def check(package: Path) -> Iterator[Finding]:
    """The findings of an import package. Imports in functions and for type checking count, too."""
    sys.path.insert(0, str(package.resolve().parent))
    try:
        graph = grimp.build_graph(package.name, cache_dir=None)
    finally:
        sys.path.pop(0)
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = len(source.splitlines())
        if lines >= MIN_LINES or may_stand_apart(path, source):
            continue
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1:
            yield Finding(path, lines, *importers)


def main(arguments: list[str]) -> int:
    findings = [finding for name in arguments or ["perdure"] for finding in check(Path(name))]
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
